"""Adapter from Granian's interface (RSGI) to the HTTP API.

Granian was chosen by measurement, see docs/guides/gateway.md. It is faster than uvicorn, supports
HTTP/2, and disconnects slow clients. This module only converts requests to exchanges.
"""

import asyncio
from contextlib import suppress
from typing import Any, Protocol

from ringfence.gateway.http.api import Api
from ringfence.gateway.http.http_types import (
    UNREADABLE,
    Body,
    Exchange,
    HttpProblem,
    Response,
    bounded_body,
)

__all__ = ["HttpProtocol", "HttpScope", "serve_http"]


class _Headers(Protocol):
    def get_all(self, key: str) -> list[str]:
        """Return all values of a request header that are ASCII."""

    def __contains__(self, key: str) -> bool:
        """Return whether a request header is present, even if its value is not ASCII."""


class HttpScope(Protocol):
    """Data of an HTTP request that the server Granian supplies."""

    @property
    def proto(self) -> str:
        """Return the protocol of the connection: `http` or `ws`."""

    @property
    def client(self) -> str:
        """Return address and port of the client."""

    @property
    def method(self) -> str:
        """Return the request method in upper case."""

    @property
    def path(self) -> str:
        """Return the request path without the query string."""

    @property
    def query_string(self) -> str:
        """Return the query string as the client sent it."""

    @property
    def headers(self) -> _Headers:
        """Return the request headers, with lower-case names."""


class HttpProtocol(Body, Protocol):
    """Methods of the server Granian that read the request body and send the response."""

    async def client_disconnect(self) -> None:
        """Wait until the client disconnects."""

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Send a response with a body."""

    def response_empty(self, status: int, headers: list[tuple[str, str]]) -> None:
        """Send a response without a body."""

    def close(self, status: int | None) -> Any:
        """Refuse a WebSocket connection with a status."""


async def serve_http(
    api: Api, scope: HttpScope, protocol: HttpProtocol, max_body: int, body_timeout: float
) -> None:
    """Answer one HTTP request that the server Granian has received."""
    if scope.proto != "http":
        protocol.close(403)
        return

    def header(name: str) -> str | None:
        lines = scope.headers.get_all(name)
        if lines:
            return ", ".join(lines)
        # An unreadable header counts as present: a request without it may pass uncounted.
        return UNREADABLE if name in scope.headers else None

    is_unread = scope.method == "POST"

    async def body() -> bytes:
        nonlocal is_unread
        is_unread = False
        return await bounded_body(protocol, header("content-length"), max_body, body_timeout)

    exchange = Exchange(
        scope.method,
        scope.path,
        scope.query_string,
        _host_of(scope.client),
        header,
        body,
    )
    if exchange.path == "/v1/acquire":
        response = await _while_connected(api, exchange, protocol)
    else:
        response = await api.answer(exchange)
    if response is None:
        return
    if is_unread:
        # Over HTTP/2, a response before the end of the request resets the stream. Some clients,
        # such as curl, then discard the response.
        with suppress(HttpProblem):
            await body()
    _send(protocol, response)


async def _while_connected(api: Api, exchange: Exchange, protocol: HttpProtocol) -> Response | None:
    """Answer an HTTP request, but cancel the work on it if the client disconnects first."""
    answer = asyncio.ensure_future(api.answer(exchange))
    gone = asyncio.ensure_future(protocol.client_disconnect())
    try:
        await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        answer.cancel()
        gone.cancel()


def _send(protocol: HttpProtocol, response: Response) -> None:
    headers = [(name.lower(), value) for name, value in response.headers]
    if not response.body:
        protocol.response_empty(response.status, headers)
        return
    headers.append(("content-type", response.content_type))
    headers.append(("cache-control", "no-store"))
    protocol.response_bytes(response.status, headers, response.body)


def _host_of(client: str) -> str:
    """Return the host of an address: `127.0.0.1:4711`, `[::1]:4711` or Granian's form
    `::1:4711`."""
    host = client.rpartition(":")[0]
    return host.strip("[]")
