"""A node that was stopped decides nothing until it knows what was decided in its place."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from hashring import NodeId
from node.stall_recovery import STALLED_NS, StallRecovery
from ringfence.client.decision import Decision
from ringfence.client.link import LinkSettings
from ringfence.wire import AskTakenOver, Message, Source, TakenOver
from tests.node.cluster import address_of, owned, world

MS = 1_000_000
A, B = NodeId("a"), NodeId("b")


@dataclass
class Member:
    """The link to a member, with the questions that it has not answered."""

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
        """The connection ends before an answer has come."""
        self.asked.pop(0)(None)


class Stopped:
    """A node that may be stopped, and what its recovery does."""

    def __init__(self, *names: NodeId) -> None:
        self.members = {name: Member() for name in names}
        self.now = 10_000 * MS
        self.is_suspended = False
        self.reclaimed: list[tuple[NodeId, list[int]]] = []
        self.on_reclaimed: list[Callable[[], None]] = []
        self._timers: list[tuple[int, Callable[[], None]]] = []
        self._recovery = StallRecovery(
            lambda: list(self.members.items()),
            self._reclaim,
            self._call_later,
            partial(self._suspend, True),
            partial(self._suspend, False),
        )

    def read(self, waited_ms: float) -> bool:
        """Read a datagram that waited so long; return whether a recovery began."""
        return self._recovery.notice(round(waited_ms * MS), self.now)

    def go_on(self, ms: float) -> None:
        """Let time pass."""
        until = self.now + round(ms * MS)
        while due := [timer for timer in self._timers if timer[0] <= until]:
            first = min(due, key=lambda timer: timer[0])
            self._timers.remove(first)
            self.now = max(self.now, first[0])
            first[1]()
        self.now = until

    def open_questions(self) -> dict[NodeId, int]:
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


# When a recovery begins


def test_a_datagram_that_waited_as_long_as_a_takeover_needs_begins_a_recovery() -> None:
    node = Stopped(A, B)

    assert not node.read(STALLED_NS / MS - 0.1)
    assert node.open_questions() == {}
    assert not node.is_suspended

    assert node.read(STALLED_NS / MS)
    assert node.open_questions() == {A: 1, B: 1}
    assert node.is_suspended


def test_a_node_without_other_members_is_not_suspended() -> None:
    node = Stopped()

    assert not node.read(1000)
    assert not node.is_suspended


def test_datagrams_that_came_before_the_recovery_began_begin_no_other() -> None:
    node = Stopped(A)
    assert node.read(500)
    node.go_on(20)
    node.members[A].answer()
    node.go_on(80)

    assert not node.read(100)
    assert not node.read(480)


def test_a_second_stop_begins_another_recovery() -> None:
    node = Stopped(A)
    node.read(500)
    node.go_on(1)
    node.members[A].answer()
    node.go_on(300)

    assert node.read(299)
    assert node.is_suspended


# Until when decisions wait


def test_decisions_wait_until_every_member_has_answered() -> None:
    node = Stopped(A, B)
    node.read(500)

    node.members[A].answer()
    assert node.is_suspended

    node.members[B].answer()
    assert not node.is_suspended


def test_decisions_wait_until_the_shards_that_were_taken_over_are_back() -> None:
    node = Stopped(A, B)
    node.read(500)
    node.members[A].answer(3, 4)
    node.members[B].answer()

    assert node.reclaimed == [(A, [3, 4]), (B, [])]
    assert node.is_suspended

    node.on_reclaimed.pop()()
    assert not node.is_suspended


def test_decisions_do_not_wait_longer_for_members_that_do_not_answer() -> None:
    node = Stopped(A, B)
    node.read(500)
    node.members[A].answer()

    node.go_on(499)
    assert node.is_suspended
    node.go_on(1)
    assert not node.is_suspended

    node.members[B].answer()  # Too late: its shards are fetched all the same.
    assert node.reclaimed[-1][0] == B
    assert not node.is_suspended


def test_a_member_whose_connection_ended_is_asked_again_until_the_recovery_is_over() -> None:
    node = Stopped(A, B)
    node.read(500)
    for _ in range(3):
        node.members[A].lose()
        assert node.open_questions() == {B: 1}
        node.go_on(20)
    assert node.open_questions() == {A: 1, B: 1}

    node.members[A].answer()
    node.members[B].lose()
    node.go_on(500)

    assert not node.is_suspended
    assert node.open_questions() == {B: 1}  # It was asked once more, in vain, and then no more.
    node.members[B].lose()
    node.go_on(500)
    assert node.open_questions() == {}


def test_answers_from_before_a_second_stop_do_not_end_the_wait() -> None:
    node = Stopped(A, B)
    node.read(500)
    node.members[A].answer()
    node.go_on(300)  # Stopped again, before B has answered.

    assert node.read(299)
    assert node.is_suspended
    assert node.open_questions() == {A: 1, B: 2}

    node.members[B].answer()
    node.members[A].answer()
    assert node.is_suspended  # What B takes over since its first answer is not known yet.
    node.members[B].answer()
    assert not node.is_suspended


def test_the_time_that_decisions_wait_counts_from_the_second_stop() -> None:
    node = Stopped(A)
    node.read(500)
    node.go_on(300)
    node.read(299)

    node.go_on(499)
    assert node.is_suspended
    node.go_on(1)
    assert not node.is_suspended


# At nodes


@pytest.mark.parametrize("stop_s", [0.3, 0.6, 1.2])
async def test_checks_in_flight_while_their_owner_is_stopped_are_counted_once(
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


async def test_a_node_that_was_stopped_admits_nothing_before_it_knows_what_its_standby_admitted(
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

        await trio.sleep(0.25)  # The owner is to count these two no more: their deadline is over.
        decisions: list[Decision] = []

        async def ask() -> None:
            decisions.append(await patient.check("api", client))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)  # It waits for the owner alone.
            await trio.sleep(0.15)
            w.network.resume(address_of("b"))

        assert [(each.allowed, each.source) for each in decisions] == [(False, Source.OWNER)]
