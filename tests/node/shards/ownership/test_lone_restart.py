"""Shard ownership after a restart: an owner without data recovers its counters from a replica."""

from collections.abc import Callable
from typing import cast

import pytest

from hashring import Member, NodeId, Ring, shard_of
from node.metrics.counters import Counters
from node.shards.replication import Replication
from ringfence.limiter import Algorithm, EngineRule, Limit
from ringfence.peering.link import Link
from ringfence.wire import Copy
from tests.node.cluster import CONTAINMENT
from tests.node.shards.ownership.ownership_host import DAY, KEY, NOW, RULE, Host, member


def test_an_owner_that_restarted_alone_recovers_counts_from_its_standby() -> None:
    before, after, standby = Host("c"), Host("c"), Host("a")
    before.start(3)
    copy = before.ownership.snapshot([KEY], NOW).unpack()
    standby.ownership.take_over(shard_of(KEY), before.name, [(NOW, copy)], NOW)
    standby.spend(2)
    standby.ownership.on_member_change(member("c"), member("c", generation=2))
    after.start()  # Restarted, and found no other member.
    after.spend(1)
    after.ownership.restore_lost({KEY: [0, 4]}, NOW)  # Counts that were sent to other data centers.
    after.copy_to(standby)

    after.pull(standby)

    assert after.used == 6


@pytest.mark.parametrize("when", ["never", "before the recovery", "after the recovery"])
@pytest.mark.parametrize("logs", [(), ("b",), ("c",), ("b", "c")])
def test_recovered_counts_are_not_added_to_those_of_a_standby(
    when: str, logs: tuple[str, ...]
) -> None:
    """Another member that restarted alone may send the shard first, without counters."""
    shard = shard_of(KEY)
    before, after, standby, other = Host("c"), Host("c"), Host("a"), Host("b")
    before.start(3)
    copy = before.ownership.snapshot([KEY], NOW).unpack()
    standby.ownership.take_over(shard, before.name, [(NOW, copy)], NOW)
    standby.spend(4)
    standby.ownership.on_member_change(member("c"), member("c", generation=2))
    for host in (after, other):
        if host.name in logs:
            host.cover("d")
            host.ownership.owner_has_nothing(shard, NOW)
        else:
            host.start()
    if when == "before the recovery":
        after.pull(other)
    after.spend(1)
    after.ownership.restore_lost({KEY: [0, 7]}, NOW)
    if when == "after the recovery":
        after.pull(other)

    after.pull(standby)

    assert after.used == 8


def restarted_alone() -> tuple[Host, Host, Ring]:
    """Return a node that restarted alone, its standby, and the ring of both.

    The node has admitted 1 unit since the restart. The standby has a replica of 3 units from before
    the restart.
    """
    shard, names = shard_of(KEY), (NodeId("a"), NodeId("c"))
    ring = Ring.of(map(Member, names))
    owner = ring.owner(shard)
    (other,) = [name for name in names if name != owner]
    before, after, standby = Host(owner), Host(owner), Host(other)
    before.ownership.start([shard])
    before.spend(3)
    before.copy_to(standby)
    after.ownership.start([shard])
    after.ownership.unasked.add([shard], {})
    after.spend(1)
    after.ownership.unasked.on_ring_change(ring)
    return after, standby, ring


def test_an_owner_that_restarted_alone_recovers_the_replica_of_its_standby() -> None:
    owner, standby, ring = restarted_alone()

    owner.ask_for_replica(standby)
    owner.ask_for_replica(standby)  # A repeated answer adds nothing.

    assert owner.used == 4
    owner.ownership.unasked.on_ring_change(ring)
    assert not owner.ownership.unasked.to_ask


def test_an_owner_that_took_over_without_a_replica_recovers_the_one_of_a_standby() -> None:
    """The standby was unreachable when the restarted owner took its shard over from a third member,
    which has no counters."""
    shard = shard_of(KEY)
    _, standby, ring = restarted_alone()
    owner = Host(next(each.name for each in ring.members if each.name != standby.name))
    owner.cover("d")
    owner.spend(1)
    owner.ownership.unasked.on_ring_change(ring)
    assert not owner.ownership.unasked.to_ask

    owner.ownership.owner_has_nothing(shard, NOW)
    assert not owner.may_copy_to(standby)
    owner.ask_for_replica(standby)

    assert owner.used == 4
    assert owner.may_copy_to(standby)
    reply = Host("e").ask(owner)
    assert [row[1::2] for row in reply.fallback_counts] == [[1]]  # The replica is below the log.


def test_a_standby_without_a_replica_is_asked_once_by_a_restarted_owner() -> None:
    owner, standby, ring = restarted_alone()
    standby.ownership.replicas.drop([shard_of(KEY)])

    owner.ask_for_replica(standby)

    assert owner.used == 1
    owner.ownership.unasked.on_ring_change(ring)
    assert not owner.ownership.unasked.to_ask


def test_a_replica_of_another_members_counters_is_not_used_after_a_restart() -> None:
    owner, standby, _ = restarted_alone()
    other = Host("d")
    other.cover(owner.name)
    other.spend(2)
    other.copy_to(standby)

    owner.ask_for_replica(standby)

    assert owner.used == 1


@pytest.mark.parametrize("is_restart_detected", [False, True])
def test_a_standby_that_took_over_keeps_its_counters_for_their_transfer(
    *, is_restart_detected: bool
) -> None:
    owner, standby, _ = restarted_alone()
    standby.cover(owner.name)
    standby.spend(2)

    owner.ask_for_replica(standby)
    assert (owner.used, standby.used) == (1, 5)
    assert owner.ownership.unasked.is_to_ask(standby.name, shard_of(KEY))
    if is_restart_detected:
        standby.ownership.on_member_change(member(owner.name), member(owner.name, generation=2))
    owner.pull(standby)

    assert owner.used == 6
    assert not owner.ownership.unasked.to_ask


def test_an_unacknowledged_transfer_to_a_restarted_owner_is_not_answered_as_a_replica() -> None:
    owner, standby, _ = restarted_alone()
    standby.cover(owner.name)
    standby.spend(2)
    transfer = owner.ask(standby)  # The answer is on its way.

    owner.ask_for_replica(standby)
    assert owner.ownership.unasked.is_to_ask(standby.name, shard_of(KEY))
    owner.take(standby, transfer)

    assert owner.used == 6


def test_a_takeover_after_the_answer_adds_only_its_own_units() -> None:
    owner, standby, _ = restarted_alone()
    owner.ask_for_replica(standby)
    standby.cover(owner.name)
    standby.spend(2)
    standby.ownership.on_member_change(member(owner.name), member(owner.name, generation=2))

    owner.pull(standby)

    assert owner.used == 6


def test_the_next_standby_is_asked_when_the_first_one_dies_before_its_answer() -> None:
    owner, standby, _ = restarted_alone()
    without_standby = Ring.of(map(Member, (owner.name, NodeId("e"))))

    owner.ownership.unasked.on_ring_change(without_standby)

    assert {name: [*asked] for name, asked in owner.ownership.unasked.to_ask.items()} == {
        "e": [shard_of(KEY)]
    }
    owner.ask_for_replica(Host("e"))
    assert not owner.ownership.unasked.to_ask
    owner.ask_for_replica(
        standby
    )  # Its answer arrives late, after another node has become the standby.
    assert owner.used == 1


def test_a_member_that_had_no_counters_at_the_start_is_not_asked_again() -> None:
    owner, standby, ring = restarted_alone()
    shard, found = shard_of(KEY), NodeId("b")
    owner.ownership.unasked.add([shard], {shard: (found,)})

    owner.ownership.unasked.on_ring_change(Ring.of(map(Member, (owner.name, found))))
    assert not owner.ownership.unasked.to_ask
    owner.ownership.unasked.on_ring_change(ring)
    owner.ask_for_replica(standby)

    assert owner.used == 4


def test_a_restarted_owner_overwrites_no_replica_before_it_was_fetched() -> None:
    owner, standby, ring = restarted_alone()
    frames: list[object] = []

    class Way:
        def call(self, make: Callable[[int], object], on_reply: Callable[[object], None]) -> None:
            frames.append(make(1))

    replication = Replication(
        *(owner.name, owner.ownership, owner.sender, owner.engine, Counters()),
        *(lambda name: cast(Link, Way()), lambda: NOW, CONTAINMENT, 1000),
    )
    replication.on_ring_change(Ring.of(()), ring, ring)

    list(replication.send_changes())
    assert frames == []
    owner.ask_for_replica(standby)
    list(replication.send_changes())

    (frame,) = frames
    assert isinstance(frame, Copy)
    standby.ownership.keep_replica(owner.name, frame.counts, NOW)
    standby.cover(owner.name)
    assert standby.used == 4


@pytest.mark.parametrize("is_alone_there", [False, True])
def test_no_replica_is_overwritten_either_while_the_owner_is_out_of_the_ring(
    *, is_alone_there: bool
) -> None:
    owner, standby, ring = restarted_alone()
    unasked, shard = owner.ownership.unasked, shard_of(KEY)
    others = (standby.name,) if is_alone_there else (standby.name, NodeId("e"))
    elsewhere = Ring.of(map(Member, others))

    unasked.on_ring_change(elsewhere)

    kept = elsewhere.standby(shard)
    assert [*unasked.to_ask] == ([] if kept is None else [kept])
    unasked.on_ring_change(ring)
    assert [*unasked.to_ask] == [standby.name]


def test_an_owner_elsewhere_is_asked_before_its_replica_is_overwritten() -> None:
    host = Host("c")
    shard = shard_of(KEY)
    rings = [Ring.of(map(Member, ("c", other))) for other in map(str, range(20))]
    ring = next(ring for ring in rings if ring.standby(shard) == "c")
    host.ownership.start([shard])
    host.ownership.unasked.add([shard], {})

    host.ownership.unasked.on_ring_change(ring)

    assert [*host.ownership.unasked.to_ask] == [ring.owner(shard)]


def test_a_shard_that_left_its_restarted_owner_is_not_asked_for() -> None:
    owner, standby, _ = restarted_alone()

    standby.pull(owner)

    assert not owner.ownership.unasked.to_ask


def test_recovered_counts_are_not_added_where_they_were_never_lost() -> None:
    owner, restarted = Host("a"), Host("b")
    owner.start(4)
    restarted.ownership.start(
        [shard_of(KEY)]
    )  # Cut off from its data center, the node asked other data centers,
    # which had received these hits.
    restarted.spend(2)

    owner.pull(restarted)

    assert owner.used == 6


def test_units_of_a_sliding_log_keep_their_ages_when_two_owners_are_joined() -> None:
    first, second = Host("a"), Host("b")
    for host in (first, second):
        host.engine.set_rules({RULE: EngineRule(Limit.of_ns(5, DAY, Algorithm.SLIDING_WINDOW_LOG))})
        host.start()
    first.spend(3, at=NOW - 40)
    first.spend(1, at=NOW - 30)
    second.spend(1, at=NOW - 20)

    first.pull(second)

    (state,) = first.engine.snapshot([KEY], NOW).states
    assert state == [40, 3, 30, 1, 20, 1]


@pytest.mark.parametrize(
    "algorithm", [Algorithm.TOKEN_BUCKET, Algorithm.LEAKY_BUCKET, Algorithm.FIXED_WINDOW]
)
def test_counts_of_other_data_centers_are_not_added_to_those_of_this_one(
    algorithm: Algorithm,
) -> None:
    before, standby, restarted = Host("a"), Host("b"), Host("a")
    rule = EngineRule(Limit.of_ns(100, DAY, algorithm), is_shared=True)
    for host in (before, standby, restarted):
        host.engine.set_rules({RULE: rule})
    before.start(2)
    (cells,) = before.engine.local_counts([KEY], NOW)
    before.engine.merge_remote("dc2", [KEY], [[cells[0], 3]], NOW)
    before.copy_to(standby)
    standby.cover("a")
    standby.spend(1)
    standby.ownership.on_member_change(member("a"), member("a", generation=2))
    restarted.start()  # No other member of its data center was found.
    restarted.engine.merge_remote("dc2", [KEY], [[cells[0], 3]], NOW)
    restarted.spend(1)

    restarted.pull(standby)

    assert restarted.engine.local_counts([KEY], NOW) == [[cells[0], 4]]
    assert restarted.used == 7


def test_a_bucket_keeps_units_that_are_older_than_the_counts_of_two_periods() -> None:
    """Only counts of two periods were added to the counters of a member that started alone."""
    owner, alone = Host("a"), Host("b")
    rule = EngineRule(Limit.of_ns(10, DAY, Algorithm.TOKEN_BUCKET), is_shared=True)
    for host, at, units in ((owner, NOW - 2 * DAY, 100), (alone, NOW, 2)):
        host.engine.set_rules({RULE: rule})
        host.start()
        host.engine.charge([KEY], [units], [0], at)
    owner.spend(0)
    assert (owner.used, owner.engine.local_counts([KEY], NOW)) == (80, [[]])

    owner.pull(alone)

    assert owner.used == 82
    assert [cells[1::2] for cells in owner.engine.local_counts([KEY], NOW)] == [[2]]


def test_units_of_a_bucket_that_have_drained_are_not_added_again() -> None:
    one, other = Host("a"), Host("b")
    rule = EngineRule(Limit.of_ns(10, DAY, Algorithm.TOKEN_BUCKET), is_shared=True)
    for host, at in ((one, NOW - DAY), (other, NOW)):
        host.engine.set_rules({RULE: rule})
        host.start()
        host.engine.charge([KEY], [6], [0], at)

    one.pull(other)

    assert one.used == 6


def test_recovered_counts_are_added_at_a_node_without_data() -> None:
    restarted, receiver = Host("b"), Host("c")
    restarted.start()
    restarted.ownership.restore_lost({KEY: [0, 3]}, NOW)
    restarted.spend(2)

    receiver.pull(restarted)

    assert receiver.used == 5


def covering_itself() -> Host:
    """Return an owner that restarted without its counters and then admitted two units."""
    restarted = Host("c")
    restarted.cover("c")
    restarted.spend(2)
    return restarted


def test_a_replica_of_a_restarted_owner_is_not_below_its_transfer() -> None:
    """The replica had the same units as the transfer, which were then counted twice."""
    restarted, receiver = covering_itself(), Host("a")
    restarted.copy_to(receiver)

    receiver.pull(restarted)

    assert receiver.used == 2


def test_a_restarted_owner_has_only_the_counters_that_it_has_transferred() -> None:
    """The restarted owner became the standby, and its replica was merged as older counters."""
    restarted, receiver = covering_itself(), Host("a")
    transfer = receiver.ask(restarted)
    receiver.take(restarted, transfer)
    number = transfer.groups[0].transfer_id
    restarted.ownership.acknowledge(receiver.name, [shard_of(KEY)], number, NOW)
    receiver.spend(1)
    receiver.copy_to(restarted)

    receiver.continue_from(receiver.ask(restarted))

    assert receiver.used == 3
    assert receiver.covered_owner is None


def test_units_that_other_data_centers_returned_are_not_counted_again_with_a_log() -> None:
    """The standby's log was counted twice: other data centers had received its units."""
    owner, standby = Host("c"), Host("a")
    owner.start(2)
    standby.cover("c")
    standby.spend(3)
    owner.ownership.restore_lost({KEY: [0, 3]}, NOW)
    standby.spend(1)

    owner.pull(standby)

    assert owner.used == 6
