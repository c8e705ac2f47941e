"""Request, response and problem types of the HTTP API, independent of the HTTP server.

Decides the limits on size and time of a body, and the format of errors. `api` interprets requests.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Protocol

from msgspec import Struct, field

from ringfence.http.too_many_requests_body import PROBLEM_JSON

__all__ = ["JSON", "UNREADABLE", "Body", "Exchange", "HttpProblem", "Response", "bounded_body"]

JSON = "application/json"
UNREADABLE = "\ufffd"
"""Placeholder for a header that is not ASCII."""

_Headers = list[tuple[str, str]]


class HttpProblem(Exception):
    """Exception for a refused HTTP request; the detail states the reason and how to fix it."""

    def __init__(
        self, status: int, detail: str, headers: _Headers | None = None, *, cause: str = ""
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers or []
        self.cause = cause or HTTPStatus(status).phrase.lower().replace(" ", "_")
        """Name under which the problem is counted."""

    def response(self) -> "Response":
        """Convert the problem to a response with problem details (RFC 9457)."""
        problem = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        return Response(self.status, json.dumps(problem).encode(), PROBLEM_JSON, self.headers)


class Response(Struct):
    """HTTP response of the gateway."""

    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: _Headers = field(default_factory=list)


class Exchange(Struct):
    """HTTP request with its unread body. A route that needs the body reads it."""

    method: str
    path: str
    query: str
    peer: str
    """Address of the peer, without its port; empty for a Unix socket."""
    header: Callable[[str], str | None]
    """Returns a header by lower-case name, repeated fields joined by commas; else None.

    A header that is not ASCII is `UNREADABLE`."""
    body: Callable[[], Awaitable[bytes]]
    """Reads the body. Raises `HttpProblem` if it is too large or too slow."""


class Body(Protocol):
    """Request body that the server has not read yet."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Iterate over the chunks of the body; this works only once."""

    async def __call__(self) -> bytes:
        """Read the complete body into memory."""


async def bounded_body(body: Body, length: str | None, most: int, within: float) -> bytes:
    """Read a body of at most `most` bytes within `within` seconds. Raises `HttpProblem`."""
    if length is not None and (not length.isdecimal() or int(length) > most):
        raise _too_large(most)
    task = asyncio.current_task()
    assert task is not None
    # Like `asyncio.timeout` at a third of its cost. Every request with a body runs this.
    timeout = _Timeout(task)
    timer = asyncio.get_running_loop().call_later(within, timeout.expire)
    try:
        if length is not None:
            return await body()  # The server enforces the declared length.
        return await _all_of(body, most)
    except asyncio.CancelledError:
        if not timeout.has_expired or task.uncancel():
            raise
        raise HttpProblem(
            408, f"the body was not complete after {within:g} s", [("Connection", "close")]
        ) from None
    finally:
        timer.cancel()


class _Timeout:
    """Time-out that cancels a task at most once."""

    __slots__ = ("_task", "has_expired")

    def __init__(self, task: "asyncio.Task[object]") -> None:
        self._task = task
        self.has_expired = False

    def expire(self) -> None:
        self.has_expired = True
        self._task.cancel()


async def _all_of(body: Body, most: int) -> bytes:
    read = b""
    async for chunk in body:
        read += chunk
        if len(read) > most:
            raise _too_large(most)
    return read


def _too_large(most: int) -> HttpProblem:
    detail = f"the body is larger than {most} bytes; ask for fewer checks at once"
    return HttpProblem(413, detail, cause="too_large")
