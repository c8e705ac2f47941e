"""Shards with two standbys while a member joins: the present standby and the next one."""

import pytest
import trio
from trio.testing import MockClock

from hashring import NodeId, Ring, shard_of
from ringfence.wire import Done, Source
from tests.node.cluster import address_of, counter, ring_of, world
from tests.node.shards.replication.replication_world import MANY, World, held_by
from tests.node.shards.transfer_peers import A, B, C, ring

D = NodeId("d")
TWO, THREE = ring(A, B), ring(A, B, C)
RULES = """
domain: api
descriptors:
  - key: client
    rate_limit: {unit: day, requests_per_unit: 1000, algorithm: fixed_window}
"""


def second_of(w: World) -> set[int]:
    """Return the shards whose second standby is new since the last call."""
    return w.second.shards_with_new_one([])


def joining(ring_with: Ring, ring_without: Ring) -> World:
    """Return a node that knows a joining member: it is in the first ring only."""
    w = World()
    w.replication.on_ring_change(ring(), ring_without, ring_without)
    w.replication.on_ring_change(ring_without, ring_with, ring_without)
    w.replication.shards_with_new_standby()
    second_of(w)
    return w


def key_between(owner: NodeId, next_standby: NodeId, now_standby: NodeId) -> bytes:
    """Return a key of `owner` whose standby changes when member `c` has joined."""
    return next(
        key
        for key in MANY
        if THREE.owner(shard := shard_of(key)) == owner == TWO.owner(shard)
        and (THREE.standby(shard), TWO.standby(shard)) == (next_standby, now_standby)
    )


def test_present_and_next_standby_get_a_changed_counter() -> None:
    w, key, of_b = joining(THREE, TWO), key_between(A, C, B), held_by(A, B, THREE)
    w.hold(key, of_b)
    w.spend(key, of_b)

    w.round()

    assert sorted(w.links.take()) == [(B, [of_b, key]), (C, [key])]
    w.links.answer_all()
    assert w.replication.backlog == 0


def test_only_the_next_standby_gets_counters_after_the_member_has_joined() -> None:
    w, key = joining(THREE, TWO), key_between(A, C, B)
    w.hold(key)
    w.replication.on_ring_change(THREE, THREE, THREE)
    w.spend(key)

    w.round()

    assert w.links.take() == [(C, [key])]
    assert w.replication.shards_with_new_standby() == set()


def test_a_present_standby_that_leaves_gets_no_counters() -> None:
    w, key = joining(ring(A, C), TWO), held_by(A, C, ring(A, C))
    w.hold(key)
    w.spend(key)

    w.round()

    assert w.links.take() == [(C, [key])]


def test_a_node_is_no_second_standby_of_its_own_shards_and_sends_only_those_that_it_holds() -> None:
    w, held = joining(THREE, TWO), key_between(A, C, B)
    w.hold(held)

    assert w.second.groups([*MANY]) == [(B, [held])]


@pytest.mark.parametrize("way", ["covered", "not asked"])
def test_a_present_standby_that_may_have_newer_counters_gets_none(way: str) -> None:
    w, key = joining(THREE, TWO), key_between(A, C, B)
    shard = shard_of(key)
    if way == "covered":
        w.owner.ownership.take_over(shard, D, [], w.now, ())
    else:
        w.hold(key)
        w.owner.ownership.unasked.add([shard], {shard: (C,)})
    w.spend(key)

    w.round()

    assert B not in [to for to, _ in w.links.take()]


@pytest.mark.parametrize(("busy", "other"), [(B, C), (C, B)])
def test_a_busy_standby_gets_a_counter_later_and_the_other_one_gets_it_once(
    busy: NodeId, other: NodeId
) -> None:
    w, key, of_busy = joining(THREE, TWO), key_between(A, C, B), held_by(A, busy, THREE)
    w.hold(key, of_busy)
    for _ in range(4):
        w.spend(of_busy)
        w.round()
    w.links.answer_all(except_of=busy)
    w.links.take()
    w.spend(key)

    w.round()
    w.round()
    assert w.links.take() == [(other, [key])]
    assert w.replication.backlog == 1
    w.links.answer_all()
    w.round()

    assert w.links.take() == [(busy, [key])]
    assert w.replication.backlog == 0


@pytest.mark.parametrize(("lost", "other"), [(B, C), (C, B)])
def test_a_counter_whose_frame_is_lost_is_sent_again_only_to_this_standby(
    lost: NodeId, other: NodeId
) -> None:
    w, key = joining(THREE, TWO), key_between(A, C, B)
    w.hold(key)
    w.spend(key)
    w.round()
    for to, _ in w.links.take():
        w.links.answer(None if to == lost else Done(1))

    w.round()

    assert w.links.take() == [(lost, [key])]


def test_a_link_that_fails_at_once_gets_a_counter_once_in_a_round() -> None:
    w, key = joining(THREE, TWO), key_between(A, C, B)
    w.hold(key)
    w.links.fail_at_once = True
    w.spend(key)
    w.round()
    w.links.take()

    w.round()

    assert sorted(w.links.take()) == [(B, [key]), (C, [key])]


def test_only_the_next_standby_gets_the_counters_that_have_not_changed() -> None:
    w = World()
    w.replication.on_ring_change(ring(), TWO, TWO)
    w.replication.shards_with_new_standby()
    key = key_between(A, C, B)
    w.hold(key)
    w.replication.on_ring_change(TWO, THREE, TWO)

    w.replication.mark([key], w.replication.shards_with_new_standby())
    w.round()

    assert w.links.take() == [(C, [key])]


def test_waiting_counters_are_sent_when_the_member_has_joined() -> None:
    w, key = joining(THREE, TWO), key_between(A, C, B)
    w.hold(key)
    w.links.are_down = True
    w.spend(key)
    w.round()
    w.links.are_down = False

    w.replication.on_ring_change(THREE, THREE, THREE)
    w.round()

    assert w.links.take() == [(C, [key])]


def test_a_restarted_second_standby_gets_its_counters() -> None:
    w = joining(THREE, TWO)
    w.hold(*MANY[:300])
    held = {shard_of(key) for key in MANY[:300]}

    assert w.second.shards_with_new_one([B]) == {
        shard for shard in held if B == TWO.standby(shard) != THREE.standby(shard)
    }
    assert w.second.shards_with_new_one([C]) == set()


async def test_a_second_standby_that_was_busy_gets_its_counters_without_another_change(
    autojump_clock: MockClock,
) -> None:
    w, key = joining(THREE, TWO), key_between(A, C, B)
    w.hold(key)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(w.replication.run)
        w.spend(key)
        await trio.sleep(0.2)  # Longer than a round, and below as well.
        for to, _ in w.links.take():
            w.links.answer(None if to == B else Done(1))
        await trio.sleep(0.2)
        nursery.cancel_scope.cancel()

    assert w.links.take() == [(B, [key])]


def test_a_new_present_standby_gets_all_counters_of_its_shards() -> None:
    four = ring(A, B, C, D)
    w = joining(four, ring(A, B, D))
    w.hold(*MANY[:300])
    w.replication.on_ring_change(four, ring(A, C, D), ring(A, D))  # Member `b` is lost.

    held = {shard_of(key) for key in MANY[:300]}
    before, after = ring(A, B, D), ring(A, D)
    new = {
        shard
        for shard in held
        if ring(A, C, D).standby(shard) != after.standby(shard) != before.standby(shard)
        and after.standby(shard) != A
    }
    assert new
    assert second_of(w) == new
    assert second_of(w) == set()


async def test_a_standby_has_the_counters_of_an_owner_that_is_lost_while_a_member_joins(
    autojump_clock: MockClock,
) -> None:
    async with world("a", "b", rules=RULES) as w, w.client("a", "b", leases=False) as limiter:
        two, three = ring_of(("a", "b")), ring_of(("a", "b", "c"))
        names = [f"n{number}" for number in range(2000)]
        shards = {name: shard_of(counter(w.rules, "client", name)) for name in names}
        name = next(
            name
            for name, shard in shards.items()
            if (three.owner(shard), three.standby(shard), two.owner(shard)) == ("a", "c", "a")
        )
        for peer in ("a", "b"):
            w.network.set_delay(address_of(peer), address_of("c"), 0.15)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(w.start, "c")
            await trio.sleep(2)  # With these delays, the join takes longer.
            records = w.nodes["a"].queries.members(1).members
            assert {each.name: each.state for each in records}["c"] == "joining"
            for _ in range(50):
                await limiter.check("api", {"client": name})
            await trio.sleep(0.2)  # All changes have been replicated.
            w.network.pause(address_of("a"))
            decision = await limiter.check("api", {"client": name})
            w.network.resume(address_of("a"))

        assert decision.source is Source.STANDBY
        assert decision.remaining == 1000 - 51
