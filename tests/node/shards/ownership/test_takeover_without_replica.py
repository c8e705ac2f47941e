"""Shard ownership after a takeover by a standby that has no replica of the owner's counters."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import trio
from trio.testing import MockClock

from hashring import Member, NodeId, Ring, shard_of
from node.metrics.counters import Counters
from node.shards.replication import Replication, as_snapshot
from node.shards.transfers.handoff import Handoff
from ringfence.peering.link import Link
from ringfence.wire import Copy, Pull
from tests.node.cluster import CONTAINMENT
from tests.node.shards.ownership.ownership_host import KEY, NOW, Host, member


def copied_and_away(*silent: str) -> tuple[Host, Host, Host]:
    """Return a standby with a replica, a node that took over without one, and the restarted
    owner."""
    before, standby, stand_in, again = Host("a"), Host("b"), Host("c"), Host("a")
    before.ownership.start([shard_of(KEY)])
    before.spend(5)
    before.copy_to(standby)
    stand_in.stand_in_for("a", *silent)
    stand_in.spend(2)
    return standby, stand_in, again


def test_a_standby_without_a_replica_overwrites_no_unasked_nodes_counters() -> None:
    standby, stand_in, _ = copied_and_away("b")
    sent: list[Copy] = []

    class Way:
        def call(self, make: Callable[[int], Copy], on_reply: object) -> None:
            sent.append(make(1))

    replication = Replication(
        stand_in.name,
        stand_in.ownership,
        stand_in.sender,
        stand_in.engine,
        Counters(),
        lambda name: cast(Link, Way()) if name == standby.name else None,
        lambda: NOW,
        CONTAINMENT,
    )
    replication.on_ring_change(Ring.of(()), Ring.of([Member(standby.name), Member(stand_in.name)]))
    list(replication.send_changes())
    assert not sent

    stand_in.hear_out(standby)
    list(replication.send_changes())

    assert [copy.counts.keys for copy in sent] == [[KEY]]
    assert stand_in.used == 7


def test_a_takeover_without_a_replica_is_not_replicated_to_the_next_owner() -> None:
    ring = Ring.of([Member(NodeId("b")), Member(NodeId("c"))])
    _, stand_in = ring.owners(shard_of(KEY), 2)
    host, sent = Host(stand_in), list[Copy]()

    class Way:
        def call(self, make: Callable[[int], Copy], on_reply: object) -> None:
            sent.append(make(1))

    replication = Replication(
        *(host.name, host.ownership, host.sender, host.engine, Counters()),
        *(lambda name: cast(Link, Way()), lambda: NOW, CONTAINMENT),
    )
    replication.on_ring_change(Ring.of(()), ring)
    host.stand_in_for("a")
    host.spend(2)
    list(replication.send_changes())
    assert not sent


def test_a_receiver_requests_the_replica_that_the_sending_standby_lacked() -> None:
    standby, stand_in, again = copied_and_away("b")

    again.take(stand_in, again.ask(stand_in))
    again.spend(1)
    assert again.to_ask == ["b"]
    again.hear_out(standby)
    assert not again.to_ask
    again.copy_to(standby)
    again.hear_out(standby)  # Counts that this node sent are not added again.

    assert again.used == 8


def test_a_receiver_without_data_requests_the_replica_that_the_standby_lacked() -> None:
    standby, stand_in, again = copied_and_away("b")
    again.stand_in_for("c", "b")
    again.spend(1)

    again.take(stand_in, again.ask(stand_in))
    again.hear_out(standby)

    assert again.used == 8


def test_a_replica_of_the_senders_counters_is_no_base_below_them() -> None:
    restarted, next_owner, stand_in = Host("a"), Host("b"), Host("c")
    stand_in.stand_in_for("a")
    stand_in.spend(1)
    restarted.take(stand_in, restarted.ask(stand_in))
    next_owner.take(restarted, next_owner.ask(restarted, is_standby=True))  # It keeps a replica.

    restarted.take(next_owner, restarted.ask(next_owner))

    assert restarted.used == 1


def test_a_late_replica_of_a_member_that_returned_the_shard_adds_nothing() -> None:
    restarted, stand_in, other = Host("a"), Host("c"), Host("b")
    restarted.stand_in_for("c", "b")
    stand_in.stand_in_for("a")
    stand_in.spend(1)
    stand_in.copy_to(other)

    restarted.take(stand_in, restarted.ask(stand_in))
    assert restarted.to_ask == ["b"]
    restarted.hear_out(other)

    assert (restarted.used, restarted.to_ask) == (1, [])


def test_units_that_a_standby_received_as_a_replica_are_counted_once_when_it_returns() -> None:
    restarted, stand_in = Host("a"), Host("c")
    restarted.stand_in_for("d")  # A silent member may have counters from before the restart.
    stand_in.stand_in_for("a", "b")
    restarted.spend(3)
    stand_in.spend(2)
    restarted.copy_to(stand_in)

    restarted.take(stand_in, restarted.ask(stand_in))

    assert restarted.used == 5
    assert (restarted.covered_owner, restarted.to_ask) == ("d", ["b"])


def test_a_standby_merges_counts_from_a_takeover_without_replica_into_its_replica() -> None:
    standby, stand_in, _ = copied_and_away("d", "b")

    standby.take(stand_in, standby.ask(stand_in))

    assert standby.used == 7


def test_a_standby_that_was_silent_uses_its_replica_of_the_owner() -> None:
    standby, stand_in, _ = copied_and_away()
    assert stand_in.to_ask == []  # It does not know the standby before it.

    standby.take(stand_in, standby.ask(stand_in))

    assert standby.used == 7


def test_counts_of_a_takeover_without_replica_do_not_replace_a_replica() -> None:
    standby, stand_in, again = copied_and_away("b")
    copy = again.ask(standby)
    counts = as_snapshot(copy.counts)
    again.ownership.take_over(shard_of(KEY), stand_in.name, [(NOW, counts)], NOW)
    again.spend(1)  # The standby was asked first and did not answer.

    again.take(stand_in, again.ask(stand_in))

    assert again.used == 8


def test_a_takeover_without_a_replica_continues_from_another_standbys_replica() -> None:
    standby, stand_in, _ = copied_and_away("b")
    standby.stand_in_for("a")
    standby.spend(1)

    stand_in.take(standby, stand_in.ask(standby))

    assert stand_in.used == 8
    assert not stand_in.to_ask


def test_a_returned_transfer_keeps_the_possible_replica_holders() -> None:
    standby, stand_in, again = copied_and_away("b")
    again.ask(stand_in)  # The answer is lost.

    stand_in.stand_in_for("a")
    stand_in.hear_out(standby)

    assert stand_in.used == 7


def test_a_silent_node_without_a_replica_may_receive_one() -> None:
    _, stand_in, _ = copied_and_away("b")

    stand_in.hear_out(Host("b"))

    assert stand_in.used == 2
    assert not stand_in.to_ask


async def test_a_silent_node_is_asked_for_its_replica_after_a_takeover(
    autojump_clock: MockClock,
) -> None:
    standby, _, _ = copied_and_away("b")
    host, reached = Host("c"), {NodeId("")}

    class Way:
        def call(self, make: Callable[[int], object], on_reply: Callable[[object], None]) -> None:
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
        host.engine,
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
    blind.stand_in_for("c")
    blind.spend(3)
    blind.copy_to(standby)
    restarted.stand_in_for("d", "b")
    restarted.spend(1)
    restarted.hear_out(standby)
    assert restarted.used == 4

    restarted.take(blind, restarted.ask(blind))

    assert restarted.used == 4


def test_a_node_without_counters_continues_from_those_that_a_standby_returns() -> None:
    before, standby, again = Host("a"), Host("b"), Host("a")
    before.ownership.start([shard_of(KEY)])
    before.spend(3)
    before.copy_to(standby)
    standby.stand_in_for("a")
    standby.spend(2)
    again.stand_in_for("c", "d")  # Restarted; the ring now names another owner.
    again.spend(1)

    again.take(standby, again.ask(standby))

    assert again.used == 6
    assert not again.to_ask  # A replica of the standby's counters would count its hits twice.


def test_a_damped_member_still_has_the_counters_of_a_replica() -> None:
    damped, standby, blind = Host("a"), Host("b"), Host("c")
    damped.ownership.start([shard_of(KEY)])
    damped.spend(3)
    damped.copy_to(standby)
    blind.ownership.on_member_change(member("a"), replace(member("a"), forward_only=True))
    blind.stand_in_for("b")
    blind.spend(1)

    blind.go_on_from(blind.ask(standby))
    blind.take(damped, blind.ask(damped))

    assert blind.used == 4


def test_a_replica_below_a_transfer_is_the_base_of_the_cover() -> None:
    """The owner of the replica counted in this member's place, and its log was added again."""
    owner, standby, receiver = Host("c"), Host("b"), Host("a")
    owner.stand_in_for("a")
    owner.spend(3)
    owner.copy_to(receiver)
    standby.stand_in_for("c")
    standby.spend(1)
    receiver.take(standby, receiver.ask(standby))
    assert receiver.used == 4

    receiver.take(owner, receiver.ask(owner))

    assert receiver.used == 4


def test_counters_of_a_standby_have_those_of_its_owner_as_base() -> None:
    """The owner counted in this member's place, and its log was added to its own counters."""
    owner, standby, receiver = Host("c"), Host("b"), Host("a")
    owner.stand_in_for("a")
    owner.spend(3)
    owner.copy_to(standby)
    standby.stand_in_for("c")
    standby.spend(1)
    receiver.take(standby, receiver.ask(standby))
    assert receiver.used == 4

    receiver.take(owner, receiver.ask(owner))

    assert receiver.used == 4
