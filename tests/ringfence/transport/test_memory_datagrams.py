"""Sealed datagrams on the memory transport, on trio's virtual clock."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
from trio.testing import MockClock

from ringfence.errors import LocalProtocolError
from ringfence.transport.close_reason import TransportCode
from ringfence.transport.interface import MAX_SEALED, Address
from ringfence.transport.memory import MemoryNetwork, MemoryTransport
from ringfence.wire.errors import ErrorCode
from tests.ringfence.transport.memory_world import A, B, world


def raise_(error: Exception) -> None:
    raise error


class Sealed:
    """Sealed datagrams that one transport receives, and their times."""

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
    """Yield a network, a transport at A, and the sealed datagrams that B receives."""
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


async def test_an_invalid_sealed_datagram_raises_in_the_sender(
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


async def test_a_share_of_sealed_datagrams_arrives_twice(autojump_clock: MockClock) -> None:
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
async def test_a_cut_in_one_direction_ends_connections_and_prevents_new_ones(
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


async def test_a_link_that_was_cut_one_way_after_the_other_heals_at_once(
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


async def test_a_crashed_transport_neither_sends_nor_receives_sealed_datagrams(
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


async def test_a_bug_in_a_receiver_of_sealed_datagrams_is_reported(
    autojump_clock: MockClock,
) -> None:
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
