"""Frames of replication: their size, their receivers, and the keys of new standbys."""

import pytest
import trio
from trio.testing import MockClock

from hashring import NodeId, shard_of
from node.shards.replication import INTERVAL
from node.shards.transfers.unacknowledged_transfers import BYTES_PER_PART
from ringfence.wire import Done, Holding, ShardGroup
from tests.node.shards.replication.replication_world import MANY, MS, World, held_by
from tests.node.shards.transfer_peers import (
    KEYS,
    NOW,
    RULE,
    SHARD,
    A,
    B,
    C,
    Peer,
    keys_of_shards,
    ring,
)

# -- size of frames --------------------------------------------------------------------------------


@pytest.mark.parametrize(("hits", "frames"), [(10, [4]), (5000, [2, 2]), (14_000, [1, 1, 1, 1])])
def test_a_frame_of_several_keys_has_at_most_64_000_bytes(hits: int, frames: list[int]) -> None:
    w = World(A, B)
    w.fill(*KEYS, hits=hits)

    w.round()

    sizes = [len(copy.counts.rows) for _, copy in w.links.sent]
    assert max(sizes) <= BYTES_PER_PART
    assert [len(keys) for _, keys in w.links.take()] == frames
    assert w.count("copies_sent") == len(frames)
    assert w.count("keys_copied") == 4


def test_a_key_with_a_long_log_is_sent_alone_and_shortens_the_next_steps() -> None:
    w = World(A, B)
    keys = [key for keys in keys_of_shards(2, 4) for key in keys]
    w.owner.fill(*keys, hits=8000)
    w.hold(*MANY[:20])
    w.owner.ownership.changed.update(keys[:1])
    assert w.round() == 1
    w.links.answer_all()

    w.owner.ownership.changed.update(keys[:3])
    assert w.round() == 3
    assert [len(keys) for _, keys in w.links.take()] == [1] * 4


@pytest.mark.parametrize("keys", [2000, 2001, 4000])
def test_a_step_sends_at_most_2000_keys(keys: int) -> None:
    w = World(A, B)
    w.hold(*MANY)
    for _ in range(2):  # The first round only shows how short the counters are.
        w.owner.ownership.changed.update(MANY[:keys])
        w.links.take()
        steps = w.round()
        w.links.answer_all()

    assert [len(some) for _, some in w.links.take()] == [
        min(2000, keys - sent) for sent in range(0, keys, 2000)
    ]
    assert steps == -(-keys // 2000)


def test_a_standby_has_at_most_256_unacknowledged_frames() -> None:
    w = World(A, B)
    keys = [RULE.to_bytes(8, "big") + b"%d" % number + bytes(110) for number in range(40_000)]
    w.hold(*keys)
    w.owner.engine.charge(keys, [1] * len(keys), [0] * len(keys), NOW)
    w.owner.ownership.changed.update(keys)

    w.round()

    assert len(w.links.pending) == 256
    waiting = w.replication.backlog
    assert waiting + sum(len(some) for _, some in w.links.take()) == len(keys)
    for left in (4, 3):
        while len(w.links.pending) > left:
            w.links.answer(Done(1))
        w.round()
        assert w.replication.backlog == (waiting if left == 4 else 0)


# -- receivers -------------------------------------------------------------------------------------


def test_each_key_is_sent_to_the_standby_of_its_shard() -> None:
    w = World(A, B, C)
    of_ring = ring(A, B, C)
    keys = [held_by(A, B, of_ring), held_by(A, C, of_ring)]
    w.hold(*keys)
    w.spend(*keys)

    w.round()

    assert w.links.take() == [(B, [keys[0]]), (C, [keys[1]])]


@pytest.mark.parametrize("me", [A, B, C])
def test_a_standby_that_still_holds_a_shard_replicates_it_to_the_owner(me: NodeId) -> None:
    w = World(A, B, C, me=me)
    others = [name for name in (A, B, C) if name != me]
    keys = [held_by(owner, me, ring(A, B, C)) for owner in others]
    w.hold(*keys)
    w.spend(*keys)

    w.round()

    assert w.links.take() == [(owner, [key]) for owner, key in zip(others, keys, strict=True)]
    assert w.replication.backlog == 0


def test_a_standby_that_covers_a_shard_sends_nothing_to_its_owner() -> None:
    w = World(A, B, me=B)
    key = held_by(A, B, ring(A, B))
    w.owner.ownership.take_over(shard_of(key), A, [], NOW)
    w.spend(key)

    w.round()

    assert (w.links.take(), w.replication.backlog) == ([], 0)


@pytest.mark.parametrize("answer", ["nothing", "replica", "moved"])
def test_a_restarted_owner_replicates_what_it_counted_for_the_member_that_is_its_standby(
    answer: str,
) -> None:
    """The restarted owner counted in place of its standby until the standby answered."""
    w, before = World(A, B, C), Peer(A)
    key = held_by(A, B, ring(A, B, C))
    shard, ownership = shard_of(key), w.owner.ownership
    before.spend(key)
    ownership.take_over(shard, B, [(NOW, before.engine.snapshot([key], NOW))], NOW)
    w.spend(key)
    w.round()
    assert (w.links.take(), w.replication.backlog) == ([], 0)

    match answer:
        case "nothing":
            ownership.owner_has_nothing(shard, NOW)
        case "replica":
            replica = before.engine.snapshot([key], NOW)
            group = ShardGroup([shard], [1], Holding.COPY, 1, "", "", A, 0)
            ownership.owner_has_replica(shard, replica, group, NOW)
        case _:
            ownership.owner_moved(shard, C, NOW)
    w.round()

    assert w.links.take() == [(B, [key])]
    w.round()
    assert w.links.take() == []


def test_a_third_member_that_covers_a_shard_replicates_it_to_the_standby() -> None:
    w = World(A, B, C, me=C)
    key = held_by(A, B, ring(A, B, C))
    w.owner.ownership.take_over(shard_of(key), A, [], NOW)
    w.spend(key)
    w.round()
    assert w.links.take() == [(B, [key])]

    silent = World(A, B, C, me=C)
    silent.owner.ownership.take_over(shard_of(key), A, [], NOW, [B])
    silent.spend(key)
    silent.round()
    # The silent standby may have newer counters, which this node requests first.
    assert (silent.links.take(), silent.replication.backlog) == ([], 1)


def test_a_node_without_other_members_keeps_no_changes() -> None:
    w = World(A)
    w.hold(*KEYS)
    w.spend(*KEYS)

    assert w.round() == 0

    assert (w.links.take(), w.replication.backlog, w.count("keys_not_copied")) == ([], 0, 0)


def test_a_busy_standby_delays_no_other_standby() -> None:
    w = World(A, B, C)
    of_ring = ring(A, B, C)
    slow, other = held_by(A, B, of_ring), held_by(A, C, of_ring)
    w.hold(slow, other)
    for _ in range(4):
        w.spend(slow)
        w.round()
    w.links.take()
    w.spend(slow, other)

    w.round()

    assert w.links.take() == [(C, [other])]
    assert w.replication.backlog == 1


def test_a_frame_states_the_origins_of_its_counters() -> None:
    w = World(A, B)
    [[one], [two], [three]] = keys_of_shards(3, 1)
    w.hold(one)
    w.hold(two, three)
    origins = w.owner.ownership.origins
    origins.set([shard_of(one)], (7, 9))
    origins.set([shard_of(two), shard_of(three)], (7, 8))
    w.spend(one, two, three)
    w.round()
    w.spend(two, three)
    w.round()

    [(_, different), (_, equal)] = w.links.sent
    order = different.counts.unpack().keys
    assert [different.origins[at] for at in different.which_origins] == [
        (7, 9) if key == one else (7, 8) for key in order
    ]
    assert len(different.origins) == 2
    assert (equal.origins, equal.which_origins) == ([(7, 8)], [])


# -- acknowledgements ------------------------------------------------------------------------------


@pytest.mark.parametrize(("ms", "ns", "late"), [(50, 0, 0), (100, 0, 0), (100, 1, 1), (900, 0, 1)])
def test_an_acknowledgement_is_late_more_than_100_ms_after_the_change(
    ms: int, ns: int, late: int
) -> None:
    w = World(A, B)
    w.hold(*KEYS)
    w.spend(KEYS[0])
    w.round()
    w.now += ms * MS + ns
    assert w.replication.age_ms == ms

    w.links.answer(Done(1))

    assert (w.count("copies_late"), w.count("copies_lost")) == (late, 0)
    assert w.replication.age_ms == 0


def test_the_age_includes_changes_that_wait_for_a_link() -> None:
    w = World(A, B)
    assert w.replication.age_ms == 0
    w.hold(*KEYS)
    w.links.are_down = True
    for key in KEYS[:2]:
        w.spend(key)
        w.round()
        w.now += 30 * MS
    assert (w.replication.age_ms, w.replication.backlog) == (60, 2)

    w.links.are_down = False
    w.round()
    assert (w.replication.age_ms, w.replication.backlog) == (60, 0)
    w.links.answer(Done(1))
    assert w.replication.age_ms == 0
    w.now += 1000 * MS
    assert w.replication.age_ms == 0


async def test_the_age_includes_changes_of_the_present_interval(autojump_clock: MockClock) -> None:
    w = World(A, B)
    w.hold(*KEYS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(w.replication.run)
        await trio.sleep(1)
        w.spend(KEYS[0])
        await trio.sleep(0.001)
        w.now += 7 * MS
        assert (w.replication.age_ms, w.links.take()) == (7, [])
        nursery.cancel_scope.cancel()


async def test_held_back_keys_leave_when_their_standby_has_three_frames_left(
    autojump_clock: MockClock,
) -> None:
    w = World(A, B, C)
    of_ring = ring(A, B, C)
    other = held_by(A, C, of_ring)
    slow = next(
        keys
        for keys in keys_of_shards(20, 7)
        if (of_ring.owner(shard_of(keys[0])), of_ring.standby(shard_of(keys[0]))) == (A, B)
    )
    w.fill(*slow[:6], hits=14_000)
    w.hold(other)
    w.round()
    assert len(w.links.pending) == 6
    w.links.take()
    w.spend(slow[6], other)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(w.replication.run)
        await trio.sleep(1.1 * INTERVAL)
        assert w.links.take() == [(C, [other])]
        for answers in ([-1], [0, 0]):  # Of the other standby, and of this one.
            for at in answers:
                w.links.pending.pop(at)(Done(1))
            w.spend(other)  # A round would send it.
            await trio.sleep(0.1 * INTERVAL)
            assert w.links.take() == []
        w.links.answer(Done(1))
        await trio.sleep(0.1 * INTERVAL)
        assert w.links.take() == [(B, [slow[6]]), (C, [other])]
        nursery.cancel_scope.cancel()


# -- new standbys ----------------------------------------------------------------------------------


def test_counters_are_sent_to_a_standby_that_is_new_or_was_restarted() -> None:
    w = World()
    w.hold(*MANY[:300])
    held = {shard_of(key) for key in MANY[:300]}
    both, three = ring(A, B), ring(A, B, C)

    w.replication.on_ring_change(ring(A), both, both)
    assert w.replication.shards_with_new_standby() == {
        shard for shard in held if both.standby(shard) is not None
    }
    assert w.replication.shards_with_new_standby() == set()
    w.replication.on_ring_change(both, three, three)
    assert w.replication.shards_with_new_standby() == {
        shard for shard in held if both.standby(shard) != three.standby(shard)
    }
    of_c = {shard for shard in held if three.standby(shard) == C}
    assert w.replication.shards_with_new_standby([C]) == of_c
    assert 0 < len(of_c) < len(held)
    assert w.replication.shards_with_new_standby([NodeId("d")]) == set()


def test_all_changes_of_the_ring_since_the_last_call_count() -> None:
    w = World()
    w.hold(*MANY[:300])
    held = {shard_of(key) for key in MANY[:300]}
    first, second, third = ring(A, B), ring(A, B, C), ring(A, B)

    w.replication.on_ring_change(first, second, second)
    w.replication.on_ring_change(second, third, third)  # Member `b` missed the changes meanwhile.

    assert w.replication.shards_with_new_standby() == {
        shard for shard in held if first.standby(shard) != second.standby(shard)
    }


async def test_a_restarted_standby_gets_the_counters_of_its_shards(
    autojump_clock: MockClock,
) -> None:
    w = World(A, B, C)
    of_ring = ring(A, B, C)
    keys = [held_by(A, B, of_ring), held_by(A, C, of_ring)]
    w.hold(*keys)
    w.spend(*keys)
    w.round()
    w.links.answer_all()
    w.links.take()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(w.replication.run)
        w.replication.on_member_restarted(C)
        await trio.sleep(1)
        assert w.links.take() == [(C, [keys[1]])]
        w.links.answer_all()
        w.replication.on_ring_change(of_ring, ring(A, B), ring(A, B))
        await trio.sleep(1)
        assert w.links.take() == [(B, [keys[1]])]
        nursery.cancel_scope.cancel()


def test_only_keys_of_the_given_shards_are_marked() -> None:
    w = World(A, B)
    w.hold(*KEYS)
    other = next(key for key in MANY if shard_of(key) != SHARD)

    w.replication.mark([KEYS[0], other, KEYS[1]], {SHARD})

    assert [*w.owner.ownership.changed.keys] == KEYS[:2]
