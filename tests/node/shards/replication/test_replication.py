"""Replication of changed counters to the standby, and charges of the standby's admissions."""

import gc
import weakref
from collections.abc import Callable
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from hashring import NodeId, shard_of
from node.metrics.counters import Counters
from node.shards.replication import INTERVAL, Replication
from ringfence.limiter import Algorithm, EngineRule, Limit
from ringfence.peering.link import Link
from ringfence.wire import (
    Copy,
    Done,
    Op,
    decode,
    encode,
)
from tests.node.cluster import CONTAINMENT
from tests.node.shards.transfer_peers import DAY, KEYS, NOW, RULE, SHARD, A, B, Peer, of, ring


class Standby:
    """Standby that answers replication frames only when the test requests it."""

    def __init__(self) -> None:
        self.frames: list[tuple[Copy, Callable[[object], None]]] = []

    def call(self, make: Callable[[int], Copy], on_reply: Callable[[object], None]) -> None:
        frame = decode(encode(make(1)))
        assert isinstance(frame, Copy)
        self.frames.append((frame, on_reply))

    def answer(self, reply: object) -> list[bytes]:
        frame, on_reply = self.frames.pop(0)
        on_reply(reply)
        return frame.counts.unpack().keys


def replicating(
    owner: Peer,
    link_to: Callable[[NodeId], Link | None] | None = None,
    *,
    clock: Callable[[], int] = lambda: NOW,
    counters: Counters | None = None,
    max_keys: int = 1_000_000,
) -> tuple[Replication, Standby]:
    standby = Standby()
    replication = Replication(
        owner.name,
        owner.ownership,
        owner.sender,
        owner.engine,
        counters or Counters(),
        link_to or (lambda name: cast(Link, standby)),
        clock,
        CONTAINMENT,
        max_keys,
    )
    replication.on_ring_change(ring(), ring(A, B), ring(A, B))
    return replication, standby


# Replication


def test_keys_of_a_replication_frame_without_an_acknowledgement_are_sent_again() -> None:
    owner = Peer(A)
    owner.ownership.start([SHARD])
    replication, standby = replicating(owner)
    owner.spend(KEYS[0])
    owner.spend(KEYS[1])
    list(replication.send_changes())

    assert standby.answer(None) == KEYS[:2]
    list(replication.send_changes())
    assert standby.answer(Done(1)) == KEYS[:2]
    list(replication.send_changes())

    assert not standby.frames
    assert not owner.ownership.changed.keys


def test_keys_of_a_standby_without_a_link_are_sent_when_there_is_one() -> None:
    owner = Peer(A)
    owner.ownership.start([SHARD])
    links: list[Link] = []
    replication, standby = replicating(owner, lambda name: links[0] if links else None)
    owner.spend(KEYS[0])

    list(replication.send_changes())
    links.append(cast(Link, standby))
    list(replication.send_changes())

    assert standby.answer(Done(1)) == KEYS[:1]
    assert not owner.ownership.changed.keys


def test_replication_frames_with_keys_of_any_length_fit_into_messages() -> None:
    owner = Peer(A)
    keys = [RULE.to_bytes(8, "big") + b"%0120d" % number for number in range(1000)]
    owner.ownership.start(dict.fromkeys(map(shard_of, keys)))
    replication, standby = replicating(owner)
    for key in keys:
        owner.fill(key, hits=10)
        owner.spend(key)

    list(replication.send_changes())

    assert sorted(
        key for frame, _ in standby.frames for key in frame.counts.unpack().keys
    ) == sorted(keys)


def test_a_counter_that_a_denied_check_converts_to_another_limit_is_replicated() -> None:
    """Otherwise the replica of a bucket drains by the old limit, so the standby has less units."""
    owner, standby_node = Peer(A), Peer(B)
    fast, slow = (Limit.of_ns(amount, DAY, Algorithm.TOKEN_BUCKET) for amount in (24, 1))
    owner.engine.set_rules({RULE: EngineRule(fast)})
    owner.ownership.start([SHARD])
    replication, standby = replicating(owner)
    owner.spend(KEYS[0], units=24)
    list(replication.send_changes())
    standby.answer(Done(1))

    owner.engine.set_rules({RULE: EngineRule(slow)})
    owner.spend(KEYS[0])
    list(replication.send_changes())

    [(frame, _)] = standby.frames
    standby_node.engine.restore(frame.counts.unpack(), NOW)
    in_an_hour = NOW + DAY // 24
    assert owner.engine.used(KEYS[0], in_an_hour) == 24
    assert standby_node.engine.used(KEYS[0], in_an_hour) == 24


@pytest.mark.parametrize("how", ["decided", "marked"])
async def test_an_idle_node_runs_no_replication_rounds_and_sends_a_change_in_time(
    autojump_clock: MockClock, how: str
) -> None:
    owner = Peer(A)
    owner.fill(KEYS[0], hits=3)
    owner.ownership.start([SHARD])
    streaming, standby = replicating(owner)
    rounds: list[float] = []
    send = streaming.send_changes
    streaming.send_changes = lambda: (rounds.append(trio.current_time()), send())[1]  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(streaming.run)
        await trio.sleep(1)
        standby.answer(Done(1))  # The standby is new, so it gets all counters.
        rounds.clear()
        await trio.sleep(60)
        assert not rounds
        for _ in range(2):
            if how == "decided":
                owner.spend(KEYS[0])
            else:
                owner.ownership.changed.add(KEYS[0])
            await trio.sleep(1.01 * INTERVAL)
            assert standby.answer(Done(1)) == KEYS[:1]
            await trio.sleep(60)
        nursery.cancel_scope.cancel()

    assert len(rounds) == 2


def with_changes(count: int) -> tuple[Peer, list[bytes], Replication, Standby]:
    """Return an owner with this number of changed keys, the keys, and its replication."""
    owner = Peer(A)
    keys = [RULE.to_bytes(8, "big") + b"%06d" % number for number in range(count)]
    owner.ownership.start(dict.fromkeys(map(shard_of, keys)))
    for key in keys:
        owner.spend(key)
    return owner, keys, *replicating(owner)


def test_one_round_of_replication_sends_any_number_of_changes() -> None:
    _, keys, replication, standby = with_changes(40_000)
    assert replication.backlog == len(keys)

    steps = sum(1 for _ in replication.send_changes())

    assert steps > 10
    assert sorted(
        key for frame, _ in standby.frames for key in frame.counts.unpack().keys
    ) == sorted(keys)
    assert replication.backlog == 0


def test_a_key_that_changes_during_a_round_is_sent_again_in_the_next_one() -> None:
    owner, keys, replication, standby = with_changes(3000)

    steps = replication.send_changes()
    next(steps)
    owner.spend(keys[0])
    list(steps)

    assert [*owner.ownership.changed.keys] == [keys[0]]
    while standby.frames:
        standby.answer(Done(1))
    list(replication.send_changes())
    assert standby.answer(Done(1)) == [keys[0]]


def test_a_round_during_which_all_other_members_leave_sends_nothing_more() -> None:
    _, _, replication, standby = with_changes(3000)

    steps = replication.send_changes()
    next(steps)
    sent = len(standby.frames)
    replication.on_ring_change(ring(A, B), ring(), ring(A))

    assert list(steps) == []
    assert len(standby.frames) == sent > 0
    list(replication.send_changes())
    assert replication.backlog == 0


def test_a_node_that_leaves_a_ring_of_two_still_replicates() -> None:
    """If the transfer did not end in time, all hits since the start of the leave were lost."""
    owner, keys, replication, standby = with_changes(9)
    list(replication.send_changes())
    while standby.frames:
        standby.answer(Done(1))
    assert replication.shards_with_new_standby()

    replication.on_ring_change(ring(A, B), ring(B), ring(A, B))
    key = next(key for key in keys if ring(A, B).owner(shard_of(key)) == A)
    owner.spend(key)
    list(replication.send_changes())

    assert standby.answer(Done(1)) == [key]
    assert not standby.frames
    assert not replication.shards_with_new_standby(), "the other member has all replicas"


def test_four_frames_without_acknowledgement_hold_back_the_next_round() -> None:
    owner = Peer(A)
    owner.ownership.start([SHARD])
    replication, standby = replicating(owner)
    for key in (*KEYS, KEYS[0]):
        owner.spend(key)
        list(replication.send_changes())

    assert len(standby.frames) == 4
    assert replication.backlog == 1


async def test_keys_that_were_held_back_leave_after_the_acknowledgement_and_not_a_round_later(
    autojump_clock: MockClock,
) -> None:
    owner = Peer(A)
    owner.ownership.start([SHARD])
    replication, standby = replicating(owner)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replication.run)
        for key in (*KEYS, KEYS[0]):
            owner.spend(key)
            await trio.sleep(1.01 * INTERVAL)
        assert len(standby.frames) == 4

        standby.answer(Done(1))
        await trio.sleep(0.01 * INTERVAL)

        assert [frame.counts.unpack().keys for frame, _ in standby.frames][-1] == KEYS[:1]
        assert not replication.backlog
        nursery.cancel_scope.cancel()


async def test_a_change_leaves_early_enough_that_half_of_the_promised_time_remains_for_its_way(
    autojump_clock: MockClock,
) -> None:
    owner = Peer(A)
    owner.ownership.start([SHARD])
    replication, standby = replicating(owner)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replication.run)
        await trio.sleep(1)
        owner.spend(KEYS[0])
        await trio.sleep(0.051)

        assert standby.answer(Done(1)) == KEYS[:1]
        nursery.cancel_scope.cancel()


async def test_the_age_is_that_of_the_oldest_change_without_an_acknowledgement(
    autojump_clock: MockClock,
) -> None:
    owner, counters = Peer(A), Counters()
    owner.ownership.start([SHARD])
    replication, standby = replicating(
        owner, clock=lambda: NOW + round(trio.current_time() * 1e9), counters=counters
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replication.run)
        for key in KEYS[:2]:
            owner.spend(key)
            await trio.sleep(0.06)
        assert replication.age_ms == 120

        standby.answer(None)  # The first key is sent again, and keeps its age.
        await trio.sleep(0.06)
        assert replication.age_ms == 180
        standby.answer(Done(1))
        assert replication.age_ms == 180
        standby.answer(Done(1))
        assert replication.age_ms == 0
        assert counters.as_dict()["copies_late"] == 2

        await trio.sleep(60)
        owner.spend(KEYS[0])
        await trio.sleep(0.06)
        standby.answer(Done(1))
        assert counters.as_dict()["copies_late"] == 2
        nursery.cancel_scope.cancel()


def test_no_more_keys_wait_for_a_slow_standby_than_a_node_stores() -> None:
    owner, counters = Peer(A), Counters()
    owner.ownership.start([SHARD])
    links: list[Link] = []
    replication, standby = replicating(
        owner, lambda name: links[0] if links else None, counters=counters, max_keys=2
    )
    for key in KEYS[:3]:
        owner.spend(key)
        list(replication.send_changes())

    assert replication.backlog == 2
    assert counters.as_dict()["keys_not_copied"] == 1
    links.append(cast(Link, standby))
    list(replication.send_changes())
    assert sorted(standby.answer(Done(1))) == sorted(KEYS[1:3])


# Admissions of a standby


async def test_few_keys_wait_while_a_new_standby_gets_all_counters(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.shards.replication._MOST_MARKED", 100)
    monkeypatch.setattr("node.shards.replication._SLICE", 50)
    owner = Peer(A)
    keys = [RULE.to_bytes(8, "big") + b"%d" % number for number in range(1000)]
    owner.fill(*keys, hits=1)
    links: list[Link] = []
    replication, standby = replicating(owner, lambda name: links[0] if links else None)
    copied: list[bytes] = []

    async with trio.open_nursery() as nursery:
        nursery.start_soon(replication.run)
        await trio.sleep(1)
        assert replication.backlog == 150
        links.append(cast(Link, standby))
        for _ in range(100):
            owner.spend(keys[0])
            while standby.frames:
                copied += standby.answer(Done(1))
            await trio.sleep(INTERVAL)
        nursery.cancel_scope.cancel()

    assert {*copied} == {*keys}


def test_a_refund_at_a_standby_reduces_the_owners_later_charge() -> None:
    owner, as_standby = Peer(A), Peer(B)
    owner.fill(KEYS[0], hits=3)
    as_standby.ownership.take_over(SHARD, A, [(NOW, owner.engine.snapshot(KEYS[:1], NOW))], NOW)
    as_standby.spend(KEYS[0], units=5)
    as_standby.spend(KEYS[0], Op.REFUND, units=2)

    reply = as_standby.give(A)
    counts = reply.counts.unpack()
    owner.ownership.accept(SHARD, of(reply), B, counts, reply.fallback_counts, NOW)

    assert owner.used(KEYS[0]) == [3 + 5 - 2]


@pytest.mark.parametrize("hits_before", [0, 2])
@pytest.mark.parametrize("algorithm", [Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW_LOG])
def test_an_owner_charges_admissions_under_a_limit_that_is_in_no_rule(
    algorithm: Algorithm, hits_before: int
) -> None:
    limit = Limit.of_ns(100, DAY, algorithm=algorithm)
    key = next(
        key
        for number in range(1_000_000)
        if shard_of(key := (RULE + 1).to_bytes(8, "big") + b"%d" % number) == SHARD
    )
    owner, as_standby = Peer(A), Peer(B)
    owner.ownership.start([SHARD])
    for _ in range(hits_before):
        owner.spend(key, limit=limit)
    as_standby.ownership.take_over(SHARD, A, [], NOW)
    as_standby.spend(key, units=5, limit=limit)

    reply = as_standby.give(A)
    counts = reply.counts.unpack()
    owner.ownership.accept(SHARD, of(reply), B, counts, reply.fallback_counts, NOW)

    assert owner.used(key) == [hits_before + 5]
    [taken] = owner.engine.snapshot([key], NOW).limits
    assert taken == limit


def rounds_of(owner: Peer, keys: list[bytes]) -> Callable[[], int]:
    """Return a function that replicates all keys to an answering standby; it returns the steps."""
    replication, standby = replicating(owner)

    def replicate() -> int:
        owner.ownership.changed.update(keys)
        steps = sum(1 for _ in replication.send_changes())
        while standby.frames:
            standby.answer(Done(1))
        return steps

    return replicate


def test_a_step_sends_fewer_keys_when_their_counters_are_long() -> None:
    owner = Peer(A)
    keys = [RULE.to_bytes(8, "big") + b"%06d" % number for number in range(600)]
    owner.fill(*keys, hits=100)
    steps_of_a_round = rounds_of(owner, keys)

    steps_of_a_round()
    assert steps_of_a_round() > 5
    owner.engine.forget(keys)
    steps_of_a_round()
    assert steps_of_a_round() == 1


def test_a_step_sends_fewer_keys_while_each_key_is_routed_because_a_shard_is_covered() -> None:
    owner = Peer(A)
    keys = [RULE.to_bytes(8, "big") + b"%06d" % number for number in range(1000)]
    owner.fill(*keys, hits=1)
    steps_of_a_round = rounds_of(owner, keys)

    steps_of_a_round()
    assert steps_of_a_round() < 4
    owner.ownership.take_over_blind([owner.ownership.held.index(0)], B, NOW, [])
    assert steps_of_a_round() >= 4


def test_an_acknowledged_frame_needs_no_garbage_collector() -> None:
    owner = Peer(A)
    owner.ownership.start([SHARD])
    replication, standby = replicating(owner)
    owner.spend(KEYS[0])
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        list(replication.send_changes())
        callback = weakref.ref(standby.frames[0][1])

        standby.answer(Done(1))

        assert callback() is None
    finally:
        if was_enabled:
            gc.enable()
