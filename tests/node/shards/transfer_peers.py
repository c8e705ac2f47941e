"""Nodes that exchange shards over links in memory, for tests of transfers and replication."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import trio
from msgspec.structs import replace

from hashring import Member, NodeId, Ring, shard_of
from node.metrics.counters import Counters
from node.requests.leases.lease_grants import Lender
from node.requests.sessions.caller import Caller
from node.shards.ownership.ownership import ShardOwnership
from node.shards.transfers.handoff import Handoff
from node.shards.transfers.shard_sender import ShardSender
from ringfence.limiter import Algorithm, Engine, EngineRule, Limit
from ringfence.peering.engine_choice import decide_batch
from ringfence.peering.link import Link
from ringfence.rules import adhoc_rule
from ringfence.wire import (
    Batch,
    Message,
    Op,
    Ping,
    Pong,
    Pull,
    Pulled,
    ShardGroup,
    TransferAck,
    TransferOffer,
    decode,
    encode,
)
from tests.node.cluster import CONTAINMENT

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
        rule = replace(adhoc_rule(limit), id=RULE)
        self.lender: Lender[Caller] = Lender(
            self.engine, {RULE: rule}.get, lambda client, keys: None, first_lease=1
        )
        self.sender = ShardSender(
            self.ownership,
            self.engine,
            Counters(),
            first_transfer=1 + 1000 * ord(name),
            least_parts=least_parts,
            lender=self.lender,
        )
        self.handoff = Handoff(
            name,
            self.ownership,
            self.sender,
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
        self.sender.index.start()
        self.sender.index.add(self.engine.keys())
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

    def call(
        self,
        make: Callable[[int], Message],
        on_reply: Callable[[object], None],
        timeout: float | None = None,
    ) -> None:
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
            case Ping():
                on_reply(Pong(1))
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
