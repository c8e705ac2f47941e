"""Shards transferred in several parts: completely or not at all, with one acknowledgement."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from hashring import NodeId, shard_of
from node.shards.transfers.shard_receiver import transfers_of
from node.shards.transfers.unacknowledged_transfers import cut
from ringfence.client.limiter import Limiter
from ringfence.limiter import Limit, PackedSnapshot, Snapshot
from ringfence.rules import Descriptor, encode_key
from ringfence.wire import (
    Holding,
    Pull,
    Pulled,
    ReplicaRequest,
    ShardGroup,
    TransferAck,
    encode,
)
from tests.node.cluster import World, ring_of, world
from tests.node.shards.transfer_peers import (
    DAY,
    HITS,
    KEYS,
    NOW,
    OTHER_KEYS,
    RULE,
    SHARD,
    THIRD_KEYS,
    A,
    B,
    C,
    Peer,
    Peers,
    of,
    ring,
)


@asynccontextmanager
async def node_with_four_logs() -> AsyncIterator[tuple[World, Limiter, list[dict[str, str]]]]:
    """Start node `a` with 8000 hits in each of four logs of a shard that `b` will own."""
    limit = "{unit: day, requests_per_unit: 10000, algorithm: sliding_window_log}"
    rules = f"domain: api\ndescriptors:\n  - {{key: log, rate_limit: {limit}}}\n"
    async with world("a", rules=rules) as w, w.client("a") as limiter:
        [match] = w.rules.match("api", [Descriptor((("log", ""),))])
        assert match is not None
        rule = int.from_bytes(match.key[:8], "big")
        by_shard: dict[int, list[str]] = {}
        for number in range(1_000_000):
            shard = shard_of(encode_key(rule, (str(number),)))
            by_shard.setdefault(shard, []).append(str(number))
            if len(by_shard[shard]) == 4 and ring_of(("a", "b")).owner(shard) == B:
                break
        keys = [encode_key(rule, (value,)) for value in by_shard[shard]]
        hits = [number for age in range(HITS, 0, -1) for number in (age, 1)]
        counts = Snapshot(keys, [hits] * 4, [match.rule.limit], [0] * 4, [])
        assert w.nodes["a"].shards.engine.restore(counts, w.clock.time) == 0
        yield w, limiter, [{"log": value} for value in by_shard[shard]]


async def left(limiter: Limiter, logs: list[dict[str, str]]) -> list[int | None]:
    return [(await limiter.peek("api", log)).remaining for log in logs]


# Complete transfers


async def test_four_logs_of_8000_hits_arrive_completely_at_a_joining_node(
    autojump_clock: MockClock,
) -> None:
    async with node_with_four_logs() as (w, limiter, logs):
        assert await left(limiter, logs) == [2000] * 4

        await w.start("b")
        await w.settle()

        assert await left(limiter, logs) == [2000] * 4
        assert w.count("b", "keys_pulled") == 4


async def test_logs_arrive_completely_after_a_late_second_part(
    autojump_clock: MockClock,
) -> None:
    async with node_with_four_logs() as (w, limiter, logs):
        answer = w.nodes["a"].shards.handoff.answer
        late: list[Pull] = []

        async def slow(requester: NodeId, pull: Pull) -> Pulled:
            if pull.part and not late:
                late.append(pull)
                await trio.sleep(5)
            return await answer(requester, pull)

        w.nodes["a"].shards.handoff.answer = slow  # type: ignore[method-assign]
        await w.start("b")
        await w.settle()
        await trio.sleep(5)

        assert await left(limiter, logs) == [2000] * 4
        assert late


async def test_a_takeover_fetches_all_parts_of_the_owners_shard(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        peers = Peers(nursery)
        owner, as_standby = peers.add(A), peers.add(B)
        owner.fill(*KEYS)
        as_standby.ownership.take_over(SHARD, A, [], NOW)
        as_standby.spend(KEYS[3])

        as_standby.handoff.on_ring_change(ring(), ring(B), ring(B))
        await trio.sleep(5)
        nursery.cancel_scope.cancel()

    assert as_standby.used() == [HITS, HITS, HITS, HITS + 1]
    assert owner.ownership.transfers.unconfirmed() == []
    assert peers.acknowledged() == [SHARD]


async def test_a_replica_arrives_with_all_its_keys(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.shards.transfers.unacknowledged_transfers._KEYS_PER_PART", 3)
    before = Peer(A)
    before.fill(*KEYS)
    async with trio.open_nursery() as nursery:
        peers = Peers(nursery)
        again, standby = peers.add(A), peers.add(B)
        standby.ownership.keep_replica(A, before.ownership.snapshot(KEYS, NOW), NOW)

        again.handoff.on_ring_change(ring(B), ring(A), ring(A, B))
        await again.handoff.wait_all_fetched()
        nursery.cancel_scope.cancel()

    assert again.used() == [HITS] * 4


def test_all_parts_of_a_replica_have_the_state_of_the_first() -> None:
    owner, standby = Peer(A), Peer(B, least_parts=4)
    owner.fill(*KEYS, hits=2)
    standby.ownership.keep_replica(A, owner.ownership.snapshot(KEYS, NOW), NOW)

    first = standby.give(C)
    owner.spend(KEYS[3])
    standby.ownership.keep_replica(A, owner.ownership.snapshot(KEYS, NOW), NOW)
    last = standby.give(C, 3, of(first).transfer_id)

    assert (of(first).hold, of(first).parts) == (Holding.COPY, 4)
    assert len(last.counts.unpack().states[0]) == 4
    assert of(standby.give(C, 3, of(standby.give(C)).transfer_id)).hold is Holding.COPY
    assert of(standby.give(C, 3, of(first).transfer_id)).hold is Holding.NOTHING
    standby.ownership.expire(NOW + 6_000_000_000)
    assert of(standby.give(C, 3, of(first).transfer_id + 1)).hold is Holding.NOTHING


async def test_shards_that_do_not_fit_in_an_answer_are_requested_again(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        peers = Peers(nursery)
        owner, as_standby = peers.add(A), peers.add(B)
        all_keys = [*KEYS, *OTHER_KEYS, *THIRD_KEYS]
        owner.fill(*all_keys)
        for shard in sorted({shard_of(key) for key in all_keys}):
            as_standby.ownership.take_over(shard, A, [], NOW)

        as_standby.handoff.on_ring_change(ring(), ring(B), ring(B))
        await trio.sleep(0.4)  # less than the pause between two rounds
        nursery.cancel_scope.cancel()

    assert as_standby.used(*all_keys) == [HITS] * 12
    assert len(peers.acknowledged()) == 3


def test_parts_with_keys_of_any_length_fit_into_messages() -> None:
    keys = [bytes([number % 250]) * 127 + bytes([number % 8]) for number in range(2000)]
    limits = [Limit.of_ns(10, DAY), Limit.of_ns(11, DAY)]
    which = [number % 2 for number in range(2000)]
    rows = [[number, 1] * 4 for number in range(2000)]
    full = PackedSnapshot.of(Snapshot(keys, [[2**63, 2**62]] * 2000, limits, which, []))

    parts = cut(full, rows)

    assert PackedSnapshot.joined([part.counts for part in parts]).unpack() == full.unpack()
    assert [row for part in parts for row in part.fallback_counts] == rows
    assert len(parts) > 4
    for one, other in pairwise(parts):
        counts = PackedSnapshot.joined([one.counts, other.counts])
        group = ShardGroup([1], [counts.count], Holding.HELD, 1, "", "", "", 1)
        encode(Pulled(1, [group], counts, [*one.fallback_counts, *other.fallback_counts]))


@contextmanager
def lost_parts(peers: Peers) -> Iterator[None]:
    """Drop every request for a later part during the block."""
    peers.loses = lambda to, message: isinstance(message, Pull) and message.part > 0
    yield
    peers.loses = lambda to, message: False


# Incomplete transfers


async def test_a_shard_with_a_missing_part_is_not_counted_or_acknowledged(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        peers = Peers(nursery)
        sender, receiver = peers.add(A), peers.add(B)
        sender.fill(*KEYS)
        with lost_parts(peers):
            receiver.handoff.on_ring_change(ring(A), ring(B), ring(A, B))
            await receiver.handoff.wait_all_fetched()
            during = receiver.used(), peers.acknowledged(), sender.ownership.transfers.unconfirmed()
        await trio.sleep(10)
        nursery.cancel_scope.cancel()

    assert during == ([0] * 4, [], [(SHARD, B)])
    assert receiver.used() == [HITS] * 4
    assert peers.acknowledged().count(SHARD) >= 1
    assert sender.ownership.transfers.unconfirmed() == []


async def test_a_standby_with_a_missing_part_merges_nothing_until_complete(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        peers = Peers(nursery)
        owner, as_standby = peers.add(A), peers.add(B)
        owner.fill(*KEYS)
        as_standby.ownership.take_over(SHARD, A, [], NOW)
        with lost_parts(peers):
            as_standby.handoff.on_ring_change(ring(), ring(B), ring(B))
            await trio.sleep(10)
            during = (
                as_standby.used(),
                peers.acknowledged(),
                owner.ownership.transfers.unconfirmed(),
            )
        await trio.sleep(10)
        nursery.cancel_scope.cancel()

    assert during == ([0] * 4, [], [(SHARD, B)])
    assert as_standby.used() == [HITS] * 4
    assert owner.ownership.transfers.unconfirmed() == []


def test_a_second_receiver_ends_the_transfer_to_the_first() -> None:
    sender = Peer(A)
    sender.fill(*KEYS)

    first = of(sender.give(B))
    assert of(sender.give(C, 1, first.transfer_id)).hold is Holding.NOTHING
    assert of(sender.give(B, 1, first.transfer_id, later_ns=900_000_000)).hold is Holding.HELD
    too_early = of(sender.give(C, later_ns=1_800_000_000))  # B requested a part 0.9 s ago.
    second = of(sender.give(C, later_ns=2_000_000_000))

    assert (too_early.hold, too_early.moved_to) == (Holding.NOTHING, B)
    assert (second.hold, second.parts) == (Holding.HELD, 2)
    assert of(sender.give(B, 1, first.transfer_id, later_ns=2_000_000_000)).hold is Holding.NOTHING
    assert of(sender.give(C, 1, second.transfer_id, later_ns=2_000_000_000)).hold is Holding.HELD
    sender.ownership.acknowledge(B, [SHARD], first.transfer_id, NOW)
    assert sender.ownership.transfers.unconfirmed() == [(SHARD, C)]
    sender.ownership.acknowledge(C, [SHARD], second.transfer_id, NOW)
    assert sender.ownership.transfers.unconfirmed() == []


def test_parts_of_two_transfers_are_not_mixed() -> None:
    sender = Peer(A)
    sender.fill(*KEYS)
    first = of(sender.give(B))
    sender.ownership.take_over(SHARD, B, [], NOW)  # Takes back a transfer that may be lost.
    sender.spend(KEYS[3])
    second = of(sender.give(B))

    assert first.transfer_id != second.transfer_id
    assert of(sender.give(B, 1, first.transfer_id)).hold is Holding.NOTHING
    assert of(sender.give(B, 1, second.transfer_id)).hold is Holding.HELD
    assert of(sender.give(B, 2, second.transfer_id)).hold is Holding.NOTHING


# Acknowledgements


def test_an_acknowledgement_of_an_earlier_transfer_confirms_no_later_one() -> None:
    sender = Peer(A)
    sender.fill(*KEYS)
    first = of(sender.give(B))
    sender.ownership.take_over(SHARD, B, [], NOW)
    second = of(sender.give(B))

    sender.ownership.acknowledge(B, [SHARD], first.transfer_id, NOW)
    assert sender.ownership.transfers.is_unconfirmed(SHARD)
    sender.ownership.acknowledge(B, [SHARD], second.transfer_id, NOW)
    assert not sender.ownership.transfers.is_unconfirmed(SHARD)


def test_only_the_receiver_acknowledges_a_transfer() -> None:
    sender = Peer(A)
    sender.fill(*KEYS)
    transfer_id = of(sender.give(B)).transfer_id

    sender.ownership.acknowledge(C, [SHARD], transfer_id, NOW)

    assert sender.ownership.transfers.unconfirmed() == [(SHARD, B)]
    assert not sender.ownership.is_empty


async def test_a_leaving_node_waits_for_the_acknowledgement_of_its_transfers(
    autojump_clock: MockClock,
) -> None:
    emptied: list[float] = []
    async with trio.open_nursery() as nursery:
        peers = Peers(nursery)
        peers.loses = lambda to, message: (
            isinstance(message, TransferAck) and trio.current_time() < 3
        )
        leaver, other = peers.add(A), peers.add(B)
        leaver.fill(*KEYS)
        other.handoff.on_ring_change(ring(A), ring(B), ring(A, B))
        leaver.handoff.on_ring_change(ring(A), ring(B), ring(A, B))

        async def leave() -> None:
            await leaver.handoff.wait_all_transferred(10)
            emptied.append(trio.current_time())

        nursery.start_soon(leave)
        await trio.sleep(2.9)
        assert (leaver.ownership.count, other.used()) == (0, [HITS] * 4)
        assert not emptied
        await trio.sleep(5)
        nursery.cancel_scope.cancel()

    assert emptied
    assert leaver.ownership.transfers.unconfirmed() == []
    assert other.used() == [HITS] * 4  # although the shard was offered a second time


async def test_a_node_requests_earlier_replicas_of_all_shards_in_a_few_messages(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        peers = Peers(nursery)
        restarted, other = peers.add(A), peers.add(B)
        before = Peer(A)
        keys = [RULE.to_bytes(8, "big") + b"%d" % number for number in range(1500)]
        before.fill(*keys, hits=2)
        both, alone = ring(A, B), ring(A)
        replicated = [key for key in keys if both.standby(shard_of(key)) == B]
        other.ownership.keep_replica(A, before.ownership.snapshot(replicated, NOW), NOW)
        restarted.handoff.on_ring_change(alone, alone, alone)
        await restarted.handoff.wait_all_fetched()

        for peer in (restarted, other):
            peer.handoff.on_ring_change(alone, both, both)
        await trio.sleep(3)
        nursery.cancel_scope.cancel()

    used = [*restarted.used(*keys), *other.used(*keys)]
    pulls = [
        each
        for _, each in peers.said
        if isinstance(each, Pull) and each.replicas is ReplicaRequest.ONLY
    ]
    assert sum(used) == 2 * len(replicated) > 1000
    # Of 16,384 shards that may have replicas, some hundred have one: four pulls for all shards, and
    # one more for each 16 replicas.
    assert len(pulls) <= 4 + 1 + len(replicated) // 16


async def test_a_standby_whose_owner_is_gone_requests_no_older_replicas(
    autojump_clock: MockClock,
) -> None:
    """Older replicas filled many answers, and checks waited until all of these had arrived."""
    keys = [RULE.to_bytes(8, "big") + b"%d" % number for number in range(1500)]
    two, left = ring(A, B), ring(B, C)
    keys = [key for key in keys if two.owner(shard_of(key)) == A]
    keys = [key for key in keys if left.owner(shard_of(key)) == B]
    owner = Peer(A)
    owner.fill(*keys, hits=1)
    async with trio.open_nursery() as nursery:
        peers = Peers(nursery, loses=lambda to, message: to == A)
        standby, former = peers.add(B), peers.add(C)
        former.ownership.keep_replica(A, owner.ownership.snapshot(keys, NOW), NOW)
        owner.fill(*keys, hits=1)
        standby.ownership.keep_replica(A, owner.ownership.snapshot(keys, NOW), NOW)

        standby.handoff.on_ring_change(two, left, left)
        await standby.handoff.wait_all_fetched()
        nursery.cancel_scope.cancel()

    assert standby.used(*keys) == [2] * len(keys)
    pulls = [each for to, each in peers.said if isinstance(each, Pull) and to == C]
    by_kind = {
        replicas: [each.shards for each in pulls if each.replicas is replicas]
        for replicas in ReplicaRequest
    }
    asked = [shard for shards in by_kind[ReplicaRequest.NONE] for shard in shards]
    assert sorted(asked) == sorted({shard_of(key) for key in keys}), "each of them once"
    assert by_kind[ReplicaRequest.ONLY] == []


@pytest.mark.parametrize(("moved_to", "owner"), [(C, C), (B, A)])
async def test_a_standby_that_took_over_follows_a_shard_that_its_owner_has_transferred(
    moved_to: NodeId, owner: NodeId
) -> None:
    async with trio.open_nursery() as nursery:
        standby = Peers(nursery).add(B)
        standby.ownership.take_over(SHARD, A, [], NOW)
        group = ShardGroup([SHARD], [0], Holding.NOTHING, 1, moved_to, "", "", 0)
        [transfer] = transfers_of(Pulled(1, [group], PackedSnapshot(b"", 0, [], []), []))

        standby.handoff._adopt(A, transfer)
        nursery.cancel_scope.cancel()

    cover = standby.ownership.covers.get(SHARD)
    assert (A if cover is None else cover.owner) == owner


async def test_a_leaving_member_takes_no_shards_back(autojump_clock: MockClock) -> None:
    """The leaving member stopped before it had sent the shards again, and lost their counters."""
    async with trio.open_nursery() as nursery:
        peers = Peers(nursery)
        standby, leaving, is_done = peers.add(A), peers.add(B), trio.Event()
        standby.fill(KEYS[0], hits=2)
        leaving.handoff.is_leaving = True
        await trio.sleep(0.1)

        leaving.handoff.reclaim(A, [SHARD], is_done.set)
        leaving.handoff.on_offer(A, [SHARD])
        await is_done.wait()
        await trio.sleep(5)
        nursery.cancel_scope.cancel()

    assert (standby.ownership.held[SHARD], leaving.ownership.held[SHARD]) == (1, 0)
    assert standby.used(KEYS[0]) == [2]
