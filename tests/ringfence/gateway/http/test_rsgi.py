"""Conversion of Granian's requests to exchanges, and of responses back."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import ringfence
from ringfence.gateway.http.rsgi import serve_http
from ringfence.gateway.process.worker import make_api
from tests.ringfence.gateway.gateway import settings_of


class Headers:
    def __contains__(self, key: str) -> bool:
        return key == "content-length"

    def get_all(self, key: str) -> list[str]:
        return ["2"] if key == "content-length" else []


class Scope:
    proto, client, query_string, headers = "http", "127.0.0.1:4711", "", Headers()

    def __init__(self, method: str, path: str) -> None:
        self.method, self.path = method, path


class Protocol:
    """RSGI protocol that records the calls on a request, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def __call__(self) -> bytes:
        self.calls.append("read")
        return b"{}"

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise AssertionError("the body length is known, so the body is read at once")

    async def client_disconnect(self) -> None:
        raise AssertionError("no code waits for a disconnection")

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.calls.append(str(status))

    def response_empty(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.calls.append(str(status))

    def close(self, status: int | None) -> None:
        raise AssertionError("this request is not a WebSocket")


@pytest.mark.parametrize(
    ("method", "path", "calls"),
    [
        ("POST", "/nowhere", ["read", "404"]),
        ("POST", "/v1/check", ["read", "400"]),
        ("GET", "/healthz", ["200"]),
    ],
)
def test_a_request_is_read_before_it_is_answered(method: str, path: str, calls: list[str]) -> None:

    protocol = Protocol()

    async def main() -> None:
        async with ringfence.local({"domain": "d", "descriptors": [{"key": "k"}]}) as limiter:
            api = make_api(limiter, settings_of())
            await serve_http(api, Scope(method, path), protocol, 1000, 1.0)

    asyncio.run(main())
    assert protocol.calls == calls
