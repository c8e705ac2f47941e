"""One admin connection over memory streams, on virtual time: responses, limits and time-outs."""

import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, memory_stream_pair

from node.admin.connection import AdminConnection, AdminLimits
from node.admin.http_messages import AdminRequest, AdminResponse, Handler
from node.admin.throttle import Throttle

REQUEST = b"GET /n%d HTTP/1.1\r\nhost: x\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


async def echo(request: AdminRequest) -> AdminResponse:
    """Return the path and the query."""
    return AdminResponse(request.path.encode("latin-1") + b"?" + request.query, "text/plain")


@dataclass
class Client:
    stream: trio.StapledStream[Any, Any]
    connection: AdminConnection
    done: trio.Event = field(default_factory=trio.Event)
    refused: Counter[str] = field(default_factory=Counter)

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def receive_until(self, expected: bytes) -> bytes:
        received = b""
        while expected not in received:
            chunk = await self.stream.receive_some()
            assert chunk, received
            received += chunk
        return received

    async def receive_all(self) -> bytes:
        received = b""
        try:
            while chunk := await self.stream.receive_some():
                received += bytes(chunk)
        except trio.BrokenResourceError:
            pass
        return received

    async def exchange(self, data: bytes) -> bytes:
        """Send data and receive until the connection is closed."""
        await self.send(data)
        received = await self.receive_all()
        await self.done.wait()
        return received


@asynccontextmanager
async def connected(
    handler: Handler = echo, limits: AdminLimits | None = None
) -> AsyncIterator[Client]:
    client_stream, server_stream = memory_stream_pair()
    refused: Counter[str] = Counter()

    def on_refused(cause: str) -> None:
        refused[cause] += 1

    connection = AdminConnection(
        handler,
        server_stream,  # type: ignore[arg-type]
        "10.0.0.1",
        None,
        limits or AdminLimits(header_bytes=2000),
        Throttle(1e6, 100),
        on_refused,
    )
    client = Client(client_stream, connection, refused=refused)

    async def run() -> None:
        await connection.run()
        client.done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield client
        nursery.cancel_scope.cancel()


async def test_a_connection_serves_several_requests(autojump_clock: MockClock) -> None:
    async with connected() as client:
        for number in range(3):
            await client.send(REQUEST % number)
            assert (await client.receive_until(b"/n%d" % number)).startswith(b"HTTP/1.1 200")


async def test_pipelined_requests_are_answered_in_order(autojump_clock: MockClock) -> None:
    async with connected() as client:
        await client.send(
            REQUEST % 1 + REQUEST % 2 + b"GET /n3 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        received = await client.receive_all()
        await client.done.wait()

    assert received.count(b"200") == 3
    assert received.index(b"/n1") < received.index(b"/n2") < received.index(b"/n3")


async def test_slow_headers_get_408_and_the_connection_ends(autojump_clock: MockClock) -> None:
    async with connected() as client:
        started_at = trio.current_time()
        await client.send(b"GET / HTTP/1.1\r\n")
        with trio.move_on_after(60):
            while not client.done.is_set():
                try:
                    await client.send(b"x")
                except trio.BrokenResourceError:
                    break
                await trio.sleep(0.5)

        assert trio.current_time() - started_at < 7
        assert client.refused == {"http_slow_request": 1}


async def test_a_silent_connection_is_closed_without_a_response(autojump_clock: MockClock) -> None:
    async with connected() as client:
        started_at = trio.current_time()
        assert await client.receive_all() == b""

        assert 4 < trio.current_time() - started_at < 7


async def test_an_idle_connection_has_a_longer_time_out_than_a_slow_request(
    autojump_clock: MockClock,
) -> None:
    async with connected() as client:
        await client.send(REQUEST % 1)
        await client.receive_until(b"/n1")
        await trio.sleep(30)
        await client.send(REQUEST % 2)
        await client.receive_until(b"/n2")
        await trio.sleep(30)
        started_at = trio.current_time()
        await client.send(b"GET")
        await client.receive_all()

        assert trio.current_time() - started_at < 7


async def test_a_handler_that_takes_too_long_ends_the_connection(
    autojump_clock: MockClock,
) -> None:
    async def never(request: AdminRequest) -> AdminResponse:
        await trio.sleep_forever()
        raise AssertionError

    async with connected(never) as client:
        started_at = trio.current_time()
        await client.exchange(REQUEST % 1)

        assert 14 < trio.current_time() - started_at < 17
        assert client.refused == {}


async def test_a_client_that_leaves_before_the_response_is_not_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[str] = []

    async def slow(request: AdminRequest) -> AdminResponse:
        await trio.sleep(1)
        return AdminResponse(b"late", on_sent=lambda: sent.append(request.path))

    async with connected(slow) as client:
        await client.send(REQUEST % 1)
        await trio.testing.wait_all_tasks_blocked()
        await client.stream.aclose()
        await client.done.wait()

    assert caplog.records == []
    assert sent == ["/n1"]


async def test_endless_headers_get_431(autojump_clock: MockClock) -> None:
    async with connected() as client:
        await client.send(b"GET / HTTP/1.1\r\nx: " + b"y" * 5000)
        received = await client.receive_all()
        await client.done.wait()

    assert received.startswith(b"HTTP/1.1 431")
    assert b"send fewer or shorter headers" in received
    assert client.refused == {"http_malformed": 1}


async def test_bytes_that_are_not_http_get_400(autojump_clock: MockClock) -> None:
    async with connected() as client:
        await client.send(b"\x16\x03\x01 hello\r\n\r\n")
        received = await client.receive_all()
        await client.done.wait()

    assert received.startswith(b"HTTP/1.1 400")
    assert b"application/problem+json" in received
    assert client.refused == {"http_malformed": 1}


async def test_http_2_with_prior_knowledge_is_refused(autojump_clock: MockClock) -> None:
    async with connected() as client:
        assert await client.exchange(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == b""

        assert client.refused == {"http_2": 1}


@pytest.mark.parametrize(
    "upgrade",
    [
        b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n",
        b"connection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    ],
)
async def test_a_proposed_upgrade_is_ignored(autojump_clock: MockClock, upgrade: bytes) -> None:
    async with connected() as client:
        await client.send(b"GET /n1 HTTP/1.1\r\nhost: x\r\n" + upgrade + b"\r\n")
        assert (await client.receive_until(b"/n1?")).startswith(b"HTTP/1.1 200")
        assert b"/last?" in await client.exchange(LAST)


async def test_a_response_to_head_has_no_body(autojump_clock: MockClock) -> None:
    async with connected() as client:
        received = await client.exchange(b"HEAD /n1 HTTP/1.1\r\nhost: x\r\n\r\n" + LAST)

    head, separator, _ = received.partition(b"\r\n\r\n")
    assert b"content-length: 4" in head
    assert received.startswith(head + separator + b"HTTP/1.1 200")


async def test_a_response_has_a_date_and_is_not_stored(autojump_clock: MockClock) -> None:
    async with connected() as client:
        received = await client.exchange(LAST)

    assert re.search(rb"\r\ndate: \w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT\r\n", received)
    assert b"\r\ncache-control: no-store\r\n" in received
    assert b"\r\nserver:" not in received


async def test_http_1_0_gets_one_response(autojump_clock: MockClock) -> None:
    async with connected() as client:
        received = await client.exchange(b"GET /n1?a=b HTTP/1.0\r\n\r\n")

    assert received.startswith(b"HTTP/1.1 200")
    assert received.endswith(b"/n1?a=b")


@pytest.mark.parametrize(
    "body",
    [
        b"content-length: 4000\r\n\r\n" + b"x" * 4000,
        b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ],
)
async def test_a_small_body_is_dropped_and_the_next_request_answered(
    autojump_clock: MockClock, body: bytes
) -> None:
    async with connected() as client:
        await client.send(b"POST /n1 HTTP/1.1\r\nhost: x\r\n" + body)
        await client.receive_until(b"/n1?")
        assert b"/last?" in await client.exchange(LAST)


@pytest.mark.parametrize("method", [b"POST", b"HEAD"])
@pytest.mark.parametrize(
    "body",
    [
        b"content-length: 5000\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n1000\r\n" + b"x" * 4096 + b"\r\n1\r\nx\r\n",
    ],
    ids=["declared", "chunked"],
)
async def test_a_large_body_gets_413(autojump_clock: MockClock, method: bytes, body: bytes) -> None:
    async with connected() as client:
        received = await client.exchange(method + b" / HTTP/1.1\r\nhost: x\r\n" + body)

    assert received.startswith(b"HTTP/1.1 413")
    assert b"\r\nconnection: close\r\n" in received
    assert received.endswith(b"\r\n\r\n") is (method == b"HEAD")
    assert client.refused == {"http_413": 1}


async def test_a_client_that_expects_100_continue_receives_it(
    autojump_clock: MockClock,
) -> None:
    async with connected() as client:
        await client.send(
            b"POST /n1 HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n"
        )
        assert await client.receive_until(b"\r\n\r\n") == b"HTTP/1.1 100 \r\n\r\n"
        await client.send(b"hello")
        assert (await client.receive_until(b"/n1?")).startswith(b"HTTP/1.1 200")


async def test_a_body_that_does_not_arrive_gets_408(autojump_clock: MockClock) -> None:
    async with connected() as client:
        started_at = trio.current_time()
        received = await client.exchange(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")

        assert 4 < trio.current_time() - started_at < 7
    assert received.startswith(b"HTTP/1.1 408")
    assert client.refused == {"http_slow_request": 1}


async def test_an_ambiguous_body_length_gets_400(autojump_clock: MockClock) -> None:
    async with connected() as client:
        received = await client.exchange(
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n"
        )

    assert received.startswith(b"HTTP/1.1 400")


async def test_a_connection_can_be_closed_by_the_port(autojump_clock: MockClock) -> None:
    async with connected() as client:
        await client.send(REQUEST % 1)
        await client.receive_until(b"/n1")
        client.connection.close()
        await client.done.wait()


@pytest.mark.parametrize("size", [4096, 4097])
@pytest.mark.parametrize("kind", ["declared", "chunked", "in two chunks"])
async def test_a_body_has_at_most_4096_bytes(
    autojump_clock: MockClock, size: int, kind: str
) -> None:
    if kind == "declared":
        body = b"content-length: %d\r\n\r\n" % size + b"x" * size
    else:
        parts = [size] if kind == "chunked" else [4000, size - 4000]
        chunks = [b"%x\r\n" % part + b"x" * part + b"\r\n" for part in parts]
        body = b"transfer-encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n"
    async with connected() as client:
        received = await client.exchange(b"POST /n1 HTTP/1.1\r\nhost: x\r\n" + body + LAST)

    status = b"200" if size == 4096 else b"413"
    assert received.startswith(b"HTTP/1.1 " + status)
    assert (b"/last?" in received) is (size == 4096)


@pytest.mark.parametrize(
    ("sent", "seconds"),
    [
        (b"", 5),  # A first request, or its rest.
        (b"GET", 5),
        (REQUEST % 1, 75),  # A further request.
        (REQUEST % 1 + b"GET", 5),
    ],
)
async def test_a_connection_waits_for_a_request_as_long_as_the_limits_state(
    autojump_clock: MockClock, sent: bytes, seconds: float
) -> None:
    async with connected(limits=AdminLimits()) as client:
        began = trio.current_time()
        await client.send(sent)
        await client.receive_all()

        assert trio.current_time() - began == pytest.approx(seconds)


async def test_a_request_has_15_seconds_to_be_answered(autojump_clock: MockClock) -> None:
    async def slow(request: AdminRequest) -> AdminResponse:
        await trio.sleep(14.9 if request.path == "/n1" else 15.1)
        return AdminResponse(b"late")

    async with connected(slow) as client:
        await client.send(REQUEST % 1)
        await client.receive_until(b"late")
        began = trio.current_time()
        assert await client.exchange(REQUEST % 2) == b""

        assert trio.current_time() - began == pytest.approx(15.3)  # With the pause of the close.


async def test_a_connection_is_busy_during_an_answer_and_ends_after_the_last_one(
    autojump_clock: MockClock,
) -> None:
    states: list[tuple[bool, bool]] = []

    async def note(request: AdminRequest) -> AdminResponse:
        await trio.sleep(1)
        add_state()
        return AdminResponse(b"done")

    async with connected(note) as client:

        def add_state() -> None:
            states.append((client.connection.is_busy, client.connection.is_ending))

        add_state()
        await client.send(REQUEST % 1)
        await client.receive_until(b"done")
        await trio.testing.wait_all_tasks_blocked()
        add_state()
        await client.send(LAST)
        await client.receive_until(b"done")
        await trio.testing.wait_all_tasks_blocked()
        assert client.connection.is_ending

    idle, busy = (False, False), (True, False)
    assert states == [idle, busy, idle, busy]


async def test_input_after_the_last_response_is_discarded_for_a_short_time(
    autojump_clock: MockClock,
) -> None:
    """An earlier close could reset the connection before the client has read the response."""
    async with connected() as client:
        began = trio.current_time()
        await client.send(LAST)
        await client.receive_until(b"/last?")
        await client.done.wait()

        assert trio.current_time() - began == pytest.approx(0.3)


@pytest.mark.parametrize(("excess", "status"), [(0, b"200"), (1, b"431")])
async def test_the_head_of_a_request_has_at_most_16_kib(
    autojump_clock: MockClock, excess: int, status: bytes
) -> None:
    start = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx: "
    async with connected(limits=AdminLimits()) as client:
        await client.send(start + b"y" * (16384 - len(start) + excess))
        await trio.testing.wait_all_tasks_blocked()
        if status == b"200":
            await client.send(b"\r\n\r\n")
        received = await client.receive_all()

    assert received.startswith(b"HTTP/1.1 " + status)
    assert (b"the headers are too long" in received) is (status == b"431")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=5))
def test_no_input_raises_an_internal_error(pieces: list[bytes]) -> None:
    async def run() -> None:
        async with connected() as client:
            try:
                for piece in pieces:
                    await client.send(piece)
                await client.stream.send_eof()
            except trio.BrokenResourceError:
                pass
            await client.receive_all()
            await client.done.wait()

    trio.run(run, clock=MockClock(autojump_threshold=0))
