"""Shard ownership without a network: which counters a node counts, and for which owner."""

from collections.abc import Callable
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from gossip import Record, Status
from hashring import SHARDS, Member, NodeId, Ring, shard_of
from node.metrics.counters import Counters
from node.shards.ownership.ownership import ShardOwnership
from node.shards.replication import Replication, as_snapshot
from node.shards.transfers.handoff import Handoff
from node.shards.transfers.shard_sender import ShardSender
from ringfence.limiter import Algorithm, Engine, EngineRule, Limit
from ringfence.peering.engine_choice import decide_batch
from ringfence.peering.link import Link
from ringfence.wire import Batch, Copy, Holding, Op, Pull, Pulled
from tests.node.cluster import CONTAINMENT

DAY = 86_400_000_000_000
RULE = 7
KEY = RULE.to_bytes(8, "big") + b"\x01k"
NOW = 1_800_000_000 * 1_000_000_000
OURS = b"\1" * SHARDS


def member(name: str, status: Status = Status.ALIVE, *, generation: int = 1) -> Record:
    return Record(name, "h", 1, "dc1", "z1", 1.0, generation, 0, status)


class Host:
    """Shard ownership and engine of a node."""

    def __init__(self, name: str) -> None:
        self.name = NodeId(name)
        self.started: list[int] = []
        self.engine = Engine(max_keys=100)
        self.engine.set_rules({RULE: EngineRule(Limit.of_ns(1000, DAY))})
        self.ownership = ShardOwnership(
            self.name,
            self.engine,
            Counters(),
            lambda key: DAY,
            lambda keys: None,
            self.started.extend,
            max_keys=100,
        )
        self.sender = ShardSender(
            self.ownership,
            self.engine,
            Counters(),
            first_transfer=1,
        )

    def spend(self, units: int, *, at: int = NOW) -> None:
        batch = Batch(Op.CHECK, [KEY], [units])
        self.ownership.record_decided(batch, decide_batch(self.engine, batch, at), at)

    def stand_in_for(self, owner: str, *silent: str) -> None:
        copies = list(self.ownership.replicas.of(shard_of(KEY)))
        self.ownership.take_over(shard_of(KEY), NodeId(owner), copies, NOW, [*map(NodeId, silent)])

    def copy_to(self, other: "Host") -> None:
        other.ownership.keep_replica(self.name, self.ownership.snapshot([KEY], NOW), NOW)

    def ask(self, sender: "Host") -> Pulled:
        sender.sender.index([KEY])
        pull = Pull(1, [shard_of(KEY)], 0)
        return sender.sender.answer(self.name, pull, NOW, lambda shard: False)

    def take(self, sender: "Host", reply: Pulled) -> None:
        (about,) = reply.groups
        if about.hold is not Holding.HELD:
            return
        counts = as_snapshot(reply.counts)
        fallback_counts = reply.fallback_counts or [[]]
        self.ownership.accept(shard_of(KEY), about, sender.name, counts, fallback_counts, NOW)

    def hear_out(self, other: "Host") -> None:
        """Ask a node that was silent during the takeover for its replica."""
        counts = as_snapshot(self.ask(other).counts)
        self.ownership.replica_answered(shard_of(KEY), other.name, counts, NOW)

    def ask_for_replica(self, standby: "Host") -> None:
        """Ask a standby only for its replica from before this host's restart."""
        pull = Pull(1, [shard_of(KEY)], 0, is_for_replicas=True)
        reply = standby.sender.answer(self.name, pull, NOW, lambda shard: True)
        for about in reply.groups:
            assert about.hold is not Holding.HELD
            counts = as_snapshot(reply.counts)
            self.ownership.replica_answered(*about.shards, standby.name, counts, NOW)

    def go_on_from(self, copy: Pulled) -> None:
        """Apply the answer of the previous holder, which has only a replica."""
        (about,) = copy.groups
        counts = as_snapshot(copy.counts)
        self.ownership.owner_has_replica(shard_of(KEY), counts, about.taken_from, NOW)

    @property
    def covered_owner(self) -> NodeId | None:
        cover = self.ownership.covers.get(shard_of(KEY))
        return None if cover is None else cover.owner

    @property
    def to_ask(self) -> list[NodeId]:
        cover = self.ownership.covers.get(shard_of(KEY))
        return [] if cover is None else [*cover.to_ask]

    @property
    def used(self) -> int:
        return self.engine.used(KEY, NOW)


def test_two_standbys_of_one_owner_count_no_hit_twice() -> None:
    one, other = Host("a"), Host("b")
    for host in (one, other):
        host.stand_in_for("c")
        host.spend(5)
    for _ in range(5):
        one.copy_to(other)
        other.copy_to(one)

    assert (one.used, other.used) == (5, 5)


def test_a_standby_continues_from_the_owners_own_counts() -> None:
    owner, stand_in = Host("c"), Host("a")
    owner.ownership.start([shard_of(KEY)])
    stand_in.stand_in_for("c")
    owner.spend(4)
    stand_in.spend(5)

    owner.copy_to(stand_in)

    assert stand_in.used == 9


def test_a_repeated_transfer_is_not_counted_after_the_shard_was_passed_on() -> None:
    one, other, third = Host("a"), Host("b"), Host("c")
    one.ownership.start([shard_of(KEY)])
    one.spend(3)
    reply = other.ask(one)
    other.take(one, reply)
    third.take(other, third.ask(other))

    other.take(one, reply)

    assert other.ownership.count == 0
    assert (other.used, third.used) == (0, 3)


def test_a_transfer_repeated_after_that_of_another_member_counts_once() -> None:
    owner, first, second = Host("c"), Host("a"), Host("b")
    owner.ownership.start([shard_of(KEY)])
    for number, host in enumerate((first, second), 1):
        host.sender = ShardSender(
            host.ownership, host.engine, Counters(), first_transfer=1000 * number
        )
        host.stand_in_for("c")
        host.spend(number)
        owner.take(host, owner.ask(host))
    assert owner.used == 3

    owner.take(first, owner.ask(first))  # Its acknowledgement was lost, so it offers again.

    assert owner.used == 3


def test_a_standby_sends_its_admissions_to_only_one_of_two_requesters() -> None:
    owner, stand_in, other = Host("c"), Host("a"), Host("b")
    owner.ownership.start([shard_of(KEY)])
    stand_in.stand_in_for("c")
    stand_in.spend(2)

    first = other.ask(stand_in)
    owner.take(stand_in, owner.ask(stand_in))  # Receives the new holder of the shard.
    other.take(stand_in, first)
    owner.take(other, owner.ask(other))

    assert owner.used == 2


def test_a_standbys_replica_is_not_added_after_the_shard_was_passed_on() -> None:
    owner, new_owner, cut_off = Host("b"), Host("a"), Host("c")
    owner.ownership.start([shard_of(KEY)])
    owner.spend(3)
    copy = owner.ownership.snapshot([KEY], NOW)
    transfer = new_owner.ask(owner)
    new_owner.take(owner, transfer)
    number = transfer.groups[0].transfer_id
    owner.ownership.acknowledge(new_owner.name, [shard_of(KEY)], number, NOW)
    cut_off.ownership.take_over(shard_of(KEY), owner.name, [(NOW, copy)], NOW)
    cut_off.spend(2)

    owner.take(cut_off, owner.ask(cut_off))
    new_owner.take(owner, new_owner.ask(owner))

    assert new_owner.used == 5


def test_a_return_drops_no_counters_whose_transfer_is_unacknowledged() -> None:
    owner, receiver, stand_in = Host("c"), Host("a"), Host("b")
    owner.ownership.start([shard_of(KEY)])
    owner.spend(3)
    stand_in.stand_in_for("c")
    stand_in.spend(2)
    receiver.ask(owner)  # The network drops the answer.

    owner.take(stand_in, owner.ask(stand_in))
    owner.stand_in_for("a")
    assert owner.used == 3
    owner.take(stand_in, owner.ask(stand_in))

    assert owner.used == 5


def test_a_returned_transfer_keeps_the_fallback_log_of_the_owner() -> None:
    owner, stand_in = Host("c"), Host("a")
    owner.ownership.start([shard_of(KEY)])
    owner.spend(3)
    copy = owner.ownership.snapshot([KEY], NOW)
    stand_in.ownership.take_over(shard_of(KEY), owner.name, [(NOW, copy)], NOW)
    stand_in.spend(2)
    owner.ask(stand_in)  # The network drops the answer.

    stand_in.ownership.take_over(shard_of(KEY), owner.name, [], NOW)
    stand_in.spend(1)
    owner.take(stand_in, owner.ask(stand_in))

    assert owner.used == 6


def test_a_transfer_taken_back_before_its_late_acknowledgement_counts_once() -> None:
    owner, stand_in = Host("c"), Host("a")
    owner.ownership.start([shard_of(KEY)])
    owner.spend(3)
    copy = owner.ownership.snapshot([KEY], NOW)
    stand_in.ownership.take_over(shard_of(KEY), owner.name, [(NOW, copy)], NOW)
    stand_in.spend(2)
    reply = owner.ask(stand_in)
    stand_in.ownership.take_over(shard_of(KEY), owner.name, [], NOW)
    stand_in.spend(1)

    owner.take(stand_in, reply)
    stand_in.ownership.acknowledge(owner.name, [shard_of(KEY)], reply.groups[0].transfer_id, NOW)
    owner.copy_to(stand_in)
    assert (owner.used, stand_in.used) == (5, 6)
    owner.take(stand_in, owner.ask(stand_in))

    assert owner.used == 6


def test_a_shard_without_counters_anywhere_starts_empty() -> None:
    a, b, c = Host("a"), Host("b"), Host("c")
    a.ownership.start([1])
    a.ownership.start([1])
    b.stand_in_for("a")
    a.spend(5)
    copies = [(NOW, a.ownership.snapshot([KEY], NOW))]
    c.ownership.take_over(shard_of(KEY), a.name, copies, NOW)

    assert (a.started, b.started, c.started) == ([1], [shard_of(KEY)], [])


def test_standby_admissions_count_once_at_an_owner_without_data() -> None:
    owner, stand_in = Host("c"), Host("a")
    owner.ownership.start([shard_of(KEY)])
    stand_in.stand_in_for("c")
    stand_in.spend(4)

    stand_in.take(owner, stand_in.ask(owner))

    assert stand_in.used == 4


def test_a_second_standby_reports_the_admissions_of_both_to_the_owner() -> None:
    owner, stand_in, next_one = Host("a"), Host("b"), Host("c")
    owner.ownership.start([shard_of(KEY)])
    owner.spend(4)
    owner.copy_to(stand_in)
    stand_in.stand_in_for("a")
    stand_in.spend(2)
    stand_in.copy_to(next_one)
    next_one.stand_in_for("b")
    next_one.spend(1)
    owner.spend(3)

    next_one.take(stand_in, next_one.ask(stand_in))
    assert next_one.used == 7
    next_one.take(owner, next_one.ask(owner))

    assert next_one.used == 10


def test_a_standby_remembers_the_origin_of_its_replica_despite_ring_changes() -> None:
    owner, stand_in, newcomer = Host("a"), Host("b"), Host("c")
    owner.ownership.start([shard_of(KEY)])
    owner.spend(4)
    owner.copy_to(stand_in)
    stand_in.stand_in_for("c")
    stand_in.spend(1)
    newcomer.take(stand_in, newcomer.ask(stand_in))

    newcomer.take(owner, newcomer.ask(owner))

    assert newcomer.used == 5


def test_a_replica_of_an_unknown_member_names_its_owner() -> None:
    """After a restart, the node received a replica of an owner before the owner's membership
    record."""
    owner, stand_in = Host("c"), Host("a")
    owner.ownership.start([shard_of(KEY)])
    owner.spend(3)
    owner.copy_to(stand_in)
    stand_in.stand_in_for("b")

    assert stand_in.covered_owner == owner.name


@pytest.mark.parametrize(
    ("status", "whose"), [(Status.DEAD, "c"), (Status.LEAVING, "b"), (Status.LEFT, "b")]
)
def test_a_replica_belongs_to_a_dead_owner_but_not_a_departed_one(
    status: Status, whose: str
) -> None:
    """A dead member may only be suspended and still hold the shard; a leaving member transfers
    it."""
    owner, stand_in = Host("c"), Host("a")
    owner.ownership.start([shard_of(KEY)])
    owner.spend(3)
    owner.copy_to(stand_in)
    stand_in.ownership.on_member_change(member("c"), member("c", status))

    stand_in.stand_in_for("b")

    assert stand_in.covered_owner == whose


def test_hits_keep_their_age_at_a_node_that_started_without_them() -> None:
    """A restarted node was briefly alone, and its clients were then denied for a whole window."""
    owner, newcomer = Host("b"), Host("a")
    for host in (owner, newcomer):
        limit = Limit.of_ns(1000, DAY, algorithm=Algorithm.SLIDING_WINDOW_LOG)
        host.engine.set_rules({RULE: EngineRule(limit)})
    owner.ownership.start([shard_of(KEY)])
    owner.spend(3, at=NOW - DAY + 1)
    newcomer.ownership.start([shard_of(KEY)])

    newcomer.take(owner, newcomer.ask(owner))

    assert newcomer.used == 3
    assert newcomer.engine.used(KEY, NOW + 2) == 0


def test_a_restarted_owner_continues_from_a_late_standbys_replica() -> None:
    before, standby, again = Host("a"), Host("b"), Host("a")
    before.ownership.start([shard_of(KEY)])
    before.spend(5)
    before.copy_to(standby)
    again.stand_in_for("b")
    again.spend(2)

    copy = again.ask(standby)
    again.go_on_from(copy)

    assert again.used == 7


def test_a_replica_adds_nothing_at_the_node_that_counts_the_shard() -> None:
    counts_on, standby, one = Host("c"), Host("b"), Host("a")
    counts_on.ownership.start([shard_of(KEY)])
    counts_on.spend(3)
    counts_on.copy_to(standby)
    one.stand_in_for("b")
    one.spend(2)

    one.go_on_from(one.ask(standby))
    counts_on.take(one, counts_on.ask(one))

    assert counts_on.used == 5


def test_an_owner_that_restarted_alone_recovers_counts_from_its_standby() -> None:
    before, after, stand_in = Host("c"), Host("c"), Host("a")
    before.ownership.start([shard_of(KEY)])
    before.spend(3)
    copy = before.ownership.snapshot([KEY], NOW)
    stand_in.ownership.take_over(shard_of(KEY), before.name, [(NOW, copy)], NOW)
    stand_in.spend(2)
    stand_in.ownership.on_member_change(member("c"), member("c", generation=2))
    after.ownership.start([shard_of(KEY)])  # Restarted, and found no other member.
    after.spend(1)
    after.ownership.restore_lost({KEY: [0, 4]}, NOW)  # Counts that were sent to other data centers.
    after.copy_to(stand_in)

    after.take(stand_in, after.ask(stand_in))

    assert after.used == 6


def restarted_alone() -> tuple[Host, Host, Ring]:
    """A node that has admitted 1 unit since it restarted alone, its standby with a replica of 3
    units from before, and the ring of both."""
    shard, names = shard_of(KEY), (NodeId("a"), NodeId("c"))
    ring = Ring.of(map(Member, names))
    owner = ring.owner(shard)
    (standby,) = [name for name in names if name != owner]
    before, after, stand_in = Host(owner), Host(owner), Host(standby)
    before.ownership.start([shard])
    before.spend(3)
    before.copy_to(stand_in)
    after.ownership.start([shard])
    after.ownership.unasked.add([shard], lambda shard: ())
    after.spend(1)
    after.ownership.unasked.on_ring_change(ring, OURS)
    return after, stand_in, ring


def test_an_owner_that_restarted_alone_recovers_the_replica_of_its_standby() -> None:
    owner, standby, ring = restarted_alone()

    owner.ask_for_replica(standby)
    owner.ask_for_replica(standby)  # A repeated answer adds nothing.

    assert owner.used == 4
    owner.ownership.unasked.on_ring_change(ring, OURS)
    assert not owner.ownership.unasked.to_ask


def test_a_standby_without_a_replica_is_asked_once_by_a_restarted_owner() -> None:
    owner, standby, ring = restarted_alone()
    standby.ownership.replicas.drop([shard_of(KEY)])

    owner.ask_for_replica(standby)

    assert owner.used == 1
    owner.ownership.unasked.on_ring_change(ring, OURS)
    assert not owner.ownership.unasked.to_ask


def test_a_replica_of_another_members_counters_is_not_used_after_a_restart() -> None:
    owner, standby, _ = restarted_alone()
    other = Host("d")
    other.stand_in_for(owner.name)
    other.spend(2)
    other.copy_to(standby)

    owner.ask_for_replica(standby)

    assert owner.used == 1


@pytest.mark.parametrize("is_restart_detected", [False, True])
def test_a_standby_that_took_over_keeps_its_counters_for_their_transfer(
    *, is_restart_detected: bool
) -> None:
    owner, standby, _ = restarted_alone()
    standby.stand_in_for(owner.name)
    standby.spend(2)

    owner.ask_for_replica(standby)
    assert (owner.used, standby.used) == (1, 5)
    assert owner.ownership.unasked.is_to_ask(standby.name, shard_of(KEY))
    if is_restart_detected:
        standby.ownership.on_member_change(member(owner.name), member(owner.name, generation=2))
    owner.take(standby, owner.ask(standby))

    assert owner.used == 6
    assert not owner.ownership.unasked.to_ask


def test_an_unacknowledged_transfer_to_a_restarted_owner_is_not_answered_as_a_replica() -> None:
    owner, standby, _ = restarted_alone()
    standby.stand_in_for(owner.name)
    standby.spend(2)
    transfer = owner.ask(standby)  # The answer is on its way.

    owner.ask_for_replica(standby)
    assert owner.ownership.unasked.is_to_ask(standby.name, shard_of(KEY))
    owner.take(standby, transfer)

    assert owner.used == 6


def test_a_takeover_after_the_answer_adds_only_its_own_units() -> None:
    owner, standby, _ = restarted_alone()
    owner.ask_for_replica(standby)
    standby.stand_in_for(owner.name)
    standby.spend(2)
    standby.ownership.on_member_change(member(owner.name), member(owner.name, generation=2))

    owner.take(standby, owner.ask(standby))

    assert owner.used == 6


def test_the_next_standby_is_asked_when_the_first_one_dies_before_its_answer() -> None:
    owner, standby, _ = restarted_alone()
    without_standby = Ring.of(map(Member, (owner.name, NodeId("e"))))

    owner.ownership.unasked.on_ring_change(without_standby, OURS)

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
    owner.ownership.unasked.add([shard], lambda shard: (found,))

    owner.ownership.unasked.on_ring_change(Ring.of(map(Member, (owner.name, found))), OURS)
    assert not owner.ownership.unasked.to_ask
    owner.ownership.unasked.on_ring_change(ring, OURS)
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
        *(lambda name: cast(Link, Way()), lambda: NOW, CONTAINMENT),
    )
    replication.on_ring_change(Ring.of(()), ring)

    list(replication.send_changes())
    assert frames == []
    owner.ask_for_replica(standby)
    list(replication.send_changes())

    (frame,) = frames
    assert isinstance(frame, Copy)
    standby.ownership.keep_replica(owner.name, as_snapshot(frame.counts), NOW)
    standby.stand_in_for(owner.name)
    assert standby.used == 4


def test_a_shard_that_left_its_restarted_owner_is_not_asked_for() -> None:
    owner, standby, _ = restarted_alone()

    standby.take(owner, standby.ask(owner))

    assert not owner.ownership.unasked.to_ask


def test_recovered_counts_are_not_added_where_they_were_never_lost() -> None:
    owner, restarted = Host("a"), Host("b")
    owner.ownership.start([shard_of(KEY)])
    owner.spend(4)
    restarted.ownership.start(
        [shard_of(KEY)]
    )  # Cut off from its data center, the node asked other data centers,
    # which had received these hits.
    restarted.spend(2)

    owner.take(restarted, owner.ask(restarted))

    assert owner.used == 6


def test_recovered_counts_are_added_at_a_node_without_data() -> None:
    restarted, receiver = Host("b"), Host("c")
    restarted.ownership.start([shard_of(KEY)])
    restarted.ownership.restore_lost({KEY: [0, 3]}, NOW)
    restarted.spend(2)

    receiver.take(restarted, receiver.ask(restarted))

    assert receiver.used == 5


def test_admissions_of_a_nodes_standby_reach_the_owner_that_the_node_covers() -> None:
    owner, one, other = Host("c"), Host("a"), Host("b")
    owner.ownership.start([shard_of(KEY)])
    owner.spend(2)
    for stand_in in (one, other):
        owner.copy_to(stand_in)
    one.stand_in_for("c")
    one.spend(1)
    other.ownership.on_member_change(member("c"), member("c", Status.LEFT))
    other.stand_in_for(
        "a"
    )  # The owner by the current ring, since the actual owner seemed to have left.
    other.spend(4)

    one.take(other, one.ask(other))
    one.take(owner, one.ask(owner))

    assert one.used == 7


def test_a_node_with_a_replica_does_not_continue_from_another() -> None:
    owner, one, other = Host("a"), Host("b"), Host("c")
    owner.ownership.start([shard_of(KEY)])
    owner.spend(5)
    owner.copy_to(other)
    owner.spend(1)
    owner.copy_to(one)
    one.stand_in_for("a")
    one.spend(2)

    copy = one.ask(other)
    one.go_on_from(copy)

    assert one.used == 8


def test_shards_of_an_earlier_life_may_have_a_new_holder() -> None:
    earlier, receiver, stand_in, again = Host("a"), Host("b"), Host("c"), Host("a")
    earlier.ownership.start([shard_of(KEY)])
    earlier.spend(4)
    earlier.copy_to(stand_in)
    receiver.take(earlier, receiver.ask(earlier))
    stand_in.stand_in_for("a")
    stand_in.spend(1)

    again.take(stand_in, again.ask(stand_in))
    again.take(receiver, again.ask(receiver))

    assert again.used == 5


def test_units_admitted_by_several_frames_are_marked_dirty_once() -> None:
    host = Host("a")
    keys = [RULE.to_bytes(8, "big") + b"%d" % number for number in range(50)]
    for _ in range(20):
        for key in keys:
            batch = Batch(Op.CHECK, [key, KEY], [1, 2000])
            host.ownership.record_decided(batch, decide_batch(host.engine, batch, NOW), NOW)

    assert list(host.ownership.changed.keys) == keys


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
