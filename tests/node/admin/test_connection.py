"""A connection over memory, on virtual time: what it answers, and when it ends."""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, memory_stream_pair

from node.admin.connection import Connection, Limits
from node.admin.throttle import Throttle

ASK = b"GET /n%d HTTP/1.1\r\nhost: x\r\n\r\n"
App = Callable[[Any, Any, Any], Awaitable[None]]


class Socket:
    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 5

    getsockname = getpeername


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body = scope["raw_path"]
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@dataclass
class Wire:
    end: trio.StapledStream[Any, Any]
    connection: Connection
    done: trio.Event = field(default_factory=trio.Event)
    refused: Counter[str] = field(default_factory=Counter)

    async def say(self, data: bytes) -> None:
        await self.end.send_all(data)

    async def hear(self, what: bytes) -> bytes:
        heard = b""
        while what not in heard:
            some = await self.end.receive_some()
            assert some, heard
            heard += some
        return heard

    async def hear_all(self) -> bytes:
        heard = b""
        try:
            while some := await self.end.receive_some():
                heard += bytes(some)
        except trio.BrokenResourceError:
            pass
        return heard


@asynccontextmanager
async def wire(app: App = echo, limits: Limits | None = None) -> AsyncIterator[Wire]:
    ours, theirs = memory_stream_pair()
    theirs.socket = Socket()  # type: ignore[attr-defined]
    config = Config()
    config.h11_max_incomplete_size = 2000
    config.errorlog = logging.getLogger("test")
    refused: Counter[str] = Counter()

    def refuse(cause: str) -> None:
        refused[cause] += 1

    connection = Connection(
        ASGIWrapper(app),  # type: ignore[arg-type]
        config,
        WorkerContext(None),
        theirs,  # type: ignore[arg-type]
        "10.0.0.1",
        None,
        limits or Limits(),
        Throttle(1e6, 100),
        refuse,
    )
    made = Wire(ours, connection, refused=refused)

    async def run() -> None:
        await connection.run()
        made.done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield made
        nursery.cancel_scope.cancel()


async def test_requests_follow_each_other(autojump_clock: MockClock) -> None:
    async with wire() as made:
        for number in range(3):
            await made.say(ASK % number)
            assert (await made.hear(b"/n%d" % number)).startswith(b"HTTP/1.1 200")


async def test_requests_that_come_at_once_are_answered_in_order(autojump_clock: MockClock) -> None:
    async with wire() as made:
        await made.say(
            ASK % 1 + ASK % 2 + b"GET /n3 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        heard = await made.hear_all()
        await made.done.wait()

    assert heard.count(b"200") == 3
    assert heard.index(b"/n1") < heard.index(b"/n2") < heard.index(b"/n3")


async def test_headers_that_trickle_end_the_connection(autojump_clock: MockClock) -> None:
    async with wire() as made:
        began = trio.current_time()
        await made.say(b"GET / HTTP/1.1\r\n")
        with trio.move_on_after(60):
            while not made.done.is_set():
                try:
                    await made.say(b"x")
                except trio.BrokenResourceError:
                    break
                await trio.sleep(0.5)

        assert trio.current_time() - began < 7
        assert made.refused == {"http_slow_request": 1}


async def test_a_connection_that_says_nothing_ends(autojump_clock: MockClock) -> None:
    async with wire() as made:
        began = trio.current_time()
        assert await made.hear_all() == b""

        assert 4 < trio.current_time() - began < 7


async def test_one_that_was_answered_may_rest_longer_but_not_trickle_then(
    autojump_clock: MockClock,
) -> None:
    async with wire() as made:
        await made.say(ASK % 1)
        await made.hear(b"/n1")
        await trio.sleep(30)
        await made.say(ASK % 2)
        await made.hear(b"/n2")
        await trio.sleep(30)
        began = trio.current_time()
        await made.say(b"GET")
        await made.hear_all()

        assert trio.current_time() - began < 7


async def test_who_does_not_read_the_answer_is_let_go(autojump_clock: MockClock) -> None:
    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await trio.sleep_forever()

    async with wire(large) as made:
        began = trio.current_time()
        await made.say(ASK % 1)
        await made.done.wait()

        assert 14 < trio.current_time() - began < 17


async def test_whoever_has_gone_before_the_answer_leaves_nothing_behind(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await trio.sleep(1)
        await echo(scope, receive, send)

    async with wire(slow) as made:
        await made.say(ASK % 1)
        await trio.testing.wait_all_tasks_blocked()
        await made.end.aclose()
        await made.done.wait()

    assert caplog.records == []


async def test_headers_without_end_are_refused_in_words(autojump_clock: MockClock) -> None:
    async with wire() as made:
        await made.say(b"GET / HTTP/1.1\r\nx: " + b"y" * 5000)
        heard = await made.hear_all()
        await made.done.wait()

    assert heard.startswith(b"HTTP/1.1 431")
    assert b"send fewer or shorter headers" in heard
    assert made.refused == {"http_malformed": 1}


async def test_what_is_no_http_is_refused_in_words(autojump_clock: MockClock) -> None:
    async with wire() as made:
        await made.say(b"\x16\x03\x01 hello\r\n\r\n")
        heard = await made.hear_all()
        await made.done.wait()

    assert heard.startswith(b"HTTP/1.1 400")
    assert b"application/problem+json" in heard
    assert made.refused == {"http_malformed": 1}


async def test_http_2_is_not_spoken(autojump_clock: MockClock) -> None:
    for said in (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade, http2-settings\r\n"
        b"upgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n\r\n",
    ):
        async with wire() as made:
            await made.say(said)
            await made.hear_all()
            await made.done.wait()

        assert made.refused == {"http_2": 1}


async def test_a_websocket_is_turned_away(autojump_clock: MockClock) -> None:
    async def close(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "websocket"
        await send({"type": "websocket.close"})

    async with wire(close) as made:
        await made.say(
            b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        heard = await made.hear_all()
        await made.done.wait()

    assert heard.startswith(b"HTTP/1.1 403")


async def test_a_connection_can_be_ended_from_outside(autojump_clock: MockClock) -> None:
    async with wire() as made:
        await made.say(ASK % 1)
        await made.hear(b"/n1")
        made.connection.end()
        await made.done.wait()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=5))
def test_no_bytes_break_a_connection(pieces: list[bytes]) -> None:
    async def run() -> None:
        async with wire() as made:
            try:
                for piece in pieces:
                    await made.say(piece)
                await made.end.send_eof()
            except trio.BrokenResourceError:
                pass
            await made.hear_all()
            await made.done.wait()

    trio.run(run, clock=MockClock(autojump_threshold=0))
