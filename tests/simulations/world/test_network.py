"""Links with faults other than cuts: which datagrams arrive, and when."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest
import trio
from trio.testing import MockClock

from ringfence.transport.interface import Address, Connection
from simulations.scenarios.scenario import Network
from simulations.world.network import SimulatedNetwork

A: Address = ("a", 1)
B: Address = ("b", 1)
DELAY = 0.01
MANY = 1000


@dataclass(eq=False)
class Log:
    """Handler that records received messages."""

    messages: list[bytes] = field(default_factory=list)
    is_open: bool = False
    is_closed: bool = False

    def on_open(self, connection: Connection) -> None:
        self.is_open = True

    def on_message(self, payload: bytes) -> None:
        self.messages.append(payload)

    def on_close(self, code: int, reason: str) -> None:
        self.is_closed = True


class World:
    """Transports at A and B, ten milliseconds apart; B records messages with their times."""

    def __init__(self) -> None:
        self.network = SimulatedNetwork(Random(1), Network(), jitter=0.0)
        self.network.set_delay(A, B, DELAY)
        self.came: list[bytes] = []
        self.times: list[float] = []
        self.logs: list[Log] = []
        self.bugs: list[Exception] = []
        self.a = self.network.transport(A, on_bug=self.bugs.append)
        self.b = self.network.transport(B, on_bug=self.bugs.append, accept=self.accept)
        self.b.receive_sealed(self.deliver)

    def accept(self, connection: Connection) -> Log:
        self.logs.append(Log())
        return self.logs[-1]

    def deliver(self, datagram: bytes, source: Address) -> None:
        assert source == A
        self.came.append(datagram)
        self.times.append(trio.current_time())

    async def send(self, *datagrams: bytes) -> None:
        for datagram in datagrams:
            self.a.send_sealed(datagram, B)
        await trio.sleep(2 * DELAY)


@asynccontextmanager
async def running() -> AsyncIterator[World]:
    world = World()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.a.run)
        await nursery.start(world.b.run)
        yield world
        nursery.cancel_scope.cancel()
    assert world.bugs == []


def numbered(count: int) -> list[bytes]:
    """Return datagrams that are all different."""
    return [bytes([0, *number.to_bytes(3, "big"), 7, 7, 7, 7]) for number in range(count)]


async def test_a_clogged_link_holds_datagrams_and_delivers_them_together(
    autojump_clock: MockClock,
) -> None:
    async with running() as world:
        world.network.clog(A, B)
        await world.send(b"\0one", b"\0two")
        await trio.sleep(5)
        assert world.came == []

        world.network.unclog(A, B)
        opened = trio.current_time()
        await world.send(b"\0three")

        assert world.came == [b"\0one", b"\0two", b"\0three"]
        assert world.times == [pytest.approx(opened + DELAY)] * 3


async def test_a_clogged_link_holds_messages_too_and_keeps_the_connection(
    autojump_clock: MockClock,
) -> None:
    async with running() as world:
        mine = Log()
        connection = world.a.connect(B, mine)
        world.a.flush()
        await trio.sleep(0.1)
        world.network.clog(A, B)
        connection.send(b"one")
        world.a.flush()
        await trio.sleep(2)
        assert world.logs[0].messages == []

        world.network.unclog(A, B)
        await trio.sleep(0.1)

        assert world.logs[0].messages == [b"one"]
        assert not mine.is_closed


async def test_a_clogged_link_holds_the_handshake_of_a_new_connection(
    autojump_clock: MockClock,
) -> None:
    async with running() as world:
        world.network.clog(A, B)
        mine = Log()
        world.a.connect(B, mine)
        await trio.sleep(2)
        assert not mine.is_open

        world.network.unclog(A, B)
        await trio.sleep(0.1)

        assert mine.is_open


async def test_old_datagrams_are_replayed_within_a_minute_besides_new_ones(
    autojump_clock: MockClock,
) -> None:
    sent = numbered(MANY)
    async with running() as world:
        world.network.set_replay(A, B, 0.3)
        await world.send(*sent)
        await trio.sleep(61)
        at_most = len(world.came)
        await trio.sleep(600)

    assert set(world.came) == set(sent)
    assert len(world.came) == at_most
    assert 0.2 * MANY < len(world.came) - MANY < 0.4 * MANY
    assert max(world.times) > 30


async def test_without_replay_no_datagram_arrives_twice(autojump_clock: MockClock) -> None:
    sent = numbered(MANY)
    async with running() as world:
        world.network.set_replay(A, B, 0.0)
        await world.send(*sent)
        await trio.sleep(61)

    assert world.came == sent


async def test_corrupt_datagrams_are_changed_or_truncated_and_still_recognized(
    autojump_clock: MockClock,
) -> None:
    sent = numbered(MANY)
    async with running() as world:
        world.network.set_corrupt(A, B, 0.5)
        await world.send(*sent)

    spoilt = [(was, now) for was, now in zip(sent, world.came, strict=True) if was != now]
    assert 0.4 * MANY < len(spoilt) < 0.6 * MANY
    assert {now[:1] for _, now in spoilt} == {b"\0"}
    short = [now for was, now in spoilt if len(now) < len(was)]
    assert 0.1 * len(spoilt) < len(short) < 0.3 * len(spoilt)
    for was, now in spoilt:
        if len(now) == len(was):
            flipped = int.from_bytes(was, "big") ^ int.from_bytes(now, "big")
            assert flipped.bit_count() == 1


async def test_a_busy_host_handles_messages_in_turn_and_drops_overflow(
    autojump_clock: MockClock,
) -> None:
    sent = numbered(MANY)
    async with running() as world:
        world.network.set_cost(B, 0.02)
        began = trio.current_time()
        await world.send(*sent)
        await trio.sleep(5)

        assert world.came == sent[: len(world.came)]
        assert 45 < len(world.came) < 55
        gaps = [late - early for early, late in pairwise(world.times)]
        assert gaps == [pytest.approx(0.02)] * len(gaps)
        assert world.times[0] == pytest.approx(began + DELAY + 0.02)
        longest = world.times[-1] - (began + DELAY)
        assert world.network.longest_queue_s == pytest.approx(longest)

        world.network.set_cost(B, 0.0)
        rested = trio.current_time()
        await world.send(b"\0now")
        assert world.times[-1] == pytest.approx(rested + DELAY)


async def test_bursts_lose_many_consecutive_datagrams_and_otherwise_none(
    autojump_clock: MockClock,
) -> None:
    sent = numbered(MANY)
    async with running() as world:
        world.network.set_bursts(A, B, 1.0)
        await world.send(*sent)

    came = set(world.came)
    lost = [datagram not in came for datagram in sent]
    bursts = sum(late and not early for early, late in pairwise([False, *lost]))
    assert 0.02 * MANY < sum(lost) < 0.15 * MANY
    assert sum(lost) > 2 * bursts


async def test_spikes_delay_some_datagrams_much_more_than_others(
    autojump_clock: MockClock,
) -> None:
    async with running() as world:
        world.network.set_spikes(A, B, 0.05)
        await world.send(*numbered(MANY))
        await trio.sleep(10)

    took = sorted(world.times)
    assert len(took) == MANY
    assert took[0] > DELAY
    assert took[MANY // 2] < DELAY + 0.05
    assert 0.3 < took[-1] <= DELAY + 5


async def test_a_reset_ends_the_connections_of_a_link_on_both_sides(
    autojump_clock: MockClock,
) -> None:
    async with running() as world:
        mine = Log()
        connection = world.a.connect(B, mine)
        world.a.flush()
        await trio.sleep(0.1)
        assert mine.is_open
        connection.send(b"lost")
        world.a.flush()

        world.network.reset(A, B)
        await trio.sleep(0.1)

        assert mine.is_closed
        assert world.logs[0].is_closed
        assert world.logs[0].messages == []
        again = Log()
        world.a.connect(B, again)
        world.a.flush()
        await trio.sleep(0.1)
        assert again.is_open


async def test_a_fault_of_one_direction_does_not_affect_the_other(
    autojump_clock: MockClock,
) -> None:
    sent = numbered(MANY)
    async with running() as world:
        world.network.set_bursts(B, A, 1.0)
        world.network.set_corrupt(B, A, 1.0)
        await world.send(*sent)

    assert world.came == sent
