"""What the operator's port answers: JSON, text, and errors that say what to do about them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

__all__ = ["Problem", "Reply", "json_reply"]


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, whole."""

    body: bytes
    content_type: str = "application/json"
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ()
    then: Callable[[], None] | None = None
    """Done when the answer is on its way, for what ends the port itself."""

    def all_headers(self) -> list[tuple[bytes, bytes]]:
        """With those that every answer has."""
        return [
            (b"content-type", self.content_type.encode("ascii")),
            (b"content-length", str(len(self.body)).encode("ascii")),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            *self.headers,
        ]

    def as_last(self) -> "Reply":
        """Make the same answer close its connection."""
        return replace(self, headers=[*self.headers, (b"connection", b"close")])


class Problem(Exception):
    """A request that is not served: `what` is wrong, and how to `mend` it (RFC 9457)."""

    def __init__(
        self, status: int, what: str, mend: str, *, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        super().__init__(what)
        self.status = status
        self.mend = mend
        self.headers = headers

    def reply(self) -> Reply:
        """Say it."""
        told = {"status": self.status, "title": str(self), "detail": self.mend}
        body = msgspec.json.encode(told) + b"\n"
        return Reply(body, "application/problem+json", self.status, self.headers)


def json_reply(value: object) -> Reply:
    """Answer with a value as JSON."""
    return Reply(msgspec.json.encode(value) + b"\n")
