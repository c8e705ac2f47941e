"""One HTTP request to a member, with valid and invalid responses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from node.supervisor.member_query import MemberResponse, ask_member
from ringfence.transport.interface import Address


@asynccontextmanager
async def member(answer: bytes) -> AsyncIterator[tuple[Address, list[bytes]]]:
    """Run a server that sends these bytes on each connection and then closes it."""
    received: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        received.append(await stream.receive_some())
        await stream.send_all(answer)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield listener.socket.getsockname()[:2], received
        nursery.cancel_scope.cancel()


async def query(address: Address) -> MemberResponse | None:
    return await ask_member(address, b"GET", b"/v1/ring?shard=7", [(b"host", b"localhost:7180")])


async def test_a_complete_response_is_returned_unchanged() -> None:
    complete = (
        b"HTTP/1.1 503 \r\nallow: GET\r\ntransfer-encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n"
    )
    async with member(complete) as (address, received):
        response = await query(address)

    assert response is not None
    assert (response.status, response.body, dict(response.headers)[b"allow"]) == (
        503,
        b"no",
        b"GET",
    )
    assert received[0].startswith(b"GET /v1/ring?shard=7 HTTP/1.1\r\nhost: localhost:7180\r\n")


async def test_a_response_may_have_a_megabyte() -> None:
    """A page of metrics has some hundred kilobytes."""
    body = bytes(1 << 20)
    async with member(b"HTTP/1.1 200 \r\ncontent-length: 1048576\r\n\r\n" + body) as (address, _):
        response = await query(address)

    assert response is not None
    assert response.body == body


@pytest.mark.parametrize(
    "answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 \r\ncontent-length: 9\r\n\r\nhalf"]
)
async def test_an_incomplete_response_is_none(answer: bytes) -> None:
    async with member(answer) as (address, _):
        assert await query(address) is None


async def test_a_refused_connection_is_none() -> None:
    async with member(b"") as (address, _):
        pass

    assert await query(address) is None


@pytest.mark.parametrize(("delay", "is_answered"), [(4.9, True), (5.1, False)])
async def test_a_member_has_five_seconds_for_its_response(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, delay: float, *, is_answered: bool
) -> None:
    ours, members = trio.testing.memory_stream_pair()

    async def connect(host: str, port: int) -> trio.abc.Stream:
        return ours

    monkeypatch.setattr(trio, "open_tcp_stream", connect)
    async with trio.open_nursery() as nursery:

        async def answer() -> None:
            await trio.sleep(delay)
            await members.send_all(b"HTTP/1.1 204 \r\n\r\n")

        nursery.start_soon(answer)
        began = trio.current_time()
        response = await query(("127.0.0.1", 7181))

        assert trio.current_time() - began == pytest.approx(min(delay, 5.0))
        assert (response is not None) is is_answered
        nursery.cancel_scope.cancel()
