"""Keys that wait for only one of two standbys: nothing is lost, and the metrics show the delay."""

import trio
from trio.testing import MockClock

from hashring import NodeId, shard_of
from ringfence.wire import Done, Pull
from tests.node.shards.replication.replication_world import MANY, MS, World
from tests.node.shards.replication.test_second_standbys import THREE, TWO, joining, key_between
from tests.node.shards.transfer_peers import NOW, A, B, C, ring

D = NodeId("d")


def owed_to_c() -> tuple[World, bytes]:
    """Return a node whose present standby has got a changed counter, but not the joining one."""
    w, key = joining(THREE, TWO), key_between(A, C, B)
    w.hold(key)
    w.spend(key)
    w.round()
    for to, _ in w.links.take():
        w.links.answer(Done(1) if to == B else None)
    return w, key


def test_a_shard_is_transferred_with_a_new_key_that_waits_for_both_standbys() -> None:
    w = joining(THREE, TWO)
    key = next(
        key
        for key in MANY
        if (THREE.owner(shard_of(key)), TWO.owner(shard_of(key))) == (C, A)
        and THREE.standby(shard_of(key)) == A
    )
    w.hold(key)
    w.owner.sender.index.start()
    w.spend(key)
    w.links.are_down = True
    w.round()

    pull = Pull(1, [shard_of(key)], 0, 0)
    pulled = w.owner.sender.answer(C, pull, NOW, lambda shard: False)

    assert pulled.counts.unpack().keys == [key]
    w.links.are_down = False
    w.round()
    assert w.links.take() == []
    assert w.replication.backlog == 0


def test_the_age_of_the_backlog_contains_keys_that_wait_for_one_standby() -> None:
    w, key = owed_to_c()
    w.now += 300 * MS

    assert w.replication.age_ms == 300
    w.round()
    w.links.answer_all()

    assert w.links.take() == [(C, [key])]
    assert w.replication.age_ms == 0
    assert w.count("copies_late") == 1


def test_keys_that_wait_for_one_standby_displace_no_new_changes() -> None:
    w, key = owed_to_c()
    w.replication._max_keys = w.second._max_keys = 1
    other = next(
        each
        for each in MANY
        if each != key and THREE.standby(shard_of(each)) == B and THREE.owner(shard_of(each)) == A
    )
    w.hold(other)
    w.spend(other)

    w.round()

    assert sorted(w.links.take()) == [(B, [other]), (C, [key])]
    assert w.count("keys_not_copied") == 0


def test_the_oldest_keys_above_the_bound_are_dropped_and_counted() -> None:
    w, key = owed_to_c()
    w.second._max_keys = 1
    w.links.are_down = True
    late = next(
        each
        for each in MANY
        if each != key
        and (THREE.standby(shard_of(each)), TWO.standby(shard_of(each))) == (C, B)
        and THREE.owner(shard_of(each)) == A
    )
    w.hold(late)
    w.spend(late)
    w.round()

    assert [*w.second.owed[C].keys] == [late]
    assert w.count("keys_not_copied") == 1


def test_a_standby_that_may_get_no_key_is_in_no_group() -> None:
    w, key = joining(THREE, TWO), key_between(A, C, B)
    w.owner.ownership.take_over(shard_of(key), D, [], w.now, ())

    assert w.second.groups([key]) == []


def test_a_lost_frame_is_sent_to_the_standby_of_the_present_ring() -> None:
    before, after, check = ring(A, B, C), ring(A, C, D), ring(A, C)
    key = next(
        key
        for key in MANY
        if {each.owner(shard_of(key)) for each in (before, after, check)} == {A}
        and (before.standby(shard_of(key)), after.standby(shard_of(key))) == (B, C)
    )
    w = World(A, B, C)
    w.hold(key)
    w.spend(key)
    w.round()
    assert [to for to, _ in w.links.take()] == [B]
    w.replication.on_ring_change(before, after, check)
    w.links.answer(None)

    w.round()

    assert w.links.take() == [(C, [key])]


def test_a_key_whose_standby_must_be_asked_first_waits_and_the_other_one_gets_it_once() -> None:
    w, key = joining(THREE, TWO), key_between(A, C, B)
    w.hold(key)
    w.owner.ownership.unasked.on_ring_change(THREE)
    w.owner.ownership.unasked.add([shard_of(key)], {shard_of(key): (B,)})
    w.owner.ownership.unasked.on_ring_change(THREE)
    w.spend(key)

    for _ in range(3):
        w.round()
    assert w.links.take() == [(B, [key])]
    w.owner.ownership.unasked.on_answer(C, [shard_of(key)])
    w.round()

    assert w.links.take() == [(C, [key])]


async def test_a_new_present_standby_gets_the_counters_that_have_not_changed(
    autojump_clock: MockClock,
) -> None:
    four, before, after = ring(A, B, C, D), ring(A, B, D), ring(A, D)
    key = next(
        key
        for key in MANY
        if {each.owner(shard_of(key)) for each in (four, before, after, ring(A, C, D))} == {A}
        and (before.standby(shard_of(key)), after.standby(shard_of(key))) == (B, D)
        and ring(A, C, D).standby(shard_of(key)) == four.standby(shard_of(key)) == C
    )
    w = joining(four, before)
    w.hold(key)
    w.owner.engine.charge([key], [1], [0], NOW)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(w.replication.run)
        w.replication.on_ring_change(four, ring(A, C, D), after)  # Member `b` is lost.
        await trio.sleep(1)  # Longer than the rounds that fill a new standby.
        nursery.cancel_scope.cancel()

    assert w.links.take() == [(D, [key])]
