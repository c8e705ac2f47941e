"""The HTTP API as an application of granian, by its own interface (RSGI).

Granian was chosen by measurement, see docs/guides/gateway.md: it is faster than uvicorn, speaks
HTTP/2 and gives up slow clients. Decides nothing but how its requests become exchanges.
"""

import asyncio
from contextlib import suppress
from typing import Any, Protocol

from ringfence.gateway.http.api import Api
from ringfence.gateway.http.http_types import (
    UNREADABLE,
    Body,
    Exchange,
    Problem,
    Response,
    bounded_body,
)

__all__ = ["HttpProtocol", "HttpScope", "serve_http"]


class _Headers(Protocol):
    def get_all(self, key: str) -> list[str]:
        """Every line of a header that is ASCII throughout."""

    def __contains__(self, key: str) -> bool:
        """Whether there is such a header, in whatever bytes."""


class HttpScope(Protocol):
    """What granian tells of a request."""

    @property
    def proto(self) -> str:
        """`http` or `ws`."""

    @property
    def client(self) -> str:
        """Address and port of the other end."""

    @property
    def method(self) -> str:
        """In capitals."""

    @property
    def path(self) -> str:
        """Without the query."""

    @property
    def query_string(self) -> str:
        """As sent."""

    @property
    def headers(self) -> _Headers:
        """Names in lower case."""


class HttpProtocol(Body, Protocol):
    """How a request's body is read and its response sent."""

    async def client_disconnect(self) -> None:
        """Wait until the client has gone."""

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Send an answer."""

    def response_empty(self, status: int, headers: list[tuple[str, str]]) -> None:
        """Send an answer without a body."""

    def close(self, status: int | None) -> Any:
        """Turn a WebSocket away."""


async def serve_http(
    api: Api, scope: HttpScope, protocol: HttpProtocol, max_body: int, body_timeout: float
) -> None:
    """Answer one request."""
    if scope.proto != "http":
        protocol.close(403)
        return

    def header(name: str) -> str | None:
        lines = scope.headers.get_all(name)
        if lines:
            return ", ".join(lines)
        # What was sent and cannot be read is not absent: absent things go uncounted.
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
        # Over HTTP/2 an answer to a request that is still coming ends it by a reset, for which
        # some clients, such as curl, throw the answer away.
        with suppress(Problem):
            await body()
    _send(protocol, response)


async def _while_connected(api: Api, exchange: Exchange, protocol: HttpProtocol) -> Response | None:
    """Answer unless the client leaves first: then nobody waits, and nothing is spent."""
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
    """Cut the port off `127.0.0.1:4711` and `[::1]:4711` (granian writes `::1:4711`, too)."""
    host = client.rpartition(":")[0]
    return host.strip("[]")
