"""Requests and responses of the admin port, without I/O: JSON, text, and problem details."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

__all__ = ["AdminRequest", "AdminResponse", "Handler", "HttpProblem", "json_response"]


class AdminRequest(Struct, frozen=True):
    """HTTP request to the admin port. Its body, if any, has been read and dropped."""

    method: str
    path: str
    """Without the query, still percent-encoded."""
    query: bytes = b""
    headers: Mapping[bytes, bytes] = field(default_factory=dict)
    """By lower-case name. Of a repeated field, the last value."""


class AdminResponse(Struct, frozen=True):
    """Complete HTTP response of the admin port."""

    body: bytes
    content_type: str = "application/json"
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ()
    on_sent: Callable[[], None] | None = None
    """Called once when the response has been sent, or cannot be sent."""

    def all_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the header fields of this response, and those that every response has."""
        return [
            (b"content-type", self.content_type.encode("ascii")),
            (b"content-length", str(len(self.body)).encode("ascii")),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            *self.headers,
        ]

    def as_last(self) -> "AdminResponse":
        """Return a copy of this response with a header that closes the connection after it."""
        return replace(self, headers=[*self.headers, (b"connection", b"close")])


Handler: TypeAlias = Callable[[AdminRequest], Awaitable[AdminResponse]]
"""Answers one request. It must not raise `HttpProblem`."""


class HttpProblem(Exception):
    """Error for a refused request, with the title and the remedy of its problem details (RFC
    9457)."""

    def __init__(
        self, status: int, title: str, remedy: str, *, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        super().__init__(title)
        self.status = status
        self.remedy = remedy
        self.headers = headers

    def response(self) -> AdminResponse:
        """Convert the problem to an HTTP response."""
        problem = {"status": self.status, "title": str(self), "detail": self.remedy}
        body = msgspec.json.encode(problem) + b"\n"
        return AdminResponse(body, "application/problem+json", self.status, self.headers)


def json_response(value: object) -> AdminResponse:
    """Create a response with a value encoded as JSON."""
    return AdminResponse(msgspec.json.encode(value) + b"\n")
