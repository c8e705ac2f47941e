"""The memory transport, on trio's virtual clock."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random

import pytest
import trio
from trio.testing import MockClock

from ringfence.errors import ConfigError, LocalProtocolError
from ringfence.transport.close_reason import TransportCode
from ringfence.transport.interface import MAX_SEALED, Address, Connection
from ringfence.transport.memory import MemoryNetwork, MemoryTransport
from ringfence.wire.errors import ErrorCode

A: Address = ("a", 1)
B: Address = ("b", 1)


@dataclass(eq=False)
class Log:
    """A handler that remembers what came when."""

    echoes: bool = False
    connection: Connection | None = None
    messages: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    closed: tuple[int, str] | None = None
    closed_at: float = 0.0

    def on_open(self, connection: Connection) -> None:
        self.connection = connection

    def on_message(self, payload: bytes) -> None:
        self.messages.append(payload)
        self.times.append(trio.current_time())
        if payload == b"fail":
            raise ZeroDivisionError
        if self.echoes:
            assert self.connection is not None
            self.connection.send(payload)

    def on_close(self, code: int, reason: str) -> None:
        assert self.closed is None
        self.closed = code, reason
        self.closed_at = trio.current_time()


class World:
    """Transports at A and B; B echoes."""

    def __init__(self, nursery: trio.Nursery, *, delay: float = 0.01, jitter: float = 0.0) -> None:
        self.nursery = nursery
        self.network = MemoryNetwork(Random(1), delay=delay, jitter=jitter)
        self.bugs: list[Exception] = []
        self.accepted: list[Log] = []
        self.a = self.network.transport(A, on_bug=self.bugs.append)

    async def start(self) -> "World":
        await self.nursery.start(self.a.run)
        await self.start_b()
        return self

    async def start_b(self) -> trio.CancelScope:
        self.b = b = self.network.transport(B, on_bug=self.bugs.append, accept=self.accept)
        scope = trio.CancelScope()

        async def run(*, task_status: trio.TaskStatus[Address]) -> None:
            with scope:
                await b.run(task_status=task_status)

        await self.nursery.start(run)
        return scope

    def accept(self, _: Connection) -> Log:
        self.accepted.append(Log(echoes=True))
        return self.accepted[-1]

    def connect(self, to: Address = B) -> tuple[Connection, Log]:
        log = Log()
        connection = self.a.connect(to, log)
        self.a.flush()
        return connection, log


def raise_(error: Exception) -> None:
    raise error


@asynccontextmanager
async def world(**options: float) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        yield await World(nursery, **options).start()
        nursery.cancel_scope.cancel()


async def test_messages_arrive_in_order_after_the_delay(autojump_clock: MockClock) -> None:
    async with world(delay=0.01, jitter=0.05) as w:
        connection, log = w.connect()
        connection.send(b"early")
        await trio.sleep(1)
        payloads = [b"%d" % i for i in range(50)]
        for payload in payloads:
            connection.send(payload)
            w.a.flush()
        assert connection.unsent > 0
        await trio.sleep(1)

        assert log.messages == [b"early", *payloads]
        assert log.times == sorted(log.times)
        assert connection.unsent == 0
        assert connection.is_open


async def test_a_link_can_have_a_delay_of_its_own(autojump_clock: MockClock) -> None:
    async with world() as w:
        connection, log = w.connect()
        await trio.sleep(1)
        w.network.set_delay(B, A, 0.2)
        sent = trio.current_time()
        connection.send(b"far")
        w.a.flush()
        await trio.sleep(1)

        assert log.times == [pytest.approx(sent + 0.4)]


async def test_what_is_not_flushed_does_not_leave(autojump_clock: MockClock) -> None:
    async with world() as w:
        connection, log = w.connect()
        await trio.sleep(1)
        connection.send(b"waiting")
        await trio.sleep(1)
        assert log.messages == []

        w.a.flush()
        await trio.sleep(1)

        assert log.messages == [b"waiting"]


async def test_the_peer_hears_of_a_close_after_the_last_message(autojump_clock: MockClock) -> None:
    async with world() as w:
        connection, log = w.connect()
        await trio.sleep(1)

        connection.send(b"last")
        connection.close(3, "enough")
        w.a.flush()
        await trio.sleep(1)

        assert w.accepted[0].messages == [b"last"]
        assert w.accepted[0].closed == (3, "enough")
        assert log.closed is None
        assert not connection.is_open


async def test_nobody_listening_is_told_at_once(autojump_clock: MockClock) -> None:
    async with world() as w:
        _, log = w.connect(("nowhere", 1))

        await trio.sleep(1)

        assert log.closed == (TransportCode.UNREACHABLE, "no process listens at nowhere:1")


async def test_a_cut_link_makes_messages_wait_until_it_heals(autojump_clock: MockClock) -> None:
    async with world() as w:
        connection, log = w.connect()
        await trio.sleep(1)

        w.network.cut(A, B)
        connection.send(b"patience")
        w.a.flush()
        await trio.sleep(20)
        assert log.messages == []
        w.network.heal(B, A)
        await trio.sleep(40)

        assert log.messages == [b"patience"]
        assert connection.is_open


async def test_a_long_cut_ends_both_sides_by_the_idle_timeout(autojump_clock: MockClock) -> None:
    async with world() as w:
        _, log = w.connect()
        await trio.sleep(1)

        w.network.cut(A, B)
        await trio.sleep(31)

        assert log.closed == (ErrorCode.IDLE, "idle timeout: b:1 went silent")
        assert w.accepted[0].closed == (ErrorCode.IDLE, "idle timeout: a:1 went silent")


async def test_over_a_cut_link_a_handshake_times_out(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.network.cut(A, B)
        began = trio.current_time()
        _, log = w.connect()

        await trio.sleep(10)

        reason = "handshake timed out (no answer from b:1)"
        assert log.closed == (TransportCode.HANDSHAKE_TIMEOUT, reason)
        assert log.closed_at == pytest.approx(began + 5)


async def test_a_crash_is_silence_and_a_successor_can_be_reached(autojump_clock: MockClock) -> None:
    async with world() as w:
        old, old_log = w.connect()
        await trio.sleep(1)

        w.network.crash(B)
        old.send(b"hello?")
        w.a.flush()
        _, lost = w.connect()
        await trio.sleep(6)
        assert lost.closed is not None
        assert lost.closed[0] == TransportCode.HANDSHAKE_TIMEOUT
        await w.start_b()
        new, new_log = w.connect()
        new.send(b"hello")
        await trio.sleep(30)

        assert old_log.closed is not None
        assert old_log.closed[0] == ErrorCode.IDLE
        assert w.accepted[0].messages == []
        assert new_log.messages == [b"hello"]


async def test_a_reset_loses_what_is_under_way_and_tells_both_sides(
    autojump_clock: MockClock,
) -> None:
    async with world(delay=0.01) as w:
        connection, log = w.connect()
        await trio.sleep(1)
        connection.send(b"lost")
        w.a.flush()

        w.network.reset(A, B)
        await trio.sleep(1)

        assert not connection.is_open
        assert log.messages == w.accepted[0].messages == []
        for side in (log, w.accepted[0]):
            assert side.closed is not None
            assert side.closed[0] == TransportCode.UNREACHABLE
        again, _ = w.connect()
        await trio.sleep(1)
        assert again.is_open


async def test_to_a_paused_transport_messages_and_timers_wait(autojump_clock: MockClock) -> None:
    async with world(delay=0.01) as w:
        connection, log = w.connect()
        await trio.sleep(1)
        rang: list[float] = []
        w.b.call_at(trio.current_time() + 0.1, lambda: rang.append(trio.current_time()))
        w.network.pause(B)
        connection.send(b"knock")
        w.a.flush()
        await trio.sleep(0.3)
        assert w.accepted[0].messages == rang == log.messages == []

        resumed = trio.current_time()
        w.network.resume(B)
        await trio.sleep(0.1)

        assert w.accepted[0].messages == log.messages == [b"knock"]
        assert rang == [pytest.approx(resumed, abs=0.001)]


async def test_after_a_pause_a_handler_can_tell_how_long_a_message_waited(
    autojump_clock: MockClock,
) -> None:
    async with world(delay=0.01) as w:
        connection, _ = w.connect()
        waits: list[int] = []
        await trio.sleep(1)
        w.accepted[0].on_message = lambda _: waits.append(w.b.held_up_ns)  # type: ignore[method-assign]
        for is_paused in (False, True, False):
            if is_paused:
                w.network.pause(B)
            connection.send(b"knock")
            w.a.flush()
            await trio.sleep(0.31)
            w.network.resume(B)
            await trio.sleep(0.1)

        assert waits == [
            pytest.approx(0, abs=1000),
            pytest.approx(300_000_000, abs=1000),  # It was on its way for 10 ms.
            pytest.approx(0, abs=1000),
        ]


async def test_a_transport_that_stops_says_goodbye(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        w = World(nursery)
        await nursery.start(w.a.run)
        scope = await w.start_b()
        _, log = w.connect()
        await trio.sleep(1)

        scope.cancel()
        await trio.sleep(1)
        _, late = w.connect()
        await trio.sleep(1)

        assert log.closed == (ErrorCode.DRAINING, "shutting down")
        assert late.closed == (TransportCode.UNREACHABLE, "no process listens at b:1")
        nursery.cancel_scope.cancel()


async def test_a_bug_in_a_handler_ends_its_connection_and_no_other(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        bad, bad_log = w.connect()
        good, good_log = w.connect()
        await trio.sleep(1)

        bad.send(b"fail")
        good.send(b"fine")
        w.a.flush()
        await trio.sleep(1)

        assert [type(bug) for bug in w.bugs] == [ZeroDivisionError]
        assert bad_log.closed == (ErrorCode.INTERNAL, "internal error")
        assert good_log.messages == [b"fine"]


async def test_two_transports_cannot_have_one_address(autojump_clock: MockClock) -> None:
    async with world() as w:
        with pytest.raises(ConfigError, match="in use"):
            await w.network.transport(A, on_bug=w.bugs.append).run()


async def test_calls_are_made_soon_and_at_their_time(autojump_clock: MockClock) -> None:
    async with world() as w:
        made: list[str] = []
        now = w.a.now()
        w.a.call_at(now + 2, partial(made.append, "late"))
        w.a.call_at(now + 1, partial(made.append, "early"))
        w.a.call_at(now + 1, partial(made.append, "never")).cancel()
        w.a.call_soon(partial(made.append, "soon"))

        await trio.sleep(3)

        assert made == ["soon", "early", "late"]


async def test_one_seed_gives_one_history(autojump_clock: MockClock) -> None:
    histories = []
    for _ in range(2):
        async with world(jitter=0.5) as w:
            connection, log = w.connect()
            began = trio.current_time()
            for i in range(20):
                connection.send(b"%d" % i)
                w.a.flush()
                await trio.sleep(0.1)
            await trio.sleep(5)
            histories.append([round(at - began, 6) for at in log.times])

    assert histories[0] == histories[1]
    assert isinstance(w.a, MemoryTransport)


# Sealed datagrams.


class Sealed:
    """What one transport hears beside its connections."""

    def __init__(self, transport: MemoryTransport) -> None:
        self.received: list[tuple[bytes, Address]] = []
        self.times: list[float] = []
        transport.receive_sealed(self.take)

    def take(self, datagram: bytes, source: Address) -> None:
        self.received.append((datagram, source))
        self.times.append(trio.current_time())


@asynccontextmanager
async def pair(
    *, jitter: float = 0.0
) -> AsyncIterator[tuple[MemoryNetwork, MemoryTransport, Sealed]]:
    """A network, a transport at A, and what one at B hears."""
    bugs: list[Exception] = []
    network = MemoryNetwork(Random(1), jitter=jitter)
    a, b = (network.transport(at, on_bug=bugs.append) for at in (A, B))
    async with trio.open_nursery() as nursery:
        await nursery.start(a.run)
        await nursery.start(b.run)
        yield network, a, Sealed(b)
        nursery.cancel_scope.cancel()
    assert not bugs


async def test_a_sealed_datagram_arrives_after_the_links_delay(autojump_clock: MockClock) -> None:
    async with pair() as (network, a, b):
        network.set_delay(A, B, 0.2)
        began = trio.current_time()

        a.send_sealed(b"\x00probe", B)
        await trio.sleep(1)

        assert b.received == [(b"\x00probe", A)]
        assert b.times == [pytest.approx(began + 0.2)]


async def test_what_a_sealed_datagram_must_not_be_is_our_own_fault(
    autojump_clock: MockClock,
) -> None:
    async with pair() as (_, a, b):
        for wrong in (b"", b"\x00" * (MAX_SEALED + 1), b"\x40like QUIC"):
            with pytest.raises(LocalProtocolError, match="sealed datagram"):
                a.send_sealed(wrong, B)
        a.send_sealed(b"\x00" * MAX_SEALED, B)
        await trio.sleep(1)

        assert b.received == [(b"\x00" * MAX_SEALED, A)]


async def test_sealed_datagrams_to_unknown_and_to_stopped_transports_vanish(
    autojump_clock: MockClock,
) -> None:
    async with pair() as (network, a, b):
        c = network.transport(("c", 1), on_bug=raise_)
        c.send_sealed(b"\x00not running", B)
        a.send_sealed(b"\x00nobody", ("c", 1))
        a.receive_sealed(None)
        a.send_sealed(b"\x00myself", A)
        await trio.sleep(1)

        assert b.received == []


async def test_a_share_of_sealed_datagrams_is_lost(autojump_clock: MockClock) -> None:
    async with pair() as (network, a, b):
        network.set_loss(A, B, 0.25)
        for i in range(1000):
            a.send_sealed(b"\x00%d" % i, B)
        await trio.sleep(1)

        assert 700 < len(b.received) < 800
        assert len(set(b.received)) == len(b.received)


async def test_a_share_of_sealed_datagrams_comes_twice(autojump_clock: MockClock) -> None:
    async with pair() as (network, a, b):
        network.set_repeats(A, B, 0.25)
        for i in range(1000):
            a.send_sealed(b"\x00%d" % i, B)
        await trio.sleep(1)

        assert 1200 < len(b.received) < 1300
        assert len(set(b.received)) == 1000


async def test_sealed_datagrams_may_overtake_each_other(autojump_clock: MockClock) -> None:
    async with pair(jitter=0.5) as (_, a, b):
        for i in range(20):
            a.send_sealed(b"\x00%02d" % i, B)
        await trio.sleep(1)

        assert sorted(b.received) != b.received
        assert len(b.received) == 20


async def test_over_a_cut_link_sealed_datagrams_are_lost_and_do_not_wait(
    autojump_clock: MockClock,
) -> None:
    async with pair() as (network, a, b):
        network.cut(B, A)
        a.send_sealed(b"\x00lost", B)
        await trio.sleep(1)
        network.heal(A, B)
        a.send_sealed(b"\x00found", B)
        await trio.sleep(1)

        assert b.received == [(b"\x00found", A)]


async def test_a_link_can_be_cut_one_way(autojump_clock: MockClock) -> None:
    async with world() as w:
        connection, log = w.connect()
        await trio.sleep(1)
        there, back = Sealed(w.b), Sealed(w.a)

        w.network.cut_one_way(A, B)
        connection.send(b"waits")
        w.a.flush()
        w.a.send_sealed(b"\x00lost", B)
        assert w.accepted[0].connection is not None
        w.accepted[0].connection.send(b"arrives")
        w.b.flush()
        w.b.send_sealed(b"\x00arrives", A)
        await trio.sleep(20)

        assert w.accepted[0].messages == []
        assert log.messages == [b"arrives"]
        assert there.received == []
        assert back.received == [(b"\x00arrives", B)]

        w.network.heal(A, B)
        await trio.sleep(60)

        assert w.accepted[0].messages == [b"waits"]
        assert connection.is_open


@pytest.mark.parametrize("way", [(A, B), (B, A)])
async def test_a_cut_one_way_ends_connections_and_lets_none_come_about(
    autojump_clock: MockClock, way: tuple[Address, Address]
) -> None:
    async with world() as w:
        _, log = w.connect()
        await trio.sleep(1)

        w.network.cut_one_way(*way)
        _, late = w.connect()
        await trio.sleep(31)

        assert log.closed == (ErrorCode.IDLE, "idle timeout: b:1 went silent")
        assert w.accepted[0].closed == (ErrorCode.IDLE, "idle timeout: a:1 went silent")
        assert late.closed is not None
        assert late.closed[0] == TransportCode.HANDSHAKE_TIMEOUT


async def test_what_a_link_lost_one_way_after_the_other_heals_at_once(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        connection, _ = w.connect()
        await trio.sleep(1)

        w.network.cut_one_way(A, B)
        await trio.sleep(10)
        w.network.cut_one_way(B, A)
        await trio.sleep(10)
        w.network.heal(A, B)
        await trio.sleep(60)

        assert connection.is_open


async def test_a_crashed_transport_neither_sends_nor_hears_sealed_datagrams(
    autojump_clock: MockClock,
) -> None:
    async with pair() as (network, a, b):
        back = Sealed(a)
        a.send_sealed(b"\x00last", B)
        network.crash(A)
        a.send_sealed(b"\x00too late", B)
        await trio.sleep(1)
        assert b.received == [(b"\x00last", A)]

        successor = network.transport(A, on_bug=raise_)
        hearer = Sealed(successor)
        async with trio.open_nursery() as nursery:
            await nursery.start(successor.run)
            successor.send_sealed(b"\x00back", B)
            successor.send_sealed(b"\x00to myself", A)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()

        assert b.received[1:] == [(b"\x00back", A)]
        assert hearer.received == [(b"\x00to myself", A)]
        assert back.received == []


async def test_a_bug_in_who_hears_sealed_datagrams_is_reported(autojump_clock: MockClock) -> None:
    async with world() as w:
        w.b.receive_sealed(lambda datagram, source: raise_(ZeroDivisionError()))
        w.a.send_sealed(b"\x00bang", B)
        await trio.sleep(1)

        assert [type(bug) for bug in w.bugs] == [ZeroDivisionError]


async def test_one_seed_gives_one_history_of_sealed_datagrams(autojump_clock: MockClock) -> None:
    histories = []
    for _ in range(2):
        async with pair(jitter=0.5) as (network, a, b):
            network.set_loss(A, B, 0.3)
            network.set_repeats(A, B, 0.3)
            for i in range(100):
                a.send_sealed(b"\x00%d" % i, B)
            await trio.sleep(1)
            histories.append(b.received)

    assert histories[0] == histories[1]
    assert histories[0]
