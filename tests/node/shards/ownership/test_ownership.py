"""Shard ownership without a network: which counters move, merge and count once."""

import pytest

from gossip import Status
from hashring import shard_of
from node.metrics.counters import Counters
from node.shards.ownership.ownership_table import State
from node.shards.transfers.shard_sender import ShardSender
from ringfence.limiter import Algorithm, EngineRule, Limit
from ringfence.peering.engine_choice import decide_batch
from ringfence.wire import Batch, Holding, Op, Pull
from tests.node.shards.ownership.ownership_host import DAY, KEY, NOW, RULE, Host, member


def test_two_standbys_of_one_owner_count_no_hit_twice() -> None:
    one, other = Host("a"), Host("b")
    for host in (one, other):
        host.cover("c")
        host.spend(5)
    for _ in range(5):
        one.copy_to(other)
        other.copy_to(one)

    assert (one.used, other.used) == (5, 5)


def test_a_standby_continues_from_the_owners_own_counts() -> None:
    owner, standby = Host("c"), Host("a")
    owner.start()
    standby.cover("c")
    owner.spend(4)
    standby.spend(5)

    owner.copy_to(standby)

    assert standby.used == 9


def test_a_repeated_transfer_is_not_counted_after_the_shard_was_passed_on() -> None:
    one, other, third = Host("a"), Host("b"), Host("c")
    one.start(3)
    reply = other.ask(one)
    other.take(one, reply)
    third.pull(other)

    other.take(one, reply)

    assert other.ownership.count == 0
    assert (other.used, third.used) == (0, 3)


def test_a_transfer_repeated_after_that_of_another_member_counts_once() -> None:
    owner, first, second = Host("c"), Host("a"), Host("b")
    owner.start()
    for number, host in enumerate((first, second), 1):
        host.sender = ShardSender(
            host.ownership, host.engine, Counters(), first_transfer=1000 * number
        )
        host.cover("c")
        host.spend(number)
        owner.pull(host)
    assert owner.used == 3

    owner.pull(first)  # Its acknowledgement was lost, so it offers again.

    assert owner.used == 3


def test_a_standby_sends_its_admissions_to_only_one_of_two_requesters() -> None:
    owner, standby, other = Host("c"), Host("a"), Host("b")
    owner.start()
    standby.cover("c")
    standby.spend(2)

    first = other.ask(standby)
    owner.pull(standby)  # Receives the new holder of the shard.
    other.take(standby, first)
    owner.pull(other)

    assert owner.used == 2


def test_a_standbys_replica_is_not_added_after_the_shard_was_passed_on() -> None:
    owner, new_owner, cut_off = Host("b"), Host("a"), Host("c")
    owner.start(3)
    copy = owner.engine.snapshot([KEY], NOW)
    transfer = new_owner.ask(owner)
    new_owner.take(owner, transfer)
    number = transfer.groups[0].transfer_id
    owner.ownership.acknowledge(new_owner.name, [shard_of(KEY)], number, NOW)
    cut_off.ownership.take_over(shard_of(KEY), owner.name, [(NOW, copy)], NOW)
    cut_off.spend(2)

    owner.pull(cut_off)
    new_owner.pull(owner)

    assert new_owner.used == 5


def test_a_return_drops_no_counters_whose_transfer_is_unacknowledged() -> None:
    owner, receiver, standby = Host("c"), Host("a"), Host("b")
    owner.start(3)
    standby.cover("c")
    standby.spend(2)
    receiver.ask(owner)  # The network drops the answer.

    owner.pull(standby)
    owner.cover("a")
    assert owner.used == 3
    owner.pull(standby)

    assert owner.used == 5


def test_a_transfer_without_counters_drops_no_counters_whose_transfer_is_unacknowledged() -> None:
    """The node deleted its own unacknowledged transfer when it accepted the empty shard."""
    standby, owner, receiver = Host("a"), Host("b"), Host("c")
    owner.start()
    standby.cover("b")
    standby.spend(2)
    receiver.ask(standby)  # The network drops the answer.
    owner.sender.index.start()
    shard = shard_of(KEY)
    (group,) = owner.sender.answer(standby.name, Pull(1, [shard], 0), NOW, lambda _: False).groups
    assert (group.hold, group.sizes, group.taken_from) == (Holding.HELD, [0], "")

    accepted = standby.ownership.accept_empty([shard], group, owner.name, NOW)

    assert (accepted, standby.holds) == ([], False)
    standby.cover("c")
    assert standby.used == 2


def test_a_returned_transfer_keeps_the_fallback_log_of_the_owner() -> None:
    owner, standby = Host("c"), Host("a")
    owner.start(3)
    copy = owner.engine.snapshot([KEY], NOW)
    standby.ownership.take_over(shard_of(KEY), owner.name, [(NOW, copy)], NOW)
    standby.spend(2)
    owner.ask(standby)  # The network drops the answer.

    standby.ownership.take_over(shard_of(KEY), owner.name, [], NOW)
    standby.spend(1)
    owner.pull(standby)

    assert owner.used == 6


def test_a_transfer_taken_back_before_its_late_acknowledgement_counts_once() -> None:
    owner, standby = Host("c"), Host("a")
    owner.start(3)
    copy = owner.engine.snapshot([KEY], NOW)
    standby.ownership.take_over(shard_of(KEY), owner.name, [(NOW, copy)], NOW)
    standby.spend(2)
    reply = owner.ask(standby)
    standby.ownership.take_over(shard_of(KEY), owner.name, [], NOW)
    standby.spend(1)

    owner.take(standby, reply)
    standby.ownership.acknowledge(owner.name, [shard_of(KEY)], reply.groups[0].transfer_id, NOW)
    owner.copy_to(standby)
    assert (owner.used, standby.used) == (5, 6)
    owner.pull(standby)

    assert owner.used == 6


def test_a_shard_without_counters_anywhere_starts_empty() -> None:
    a, b, c = Host("a"), Host("b"), Host("c")
    a.ownership.start([1])
    a.ownership.start([1])
    b.cover("a")
    a.spend(5)
    copies = [(NOW, a.engine.snapshot([KEY], NOW))]
    c.ownership.take_over(shard_of(KEY), a.name, copies, NOW)

    assert (a.started, b.started, c.started) == ([1], [shard_of(KEY)], [])


def test_standby_admissions_count_once_at_an_owner_without_data() -> None:
    owner, standby = Host("c"), Host("a")
    owner.start()
    standby.cover("c")
    standby.spend(4)

    standby.pull(owner)

    assert standby.used == 4


def test_a_second_standby_reports_the_admissions_of_both_to_the_owner() -> None:
    owner, standby, next_one = Host("a"), Host("b"), Host("c")
    owner.start(4)
    owner.copy_to(standby)
    standby.cover("a")
    standby.spend(2)
    standby.copy_to(next_one)
    next_one.cover("b")
    next_one.spend(1)
    owner.spend(3)

    next_one.pull(standby)
    assert next_one.used == 7
    next_one.pull(owner)

    assert next_one.used == 10


def test_a_standby_remembers_the_origin_of_its_replica_despite_ring_changes() -> None:
    owner, standby, newcomer = Host("a"), Host("b"), Host("c")
    owner.start(4)
    owner.copy_to(standby)
    standby.cover("c")
    standby.spend(1)
    newcomer.pull(standby)

    newcomer.pull(owner)

    assert newcomer.used == 5


def test_a_replica_of_an_unknown_member_names_its_owner() -> None:
    """After a restart, the node received a replica of an owner before the owner's membership
    record."""
    owner, standby = Host("c"), Host("a")
    owner.start(3)
    owner.copy_to(standby)
    standby.cover("b")

    assert standby.covered_owner == owner.name


def test_a_replica_that_another_member_sent_belongs_to_its_owner() -> None:
    """The silent owner of the ring had only a replica of the same counters. Both members then
    owned the shard, and a merge counted all hits twice."""
    owner, standby, covering, ring_owner = Host("c"), Host("d"), Host("a"), Host("b")
    owner.start(3)
    for host in (standby, ring_owner):
        owner.copy_to(host)
    covering.take_over_from_replica_at(standby, "b")
    covering.spend(2)

    assert covering.covered_owner == owner.name
    covering.pull(owner)
    assert covering.used == 5
    assert covering.covered_owner is None


def test_the_owner_of_the_ring_is_asked_when_the_owner_of_a_replica_has_nothing() -> None:
    owner, standby, covering, ring_owner = Host("c"), Host("d"), Host("a"), Host("b")
    owner.start(3)
    owner.copy_to(standby)
    ring_owner.pull(owner)
    ring_owner.spend(4)
    covering.take_over_from_replica_at(standby, "b")
    covering.spend(2)

    covering.ownership.owner_has_nothing(shard_of(KEY), NOW)

    assert covering.covered_owner == ring_owner.name
    covering.pull(ring_owner)
    assert covering.used == 9
    covering.ownership.owner_has_nothing(shard_of(KEY), NOW)
    assert covering.covered_owner is None


@pytest.mark.parametrize(("status", "asked"), [(Status.LEAVING, "c"), (Status.LEFT, None)])
def test_a_member_that_leaves_is_asked_for_a_transfer_that_has_not_arrived(
    status: Status, asked: str | None
) -> None:
    """A member out of the ring had a transfer in flight. The standby became the owner without it,
    and a merge later counted all hits twice."""
    owner, standby, ring_owner = Host("c"), Host("a"), Host("b")
    owner.start(3)
    for host in (standby, ring_owner):
        owner.copy_to(host)
        host.ownership.on_member_change(member("c"), member("c", status))
    ring_owner.ask(owner)  # The answer is lost.
    standby.cover("b")
    standby.spend(2)

    standby.continue_from(standby.ask(ring_owner))

    assert standby.covered_owner == asked
    if asked:
        standby.pull(owner)
    assert standby.used == 5


@pytest.mark.parametrize(
    ("status", "whose"), [(Status.DEAD, "c"), (Status.LEAVING, "b"), (Status.LEFT, "b")]
)
def test_a_replica_belongs_to_a_dead_owner_but_not_a_departed_one(
    status: Status, whose: str
) -> None:
    """A dead member may only be suspended and still hold the shard; a leaving member transfers
    it."""
    owner, standby = Host("c"), Host("a")
    owner.start(3)
    owner.copy_to(standby)
    standby.ownership.on_member_change(member("c"), member("c", status))

    standby.cover("b")

    assert standby.covered_owner == whose


def test_hits_keep_their_age_at_a_node_that_started_without_them() -> None:
    """A restarted node was briefly alone, and its clients were then denied for a whole window."""
    owner, newcomer = Host("b"), Host("a")
    for host in (owner, newcomer):
        limit = Limit.of_ns(1000, DAY, algorithm=Algorithm.SLIDING_WINDOW_LOG)
        host.engine.set_rules({RULE: EngineRule(limit)})
    owner.start()
    owner.spend(3, at=NOW - DAY + 1)
    newcomer.start()

    newcomer.pull(owner)

    assert newcomer.used == 3
    assert newcomer.engine.used(KEY, NOW + 2) == 0


def test_a_restarted_owner_continues_from_a_late_standbys_replica() -> None:
    before, standby, again = Host("a"), Host("b"), Host("a")
    before.start(5)
    before.copy_to(standby)
    again.cover("b")
    again.spend(2)

    copy = again.ask(standby)
    again.continue_from(copy)

    assert again.used == 7


def test_a_replica_adds_nothing_at_the_node_that_counts_the_shard() -> None:
    counts_on, standby, one = Host("c"), Host("b"), Host("a")
    counts_on.start(3)
    counts_on.copy_to(standby)
    one.cover("b")
    one.spend(2)

    one.continue_from(one.ask(standby))
    counts_on.pull(one)

    assert counts_on.used == 5


def test_admissions_of_a_nodes_standby_reach_the_owner_that_the_node_covers() -> None:
    owner, one, other = Host("c"), Host("a"), Host("b")
    owner.start(2)
    for standby in (one, other):
        owner.copy_to(standby)
    one.cover("c")
    one.spend(1)
    other.ownership.on_member_change(member("c"), member("c", Status.LEFT))
    other.cover("a")  # The owner by the current ring, since the actual owner seemed to have left.
    other.spend(4)

    one.pull(other)
    one.pull(owner)

    assert one.used == 7


def test_a_node_with_a_replica_does_not_continue_from_another() -> None:
    owner, one, other = Host("a"), Host("b"), Host("c")
    owner.start(5)
    owner.copy_to(other)
    owner.spend(1)
    owner.copy_to(one)
    one.cover("a")
    one.spend(2)

    copy = one.ask(other)
    one.continue_from(copy)

    assert one.used == 8


def test_shards_from_before_a_restart_may_have_a_new_holder() -> None:
    earlier, receiver, standby, again = Host("a"), Host("b"), Host("c"), Host("a")
    earlier.start(4)
    earlier.copy_to(standby)
    receiver.pull(earlier)
    standby.cover("a")
    standby.spend(1)

    again.pull(standby)
    again.pull(receiver)

    assert again.used == 5


def test_units_admitted_by_several_frames_are_marked_dirty_once() -> None:
    host = Host("a")
    keys = [RULE.to_bytes(8, "big") + b"%d" % number for number in range(50)]
    for _ in range(20):
        for key in keys:
            batch = Batch(Op.CHECK, [key, KEY], [1, 2000])
            host.ownership.record_decided(batch, decide_batch(host.engine, batch, NOW), NOW)

    assert list(host.ownership.changed.keys) == keys


def test_a_standby_of_a_standby_counts_its_log_once() -> None:
    """The replica of a standby's counters contains its log."""
    owner, first, second = Host("a"), Host("b"), Host("c")
    owner.start(3)
    owner.copy_to(first)
    first.cover("a")
    first.spend(2)
    first.copy_to(second)
    second.ownership.on_member_change(member("b"), member("b", Status.LEAVING))
    second.cover("a")
    second.spend(1)

    second.pull(first)

    assert (second.used, second.covered_owner) == (6, "a")
    owner.pull(second)
    assert owner.used == 6


def test_a_standby_that_returns_a_shard_does_not_end_the_cover_of_its_owner() -> None:
    """The owner was leaving the ring. It counted all units again when it transferred them."""
    owner, first, second = Host("a"), Host("b"), Host("c")
    owner.start(46)
    for standby in (first, second):
        owner.copy_to(standby)
        standby.ownership.on_member_change(member("a"), member("a", Status.LEAVING))
    second.cover("b")
    second.spend(3)
    first.cover("c")
    assert first.covered_owner == "c"

    first.pull(second)
    assert (first.covered_owner, first.used) == ("a", 49)
    first.pull(owner)

    assert (first.covered_owner, first.used) == (None, 49)


def test_the_held_states_follow_every_change() -> None:
    owner, other = Host("a"), Host("b")
    shard = shard_of(KEY)
    found = []
    for change in (owner.start, lambda: other.pull(owner), lambda: owner.pull(other)):
        change()
        found.append([State(host.ownership.held_states()[shard]) for host in (owner, other)])

    nowhere = State.ABSENT
    assert found == [[State.FRESH, nowhere], [nowhere, State.OWNED], [State.OWNED, nowhere]]
