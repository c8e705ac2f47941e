"""Stall recovery: a resumed node waits for the decisions that others made during the stall."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from types import SimpleNamespace
from typing import cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from hashring import NodeId
from node.context.node_context import NodeContext
from node.metrics.counters import Counters
from node.shards.stall_recovery import STALLED_NS, StallRecovery, StallWatch
from ringfence.client.decision import Decision
from ringfence.peering.link import LinkSettings
from ringfence.wire import AskTakenOver, Message, Source, TakenOver
from tests.node.cluster import address_of, owned, world

MS = 1_000_000
A, B = NodeId("a"), NodeId("b")


@dataclass
class Member:
    """Link to a member, with its unanswered requests."""

    asked: list[Callable[[object], None]] = field(default_factory=list)

    def call(
        self,
        make: Callable[[int], Message],
        on_reply: Callable[[object], None],
        timeout: float | None = None,
    ) -> None:
        assert make(1) == AskTakenOver(1)
        self.asked.append(on_reply)

    def answer(self, *shards: int) -> None:
        self.asked.pop(0)(TakenOver(1, [*shards]))

    def lose(self) -> None:
        """Close the connection before an answer arrives."""
        self.asked.pop(0)(None)


class Stopped:
    """Node that a test can suspend, with a record of its recoveries."""

    def __init__(self, *names: NodeId) -> None:
        self.members = {name: Member() for name in names}
        self.now = 10_000 * MS
        self.is_suspended = False
        self.reclaimed: list[tuple[NodeId, list[int]]] = []
        self.on_reclaimed: list[Callable[[], None]] = []
        self.waits_ms: list[float] = []
        """Duration of each wait of decisions."""
        self._suspended_at = 0
        self._timers: list[tuple[int, Callable[[], None]]] = []
        self._recovery = StallRecovery(
            lambda: list(self.members.items()),
            self._reclaim,
            self._call_later,
            partial(self._suspend, True),
            partial(self._suspend, False),
        )

    def read(self, waited_ms: float) -> bool:
        """Read a datagram that waited for some time; return whether a recovery began."""
        return self._recovery.notice(round(waited_ms * MS), self.now)

    def advance(self, ms: float) -> None:
        """Advance the time."""
        until = self.now + round(ms * MS)
        while due := [timer for timer in self._timers if timer[0] <= until]:
            first = min(due, key=lambda timer: timer[0])
            self._timers.remove(first)
            self.now = max(self.now, first[0])
            first[1]()
        self.now = until

    def unanswered(self) -> dict[NodeId, int]:
        return {name: len(member.asked) for name, member in self.members.items() if member.asked}

    def _reclaim(self, name: NodeId, shards: list[int], done: Callable[[], None]) -> None:
        self.reclaimed.append((name, shards))
        if shards:
            self.on_reclaimed.append(done)
        else:
            done()

    def _call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append((self.now + round(seconds * 1e9), call))

    def _suspend(self, is_suspended: bool) -> None:
        assert self.is_suspended != is_suspended
        self.is_suspended = is_suspended
        if is_suspended:
            self._suspended_at = self.now
        else:
            self.waits_ms.append((self.now - self._suspended_at) / MS)


# When a recovery begins


def test_a_datagram_delayed_as_long_as_a_takeover_starts_a_recovery() -> None:
    node = Stopped(A, B)

    assert not node.read(STALLED_NS / MS - 0.1)
    assert node.unanswered() == {}
    assert not node.is_suspended

    assert node.read(STALLED_NS / MS)
    assert node.unanswered() == {A: 1, B: 1}
    assert node.is_suspended


def test_a_node_without_other_members_is_not_suspended() -> None:
    node = Stopped()

    assert not node.read(1000)
    assert not node.is_suspended


def test_datagrams_from_before_a_recovery_start_no_second_recovery() -> None:
    node = Stopped(A)
    assert node.read(500)
    node.advance(20)
    node.members[A].answer()
    node.advance(80)

    assert not node.read(100)
    assert not node.read(480)


def test_a_second_stall_starts_another_recovery() -> None:
    node = Stopped(A)
    node.read(500)
    node.advance(1)
    node.members[A].answer()
    node.advance(300)

    assert node.read(299)
    assert node.is_suspended


# How long decisions wait


def test_decisions_wait_until_every_member_has_answered() -> None:
    node = Stopped(A, B)
    node.read(500)

    node.members[A].answer()
    assert node.is_suspended

    node.members[B].answer()
    assert not node.is_suspended


def test_decisions_wait_until_shards_are_recovered_after_a_takeover() -> None:
    node = Stopped(A, B)
    node.read(500)
    node.members[A].answer(3, 4)
    node.members[B].answer()

    assert node.reclaimed == [(A, [3, 4]), (B, [])]
    assert node.is_suspended

    node.on_reclaimed.pop()()
    assert not node.is_suspended


def test_decisions_do_not_wait_longer_for_silent_members() -> None:
    node = Stopped(A, B)
    node.read(500)
    node.members[A].answer()

    node.advance(499)
    assert node.is_suspended
    node.advance(1)
    assert not node.is_suspended

    node.members[B].answer()  # The answer is too late, but its shards are fetched anyway.
    assert node.reclaimed[-1][0] == B
    assert not node.is_suspended


def test_a_disconnected_member_is_asked_again_until_the_recovery_ends() -> None:
    node = Stopped(A, B)
    node.read(500)
    for _ in range(3):
        node.members[A].lose()
        assert node.unanswered() == {B: 1}
        node.advance(20)
    assert node.unanswered() == {A: 1, B: 1}

    node.members[A].answer()
    node.members[B].lose()
    node.advance(500)

    assert not node.is_suspended
    # Member B was asked once more without an answer, and then not again.
    assert node.unanswered() == {B: 1}
    node.members[B].lose()
    node.advance(500)
    assert node.unanswered() == {}


def test_answers_from_before_a_second_stall_do_not_end_the_wait() -> None:
    node = Stopped(A, B)
    node.read(500)
    node.members[A].answer()
    node.advance(300)  # Suspended again before B answered.

    assert node.read(299)
    assert node.is_suspended
    assert node.unanswered() == {A: 1, B: 2}

    node.members[B].answer()
    node.members[A].answer()
    assert node.is_suspended  # Takeovers by B after its first answer are not known yet.
    node.members[B].answer()
    assert not node.is_suspended


def test_the_wait_of_decisions_counts_from_the_second_stall() -> None:
    node = Stopped(A)
    node.read(500)
    node.advance(300)
    node.read(299)

    node.advance(499)
    assert node.is_suspended
    node.advance(1)
    assert not node.is_suspended


# Nodes that are slow for a long time


def test_a_slow_node_recovers_once_a_second_and_decides_in_between() -> None:
    node = Stopped(A, B)
    lag_ms, seconds = 100, 10
    began, suspended_ms = 0, 0
    answers: list[tuple[int, Callable[[object], None]]] = []
    for _ in range(seconds * 200):
        while (
            answers and answers[0][0] <= node.now
        ):  # Answers are delayed like all incoming messages.
            answers.pop(0)[1](TakenOver(1, []))
        began += node.read(lag_ms)
        for member in node.members.values():
            answers += [(node.now + lag_ms * MS, reply) for reply in member.asked]
            member.asked.clear()
        suspended_ms += 5 * node.is_suspended
        node.advance(5)

    assert began == seconds
    assert suspended_ms <= seconds * lag_ms


def test_a_stall_of_a_slow_node_starts_a_recovery_immediately() -> None:
    node = Stopped(A)
    for _ in range(40):
        node.read(100)
        if node.unanswered():
            node.members[A].answer()
        node.advance(5)

    node.advance(70)

    assert node.read(140)
    assert node.is_suspended


def test_a_stall_is_detected_even_if_an_older_datagram_is_read_first() -> None:
    node = Stopped(A)
    node.read(500)
    node.members[A].answer()
    node.advance(300)

    assert not node.read(301)
    assert node.read(200)


def test_a_node_with_repeated_stalls_decides_between_them() -> None:
    node = Stopped(A)
    for _ in range(100):  # The node runs 20 ms of every 100 ms, and never reads an answer in time.
        node.read(80)
        node.members[A].asked.clear()
        node.advance(20)
        node.advance(80)

    assert len(node.waits_ms) >= 12
    assert max(node.waits_ms) <= 700


waits = st.tuples(st.integers(0, 120), st.integers(0, 300))


@given(st.lists(waits, max_size=60), st.booleans())
def test_requests_received_during_a_stall_wait_for_a_later_recovery(
    reads: list[tuple[int, int]], is_answered: bool
) -> None:
    node = Stopped(A)
    began, rounds, was_stopped = -1, 0, False
    for pause_ms, waited_ms in reads:
        node.advance(pause_ms)
        rounds = rounds if node.is_suspended else 0
        is_late = waited_ms * MS >= STALLED_NS
        was_stopped |= is_late and pause_ms * MS >= STALLED_NS
        may_begin = rounds < 3
        if node.read(waited_ms):
            began, rounds, was_stopped = node.now, rounds + 1, False
        if is_late and was_stopped and may_begin:
            assert node.now - waited_ms * MS <= began
        if is_answered and node.unanswered():
            node.members[A].answer()


# Whole nodes


@pytest.mark.parametrize("stop_s", [0.3, 0.6, 1.2])
async def test_checks_in_flight_during_a_stall_of_their_owner_count_once(
    stop_s: float, autojump_clock: MockClock
) -> None:
    async with world() as w, w.client(standby_after=0.05, denials=0, leases=False) as limiter:
        tenant = owned(w.rules, "tenant", "b")
        decisions: list[Decision] = []

        async def ask() -> None:
            decisions.append(await limiter.check("api", tenant))

        for _ in range(3):
            await ask()
        await trio.sleep(0.3)  # until the standby has its replica
        w.network.pause(address_of("b"))
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask)
            await trio.sleep(stop_s)
            w.network.resume(address_of("b"))
        await trio.sleep(2)
        peeked = await limiter.peek("api", tenant)

        assert {decision.source for decision in decisions} == {Source.OWNER, Source.STANDBY}
        assert peeked.remaining == 100 - len(decisions)
        assert w.count("b", "stalls") == 1


async def test_a_resumed_node_admits_only_after_it_received_its_standbys_admissions(
    autojump_clock: MockClock,
) -> None:
    link = LinkSettings(deadline=0.25)
    async with (
        world() as w,
        w.client(link=link, standby_after=0.05, denials=0, leases=False) as limiter,
        w.client(denials=0, leases=False) as patient,
    ):
        client = owned(w.rules, "client", "b")  # 5 a minute
        for _ in range(3):
            await limiter.check("api", client)
        await trio.sleep(0.3)
        w.network.pause(address_of("b"))
        for _ in range(2):
            decision = await limiter.check("api", client)
            assert (decision.allowed, decision.source) == (True, Source.STANDBY)

        await trio.sleep(
            0.25
        )  # The owner must not count these two, since their deadline has passed.
        decisions: list[Decision] = []

        async def ask() -> None:
            decisions.append(await patient.check("api", client))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)  # This client waits only for the owner.
            await trio.sleep(0.15)
            w.network.resume(address_of("b"))

        assert [(each.allowed, each.source) for each in decisions] == [(False, Source.OWNER)]


async def test_shards_without_decisions_do_not_delay_an_owner_that_was_declared_dead(
    autojump_clock: MockClock,
) -> None:
    """After the death, both standbys have together all of its thousands of shards."""
    async with world() as w, w.client(denials=0, leases=False) as limiter:
        for first, second in combinations(w.nodes, 2):
            w.network.set_delay(address_of(first), address_of(second), 0.02)
        tenants = [owned(w.rules, "tenant", "b", number) for number in range(20)]
        left: list[set[int | None]] = []

        async def ask() -> None:
            left.append({each.remaining for each in await limiter.check_many("api", tenants)})

        await ask()
        await trio.sleep(0.3)  # until the standbys have their replicas
        w.network.pause(address_of("b"))
        await trio.sleep(4)
        assert [member.name for member in w.nodes["a"].cluster.ring.members] == ["a", "c"]
        await ask()
        w.network.resume(address_of("b"))
        for _ in range(20):
            await trio.sleep(0.05)
            await ask()

        assert left == [{100 - number} for number in range(1, 23)]


def test_a_node_that_stalls_repeatedly_logs_this_once_in_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now, counters = 0, Counters()
    transport = SimpleNamespace(held_up_ns=100 * MS)
    running = SimpleNamespace(transport=transport, uptime=lambda: now)
    context = SimpleNamespace(running=running, name=A, counters=counters)
    recovery = SimpleNamespace(notice=lambda held_up_ns, at: True)
    watch = StallWatch(cast(NodeContext, context), cast(StallRecovery, recovery))

    with caplog.at_level("INFO"):
        for now in range(0, 25_000 * MS, 500 * MS):  # noqa: B007 - the node reads it
            watch.notice()

    assert len(caplog.messages) == 3
    assert all("datagram_waited_ms=100" in line for line in caplog.messages)
    assert counters.as_dict()["stalls"] == 50
