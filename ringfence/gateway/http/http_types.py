"""A request and its response as values, whatever server carries them.

Decides how a body is bounded in size and time and how an error reads; what is asked is `api`'s.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol

from ringfence.http.bodies import PROBLEM_JSON

__all__ = ["JSON", "UNREADABLE", "Body", "Exchange", "Problem", "Response", "bounded_body"]

JSON = "application/json"
UNREADABLE = "\ufffd"
"""Stands for a header that is not ASCII."""

_Headers = list[tuple[str, str]]


class Problem(Exception):
    """The request cannot be answered; tells the client why and how to mend it."""

    def __init__(
        self, status: int, detail: str, headers: _Headers | None = None, *, cause: str = ""
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers or []
        self.cause = cause or HTTPStatus(status).phrase.lower().replace(" ", "_")
        """Under which name it is counted."""

    def response(self) -> "Response":
        """Make problem details (RFC 9457) of it."""
        told = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        return Response(self.status, json.dumps(told).encode(), PROBLEM_JSON, self.headers)


@dataclass(slots=True)
class Response:
    """What goes back."""

    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: _Headers = field(default_factory=list)


@dataclass(slots=True)
class Exchange:
    """A request; its body is read by whoever has a use for it."""

    method: str
    path: str
    query: str
    peer: str
    """Address of the connection's other end, without its port; empty over a Unix socket."""
    header: Callable[[str], str | None]
    """A header by its name in lower case, its lines joined by commas; `UNREADABLE` when none is."""
    body: Callable[[], Awaitable[bytes]]
    """Raises `Problem` when it is too large or takes too long."""


class Body(Protocol):
    """A body that the server has not read yet."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Piece by piece; once only."""

    async def __call__(self) -> bytes:
        """All of it at once."""


async def bounded_body(body: Body, length: str | None, most: int, within: float) -> bytes:
    """Read a body of at most `most` bytes in at most `within` seconds. Raises `Problem`."""
    if length is not None and (not length.isdecimal() or int(length) > most):
        raise _too_large(most)
    task = asyncio.current_task()
    assert task is not None
    # What `asyncio.timeout` does, at a third of what it costs: every request comes by here.
    alarm = _Timeout(task)
    timer = asyncio.get_running_loop().call_later(within, alarm.ring)
    try:
        if length is not None:
            return await body()  # The server holds the client to what it said.
        return await _all_of(body, most)
    except asyncio.CancelledError:
        if not alarm.has_rung or task.uncancel():
            raise
        raise Problem(
            408, f"the body was not complete after {within:g} s", [("Connection", "close")]
        ) from None
    finally:
        timer.cancel()


class _Timeout:
    """Cancels a task, once."""

    __slots__ = ("_task", "has_rung")

    def __init__(self, task: "asyncio.Task[object]") -> None:
        self._task = task
        self.has_rung = False

    def ring(self) -> None:
        self.has_rung = True
        self._task.cancel()


async def _all_of(body: Body, most: int) -> bytes:
    read = b""
    async for chunk in body:
        read += chunk
        if len(read) > most:
            raise _too_large(most)
    return read


def _too_large(most: int) -> Problem:
    return Problem(413, f"the body is larger than {most} bytes; ask for fewer checks at once")
