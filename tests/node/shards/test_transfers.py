"""Shards transferred in several parts: completely or not at all, with one acknowledgement."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from hashring import Member, NodeId, Ring, shard_of
from node.metrics.counters import Counters
from node.shards.ownership.ownership import ShardOwnership
from node.shards.replication import INTERVAL, Replication, as_snapshot
from node.shards.transfers.handoff import Handoff
from node.shards.transfers.shard_sender import ShardSender
from node.shards.transfers.unacknowledged_transfers import cut
from ringfence.client.limiter import Limiter
from ringfence.limiter import Algorithm, Engine, EngineRule, Limit, Snapshot
from ringfence.peering.engine_choice import decide_batch
from ringfence.peering.link import Link
from ringfence.rules import Descriptor, encode_key
from ringfence.wire import (
    Batch,
    Copy,
    Counts,
    Done,
    Holding,
    Message,
    Op,
    Pull,
    Pulled,
    ShardGroup,
    TransferAck,
    TransferOffer,
    decode,
    encode,
)
from tests.node.cluster import CONTAINMENT, World, ring_of, world

DAY = 86_400_000_000_000
NOW = 1_800_000_000 * 1_000_000_000
RULE = 7
HITS = 8000
"""Hits per log. At different instants they need 16,000 numbers, so four logs need two parts."""
A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def keys_of_shards(shards: int, keys: int) -> list[list[bytes]]:
    """Find shards with at least `count` keys, and return them with these keys."""
    found: dict[int, list[bytes]] = {}
    full: list[list[bytes]] = []
    for number in range(1_000_000):
        key = RULE.to_bytes(8, "big") + b"%d" % number
        found.setdefault(shard_of(key), []).append(key)
        if len(found[shard_of(key)]) == keys:
            full.append(found[shard_of(key)])
            if len(full) == shards:
                break
    return full


KEYS, OTHER_KEYS, THIRD_KEYS = keys_of_shards(3, 4)
SHARD = shard_of(KEYS[0])


@dataclass
class Peers:
    """Members with links on which a test can drop messages."""

    nursery: trio.Nursery
    nodes: dict[NodeId, "Peer"] = field(default_factory=dict)
    loses: Callable[[NodeId, Message], bool] = lambda to, message: False
    """Functions that decide whether a message to a member, or its answer, is lost."""
    said: list[tuple[NodeId, Message]] = field(default_factory=list)
    """Delivered messages with their receivers."""

    def add(self, name: NodeId) -> "Peer":
        peer = self.nodes[name] = Peer(name, self)
        self.nursery.start_soon(peer.handoff.run)
        return peer

    def acknowledged(self) -> list[int]:
        return [
            shard for _, each in self.said if isinstance(each, TransferAck) for shard in each.shards
        ]


class Peer:
    """Member with counters, shards and the code that transfers them."""

    def __init__(self, name: NodeId, peers: Peers | None = None, least_parts: int = 1) -> None:
        self.name = name
        self.engine = Engine(max_keys=10_000)
        limit = Limit.of_ns(100_000, DAY, algorithm=Algorithm.SLIDING_WINDOW_LOG)
        self.engine.set_rules({RULE: EngineRule(limit)})
        self.ownership = ShardOwnership(
            name,
            self.engine,
            Counters(),
            lambda key: DAY,
            lambda keys: None,
            lambda shards: None,
            max_keys=10_000,
        )
        self.sender = ShardSender(
            self.ownership,
            self.engine,
            Counters(),
            first_transfer=1 + 1000 * ord(name),
            least_parts=least_parts,
        )
        self.handoff = Handoff(
            name,
            self.ownership,
            self.sender,
            self.engine,
            Counters(),
            lambda to: None if peers is None else cast(Link, Way(peers, name, to)),
            reached,
            lambda: NOW,
            CONTAINMENT,
        )

    def fill(self, *keys: bytes, hits: int = HITS) -> None:
        """Count hits of keys, each at a different instant."""
        self.ownership.start({shard_of(key) for key in keys})
        for key in keys:
            self.engine.charge([key] * hits, [1] * hits, [*range(hits, 0, -1)], NOW)

    def spend(
        self, key: bytes, op: Op = Op.CHECK, units: int = 1, limit: Limit | None = None
    ) -> None:
        batch = Batch(op, [key], [units])
        if limit is not None:
            batch.limits, batch.which = [limit], [1]
        self.ownership.record_decided(batch, decide_batch(self.engine, batch, NOW), NOW)

    def give(
        self, requester: NodeId, part: int = 0, transfer_id: int = 0, *, later_ns: int = 0
    ) -> Pulled:
        self.sender.index(self.engine.keys())
        pull = Pull(1, [SHARD], part, transfer_id)
        return self.sender.answer(requester, pull, NOW + later_ns, lambda shard: False)

    def used(self, *keys: bytes) -> list[int]:
        return [self.engine.used(key, NOW) for key in keys or KEYS]


@dataclass
class Way:
    """Link from one member to another."""

    peers: Peers
    here: NodeId
    to: NodeId

    def call(self, make: Callable[[int], Message], on_reply: Callable[[object], None]) -> None:
        message = decode(encode(make(1)))
        self.peers.nursery.start_soon(self._carry, message, on_reply)

    async def _carry(self, message: Message, on_reply: Callable[[object], None]) -> None:
        await trio.sleep(0.001)
        if self.peers.loses(self.to, message):
            await trio.sleep(2)
            on_reply(None)
            return
        self.peers.said.append((self.to, message))
        there = self.peers.nodes[self.to].handoff
        match message:
            case Pull():
                on_reply(decode(encode(await there.answer(self.here, message))))
            case TransferOffer(_, shards):
                there.on_offer(self.here, shards)
            case TransferAck(_, shards, transfer_id):
                there.on_acknowledged(self.here, shards, transfer_id)
            case _:
                raise AssertionError(message)


async def reached(name: NodeId) -> None:
    await trio.lowlevel.checkpoint()


def of(reply: Pulled) -> ShardGroup:
    [group] = reply.groups
    return group


def ring(*names: NodeId) -> Ring:
    return Ring.of([Member(name) for name in names])


# Complete transfers


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
    assert len(last.counts.states[0]) == 4
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


def test_parts_fit_into_messages_however_long_their_keys_are() -> None:
    keys = [b"%0128d" % number for number in range(2000)]
    full = Snapshot(keys, [[1, 2]] * 2000, [Limit.of_ns(10, DAY)], [0] * 2000, [])

    parts = cut(full, [[]] * 2000)

    assert [key for part in parts for key in part.counts.keys] == keys
    for one, other in pairwise(parts):
        rows = [*one.counts.keys, *other.counts.keys]
        counts = Counts(rows, [[1, 2]] * len(rows), [Limit.of_ns(10, DAY)], [0] * len(rows), [])
        encode(
            Pulled(1, [ShardGroup([1], [len(rows)], Holding.HELD, 1, "", "", "", 1)], counts, [])
        )


# Incomplete transfers


@contextmanager
def lost_parts(peers: Peers) -> Iterator[None]:
    """Drop every request for a later part during the block."""
    peers.loses = lambda to, message: isinstance(message, Pull) and message.part > 0
    yield
    peers.loses = lambda to, message: False


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
    too_early = of(sender.give(C, later_ns=1_800_000_000))  # It requested a part 0.9 s ago.
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
            await leaver.handoff.wait_all_transferred()
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


# Replication


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
        return frame.counts.keys


def replicating(
    owner: Peer, link_to: Callable[[NodeId], Link | None] | None = None
) -> tuple[Replication, Standby]:
    standby = Standby()
    replication = Replication(
        owner.name,
        owner.ownership,
        owner.sender,
        owner.engine,
        Counters(),
        link_to or (lambda name: cast(Link, standby)),
        lambda: NOW,
        CONTAINMENT,
    )
    replication.on_ring_change(ring(), ring(A, B))
    return replication, standby


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


def test_replication_frames_fit_into_messages_however_long_their_keys_are() -> None:
    owner = Peer(A)
    keys = [RULE.to_bytes(8, "big") + b"%0120d" % number for number in range(1000)]
    owner.ownership.start(dict.fromkeys(map(shard_of, keys)))
    replication, standby = replicating(owner)
    for key in keys:
        owner.fill(key, hits=10)
        owner.spend(key)

    list(replication.send_changes())

    assert sorted(key for frame, _ in standby.frames for key in frame.counts.keys) == sorted(keys)


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


def test_one_round_of_replication_sends_all_changes_however_many_there_are() -> None:
    owner = Peer(A)
    keys = [RULE.to_bytes(8, "big") + b"%06d" % number for number in range(20_000)]
    owner.ownership.start(dict.fromkeys(map(shard_of, keys)))
    replication, standby = replicating(owner)
    for key in keys:
        owner.spend(key)
    assert replication.backlog == len(keys)

    steps = sum(1 for _ in replication.send_changes())

    assert steps > 10
    assert sorted(key for frame, _ in standby.frames for key in frame.counts.keys) == sorted(keys)
    assert replication.backlog == 0


def test_a_key_that_changes_during_a_round_is_sent_again_in_the_next_one() -> None:
    owner = Peer(A)
    keys = [RULE.to_bytes(8, "big") + b"%06d" % number for number in range(3000)]
    owner.ownership.start(dict.fromkeys(map(shard_of, keys)))
    replication, standby = replicating(owner)
    for key in keys:
        owner.spend(key)

    steps = replication.send_changes()
    next(steps)
    owner.spend(keys[0])
    list(steps)

    assert [*owner.ownership.changed.keys] == [keys[0]]
    while standby.frames:
        standby.answer(Done(1))
    list(replication.send_changes())
    assert standby.answer(Done(1)) == [keys[0]]


def test_frames_without_acknowledgement_hold_back_the_next_round() -> None:
    owner = Peer(A)
    owner.ownership.start([SHARD])
    replication, standby = replicating(owner)
    owner.spend(KEYS[0])
    list(replication.send_changes())
    owner.spend(KEYS[1])

    list(replication.send_changes())

    assert len(standby.frames) == 1
    assert replication.backlog == 1


# Admissions of a standby


def test_a_refund_at_a_standby_reduces_the_owners_later_charge() -> None:
    owner, as_standby = Peer(A), Peer(B)
    owner.fill(KEYS[0], hits=3)
    as_standby.ownership.take_over(SHARD, A, [(NOW, owner.ownership.snapshot(KEYS[:1], NOW))], NOW)
    as_standby.spend(KEYS[0], units=5)
    as_standby.spend(KEYS[0], Op.REFUND, units=2)

    reply = as_standby.give(A)
    counts = as_snapshot(reply.counts)
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
    counts = as_snapshot(reply.counts)
    owner.ownership.accept(SHARD, of(reply), B, counts, reply.fallback_counts, NOW)

    assert owner.used(key) == [hits_before + 5]
    [taken] = owner.engine.snapshot([key], NOW).limits
    assert taken == limit
