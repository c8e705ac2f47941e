"""Shard ownership after a takeover by a standby that has no replica of the owner's counters."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from hashring import Member, NodeId, Ring, shard_of
from node.metrics.counters import Counters
from node.shards.replication import Replication
from node.shards.transfers.handoff import Handoff
from ringfence.limiter import Algorithm, Limit
from ringfence.peering.link import Link
from ringfence.wire import Copy, Pull
from tests.node.cluster import CONTAINMENT
from tests.node.shards.ownership.ownership_host import DAY, KEY, NOW, Host, member


def copied_and_away(*silent: str) -> tuple[Host, Host, Host]:
    """Return a standby with a replica, a node that took over without one, and the restarted
    owner."""
    before, standby, third, again = Host("a"), Host("b"), Host("c"), Host("a")
    before.start(5)
    before.copy_to(standby)
    third.cover("a", *silent)
    third.spend(2)
    return standby, third, again


def test_a_standby_without_a_replica_overwrites_no_unasked_nodes_counters() -> None:
    standby, third, _ = copied_and_away("b")
    sent: list[Copy] = []

    class Way:
        def call(self, make: Callable[[int], Copy], on_reply: object) -> None:
            sent.append(make(1))

    replication = Replication(
        third.name,
        third.ownership,
        third.sender,
        third.engine,
        Counters(),
        lambda name: cast(Link, Way()) if name == standby.name else None,
        lambda: NOW,
        CONTAINMENT,
        1000,
    )
    ring = Ring.of([Member(standby.name), Member(third.name)])
    replication.on_ring_change(Ring.of(()), ring, ring)
    list(replication.send_changes())
    assert not sent

    third.ask_late(standby)
    list(replication.send_changes())

    assert [copy.counts.unpack().keys for copy in sent] == [[KEY]]
    assert third.used == 7


def test_a_takeover_without_a_replica_is_not_replicated_to_the_next_owner() -> None:
    ring = Ring.of([Member(NodeId("b")), Member(NodeId("c"))])
    _, third = ring.owners(shard_of(KEY), 2)
    host, sent = Host(third), list[Copy]()

    class Way:
        def call(self, make: Callable[[int], Copy], on_reply: object) -> None:
            sent.append(make(1))

    replication = Replication(
        *(host.name, host.ownership, host.sender, host.engine, Counters()),
        *(lambda name: cast(Link, Way()), lambda: NOW, CONTAINMENT, 1000),
    )
    replication.on_ring_change(Ring.of(()), ring, ring)
    host.cover("a")
    host.spend(2)
    list(replication.send_changes())
    assert not sent


def test_a_receiver_requests_the_replica_that_the_sending_standby_lacked() -> None:
    standby, third, again = copied_and_away("b")

    again.pull(third)
    again.spend(1)
    assert again.to_ask == ["b"]
    again.ask_late(standby)
    assert not again.to_ask
    again.copy_to(standby)
    again.ask_late(standby)  # Counts that this node sent are not added again.

    assert again.used == 8


def test_a_receiver_without_data_requests_the_replica_that_the_standby_lacked() -> None:
    standby, third, again = copied_and_away("b")
    again.cover("c", "b")
    again.spend(1)

    again.pull(third)
    again.ask_late(standby)

    assert again.used == 8


def test_a_replica_of_the_senders_counters_is_no_base_below_them() -> None:
    restarted, next_owner, third = Host("a"), Host("b"), Host("c")
    third.cover("a")
    third.spend(1)
    restarted.pull(third)
    # The sender keeps a replica.
    next_owner.take(restarted, next_owner.ask(restarted, is_standby=True))

    restarted.pull(next_owner)

    assert restarted.used == 1


def test_the_sender_of_a_late_replica_is_asked_when_the_owner_has_nothing() -> None:
    before, second, third, again = Host("a"), Host("d"), Host("c"), Host("a")
    before.start(1)
    before.copy_to(second)
    second.cover("a")
    second.spend(1)
    second.copy_to(third)
    again.cover("b", "c")
    again.spend(1)

    again.ask_late(third)
    again.ownership.owner_has_nothing(shard_of(KEY), NOW)
    assert again.covered_owner == "d"
    again.pull(second)

    assert again.used == 3


@pytest.mark.parametrize("algorithm", [Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW_LOG])
def test_counters_that_began_with_the_same_units_count_these_once(algorithm: Algorithm) -> None:
    """The standby that took over has lost its log in a crash, so no member has this log."""
    limit = Limit.of_ns(1000, DAY, algorithm)
    owner, standby, again, last = (Host(name, limit) for name in "abcd")
    owner.start(3)
    owner.copy_to(standby)
    again.take_over_from_replica_at(standby, "e")
    for _ in range(2):  # the owner by the ring, and the member that the replica names
        again.ownership.owner_has_nothing(shard_of(KEY), NOW)
    again.spend(1)

    last.pull(again)
    last.spend(1)
    last.pull(owner)

    assert last.used == 5


def test_a_late_replica_of_a_member_that_returned_the_shard_adds_nothing() -> None:
    restarted, third, other = Host("a"), Host("c"), Host("b")
    restarted.cover("c", "b")
    third.cover("a")
    third.spend(1)
    third.copy_to(other)

    restarted.pull(third)
    assert restarted.to_ask == ["b"]
    restarted.ask_late(other)

    assert (restarted.used, restarted.to_ask) == (1, [])


def test_recalled_units_of_a_member_that_returned_the_shard_are_not_counted_again() -> None:
    restarted, third, other = Host("a"), Host("c"), Host("b")
    restarted.cover("c")
    restarted.spend(7)
    third.cover("a")
    third.spend(1)
    third.ownership.restore_lost({KEY: [0, 7]}, NOW)  # Another data center has the same 7 units.
    other.cover("a")
    other.spend(3)

    restarted.take(third, restarted.ask(third, is_standby=True))  # The sender keeps a replica.
    restarted.pull(other)
    restarted.continue_from(restarted.ask(third))

    assert restarted.used == 11
    assert restarted.covered_owner is None


def test_units_that_a_standby_received_as_a_replica_are_counted_once_when_it_returns() -> None:
    restarted, third = Host("a"), Host("c")
    restarted.cover("d")  # A silent member may have counters from before the restart.
    third.cover("a", "b")
    restarted.spend(3)
    third.spend(2)
    restarted.copy_to(third)

    restarted.pull(third)

    assert restarted.used == 5
    assert (restarted.covered_owner, restarted.to_ask) == ("d", ["b"])


def test_a_standby_merges_counts_from_a_takeover_without_replica_into_its_replica() -> None:
    standby, third, _ = copied_and_away("d", "b")

    standby.pull(third)

    assert standby.used == 7


def test_a_replica_with_units_of_the_arriving_log_is_no_base_below_it() -> None:
    """The first unit was counted in the replica and in the log."""
    restarted, blind, third = Host("a"), Host("b"), Host("c")
    blind.cover("a")
    blind.spend(1)
    blind.copy_to(third)
    blind.spend(2)
    third.cover("b")
    third.spend(4)
    third.copy_to(restarted)

    restarted.pull(blind)
    assert restarted.used == 3
    restarted.pull(third)

    assert restarted.used == 7


def test_a_standby_that_was_silent_uses_its_replica_of_the_owner() -> None:
    standby, third, _ = copied_and_away()
    assert third.to_ask == []  # The third member does not know the earlier standby.

    standby.pull(third)

    assert standby.used == 7


def test_counts_of_a_takeover_without_replica_do_not_replace_a_replica() -> None:
    standby, third, again = copied_and_away("b")
    copy = again.ask(standby)
    counts = copy.counts.unpack()
    again.ownership.take_over(shard_of(KEY), third.name, [(NOW, counts)], NOW)
    again.spend(1)  # The standby was asked first and did not answer.

    again.pull(third)

    assert again.used == 8


def test_a_takeover_without_a_replica_continues_from_another_standbys_replica() -> None:
    standby, third, _ = copied_and_away("b")
    standby.cover("a")
    standby.spend(1)

    third.pull(standby)

    assert third.used == 8
    assert not third.to_ask


def test_a_returned_transfer_keeps_the_possible_replica_holders() -> None:
    standby, third, again = copied_and_away("b")
    again.ask(third)  # The answer is lost.

    third.cover("a")
    third.ask_late(standby)

    assert third.used == 7


def test_a_silent_node_without_a_replica_may_receive_one() -> None:
    _, third, _ = copied_and_away("b")

    third.ask_late(Host("b"))

    assert third.used == 2
    assert not third.to_ask


async def test_a_silent_node_is_asked_for_its_replica_after_a_takeover(
    autojump_clock: MockClock,
) -> None:
    standby, _, _ = copied_and_away("b")
    host, reached = Host("c"), {NodeId("")}

    class Way:
        def call(
            self,
            make: Callable[[int], object],
            on_reply: Callable[[object], None],
            timeout: float | None = None,
        ) -> None:
            pull = make(1)
            assert isinstance(pull, Pull)
            on_reply(standby.sender.answer(host.name, pull, NOW, lambda shard: False))

    def link_to(name: NodeId) -> Link | None:
        return cast(Link, Way()) if name in reached else None

    async def reach(name: NodeId) -> None:
        await trio.lowlevel.checkpoint()

    handoff = Handoff(
        host.name,
        host.ownership,
        host.sender,
        Counters(),
        link_to,
        reach,
        lambda: NOW,
        CONTAINMENT,
    )
    ring = Ring.of([Member(standby.name), Member(host.name)])
    handoff.on_ring_change(Ring.of(()), ring, ring)
    handoff.on_offer(NodeId("a"), [shard_of(KEY)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handoff.run)
        await handoff.wait_all_fetched()
        host.spend(2)
        reached.add(standby.name)
        await trio.sleep(2)
        nursery.cancel_scope.cancel()

    assert host.covered_owner == "a"
    assert host.used == 7


def test_units_of_a_member_whose_replica_was_found_count_once_when_it_returns_the_shard() -> None:
    blind, standby, restarted = Host("a"), Host("b"), Host("c")
    blind.cover("c")
    blind.spend(3)
    blind.copy_to(standby)
    restarted.cover("d", "b")
    restarted.spend(1)
    restarted.ask_late(standby)
    assert restarted.used == 4

    restarted.pull(blind)

    assert restarted.used == 4


def test_a_node_without_counters_continues_from_those_that_a_standby_returns() -> None:
    before, standby, again = Host("a"), Host("b"), Host("a")
    before.start(3)
    before.copy_to(standby)
    standby.cover("a")
    standby.spend(2)
    again.cover("c", "d")  # Restarted; the ring now names another owner.
    again.spend(1)

    again.pull(standby)

    assert again.used == 6
    assert not again.to_ask  # A replica of the standby's counters would count its hits twice.


def test_a_damped_member_still_has_the_counters_of_a_replica() -> None:
    damped, standby, blind = Host("a"), Host("b"), Host("c")
    damped.start(3)
    damped.copy_to(standby)
    blind.ownership.on_member_change(member("a"), replace(member("a"), forward_only=True))
    blind.cover("b")
    blind.spend(1)

    blind.continue_from(blind.ask(standby))
    blind.pull(damped)

    assert blind.used == 4


@pytest.mark.parametrize("receiver_has_replica", [True, False])
def test_a_replica_of_the_owner_is_the_base_of_a_cover(*, receiver_has_replica: bool) -> None:
    """The owner counted in this member's place, and its log was added again."""
    owner, standby, receiver = Host("c"), Host("b"), Host("a")
    owner.cover("a")
    owner.spend(3)
    owner.copy_to(receiver if receiver_has_replica else standby)
    standby.cover("c")
    standby.spend(1)
    receiver.pull(standby)
    assert receiver.used == 4

    receiver.pull(owner)

    assert receiver.used == 4
