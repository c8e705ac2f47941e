"""Node without a network that owns shards, for tests of shard ownership."""

import logging
from itertools import count
from typing import Any

from msgspec.structs import replace

from gossip import Record, Status
from hashring import NodeId, shard_of
from node.context.containment import Containment
from node.metrics.counters import Counters
from node.requests.deduplication import DecidedChecks
from node.requests.leases.lease_grants import Lender
from node.shards.ownership.ownership import ShardOwnership
from node.shards.transfers.handoff import Handoff
from node.shards.transfers.shard_receiver import transfers_of
from node.shards.transfers.shard_sender import ShardSender
from ringfence.limiter import Algorithm, Engine, EngineRule, Limit
from ringfence.peering.engine_choice import decide_batch
from ringfence.rules import adhoc_rule
from ringfence.wire import (
    Batch,
    CheckId,
    Holding,
    Op,
    Pull,
    Pulled,
    ReplicaRequest,
    Results,
    Source,
)

DAY = 86_400_000_000_000
RULE = 7
KEY = RULE.to_bytes(8, "big") + b"\x01k"
_FIRST_IDS = count(1, 1000)
"""Begins of the numbers of each run of a node."""
NOW = 1_800_000_000 * 1_000_000_000


def member(name: str, status: Status = Status.ALIVE, *, generation: int = 1) -> Record:
    return Record(name, "h", 1, "dc1", "z1", 1.0, generation, 0, status)


async def _reach(name: NodeId) -> None:
    """Reach every member at once."""


def limits_of(amount: int) -> list[Limit]:
    """Return one limit per day of each kind that counts units."""
    return [
        Limit.of_ns(amount, DAY, Algorithm.FIXED_WINDOW),
        Limit.of_ns(amount, DAY),
        Limit.of_ns(amount, DAY, slots=24),
        Limit.of_ns(amount, DAY, Algorithm.SLIDING_WINDOW_LOG),
        Limit.of_ns(amount, DAY, Algorithm.TOKEN_BUCKET),
        Limit.of_ns(amount, DAY, Algorithm.LEAKY_BUCKET),
    ]


class Host:
    """Shard ownership and engine of a node."""

    def __init__(
        self,
        name: str,
        limit: Limit | None = None,
        *,
        carried: Limit | None = None,
        lends: bool = False,
        parts: int = 1,
    ) -> None:
        """`carried`, when given, is a limit that each check contains, so that no rule has it.
        `lends` means that the host lends units to clients. It sends shards in at least this number
        of `parts`."""
        self.name = NodeId(name)
        self.carried = [carried] if carried else []
        self.now = NOW
        self.started: list[int] = []
        self.engine = Engine(max_keys=100)
        if carried is None:
            self.engine.set_rules({RULE: EngineRule(limit or Limit.of_ns(1000, DAY))})
        self.lender: Lender[Any] | None = None
        if lends:
            rule = adhoc_rule(limit or Limit.of_ns(1000, DAY))
            self.lender = Lender(
                self.engine, lambda number: rule, lambda client, keys: None, first_lease=7
            )
        self.arrived: list[bytes] = []
        self.counters = Counters()
        self.checks = DecidedChecks(lambda session, seq: ((), 0))
        self.ownership = ShardOwnership(
            self.name,
            self.engine,
            self.counters,
            lambda key: DAY,
            self.arrived.extend,
            self.started.extend,
            max_keys=100,
            decided_checks=self.checks,
            first_id=next(_FIRST_IDS),
            lender=self.lender,
        )
        if self.lender is not None:
            self.lender.on_counted = self.ownership.log_units
        self.sender = ShardSender(
            self.ownership,
            self.engine,
            Counters(),
            first_transfer=1,
            least_parts=parts,
            lender=self.lender,
        )
        self.handoff = Handoff(
            *(self.name, self.ownership, self.sender, Counters()),
            *(
                lambda name: None,
                _reach,
                lambda: self.now,
                Containment(logging.getLogger(), lambda: 0.0),
            ),
        )

    def start(self, units: int = 0) -> None:
        """Own the shard from the start, and admit units."""
        self.ownership.start([shard_of(KEY)])
        if units:
            self.spend(units)

    def spend(
        self,
        units: int,
        *,
        at: int | None = None,
        check_id: CheckId | None = None,
        answered_at: int | None = None,
    ) -> None:
        at = self.now if at is None else at
        which = [1] * len(self.carried)
        batch = Batch(Op.CHECK, [KEY], [units], limits=self.carried, which=which)
        outcomes = decide_batch(self.engine, batch, at)
        self.ownership.record_decided(batch, outcomes, at)
        if check_id is not None:
            row = Results(outcomes, [Source.OWNER]).row(0)
            self.checks.remember(check_id, KEY, units, row, answered_at or at)

    def refund(self, units: int, *, check_id: CheckId, at: int) -> None:
        """Refund units, as a member does that may not be the only one to receive the refund."""
        which = [1] * len(self.carried)
        batch = Batch(Op.REFUND, [KEY], [units], limits=self.carried, which=which)

        def count() -> Results:
            outcomes = decide_batch(self.engine, batch, at)
            self.ownership.record_decided(batch, outcomes, at)
            return Results(outcomes, [Source.OWNER])

        results, [removed] = self.ownership.refunds.apply(batch, count, at)
        self.checks.remember(check_id, KEY, removed, results.row(0), at, is_refund=True)

    def reset(self, check_id: CheckId = (0, 0, 0)) -> None:
        """Reset the key, as a member does that may not be the only one to receive the reset."""
        batch = Batch(Op.RESET, [KEY], [0])

        def count() -> Results:
            outcomes = decide_batch(self.engine, batch, self.now)
            self.ownership.record_decided(batch, outcomes, self.now)
            return Results(outcomes, [Source.OWNER])

        row = self.ownership.refunds.reset([KEY], count, self.now).row(0)
        cover = self.ownership.covers.get(shard_of(KEY))
        replica_age_ns = cover.replica_age_ns(self.now) if cover is not None else 0
        self.checks.remember(
            *(check_id, KEY, 0, row, self.now), is_reset=True, replica_age_ns=replica_age_ns
        )

    def cover(self, owner: str, *silent: str, at: int | None = None) -> None:
        at = self.now if at is None else at
        copies = list(self.ownership.replicas.of(shard_of(KEY)))
        self.ownership.take_over(shard_of(KEY), NodeId(owner), copies, at, [*map(NodeId, silent)])

    def take_over_from_replica_at(self, standby: "Host", silent: str) -> None:
        """Take over from the replica of a third member while the owner in the ring is silent."""
        reply = self.ask(standby)
        copies = [(self.now, reply.counts.unpack())]
        owner = NodeId(silent)
        self.ownership.take_over(shard_of(KEY), owner, copies, self.now, [owner], *reply.groups)

    def copy_to(self, other: "Host") -> None:
        counts, origins = self.ownership.snapshot([KEY], self.now), self.ownership.origins
        other.ownership.keep_replica(self.name, counts, self.now, origins.of_keys([KEY]))

    def ask(self, sender: "Host", *, is_standby: bool = False) -> Pulled:
        """Pull the shard; `is_standby` means that the sender becomes this host's standby."""
        sender.sender.index.start()
        sender.sender.index.add([KEY])
        pull = Pull(1, [shard_of(KEY)], 0)
        return sender.sender.answer(self.name, pull, self.now, lambda shard: is_standby)

    def pull(self, sender: "Host") -> None:
        """Pull the shard from a member, and apply its answer."""
        self.take(sender, self.ask(sender))

    def take(self, sender: "Host", reply: Pulled) -> None:
        (about,) = reply.groups
        if about.hold is not Holding.HELD:
            return
        counts = reply.counts.unpack()
        logs = reply.fallback_counts or [[]] * len(counts.keys)
        shard = shard_of(KEY)
        self.ownership.accept(shard, about, sender.name, counts, logs, self.now, reply.decided)

    def ask_late(self, other: "Host") -> None:
        """Ask a node that was silent during the takeover for its replica."""
        reply = self.ask(other)
        (group,) = reply.groups
        counts = reply.counts.unpack()
        self.ownership.replica_answered(shard_of(KEY), other.name, counts, self.now, group)

    @property
    def holds(self) -> bool:
        return bool(self.ownership.held[shard_of(KEY)])

    def may_copy_to(self, other: "Host") -> bool:
        """Return whether replication may send this host's counters to another member."""
        shard = shard_of(KEY)
        cover = self.ownership.covers.get(shard)
        is_to_ask = self.ownership.unasked.is_to_ask(other.name, shard)
        return not is_to_ask and (
            cover is None or (other.name != cover.owner and other.name not in cover.to_ask)
        )

    def receive(self, sender: NodeId, reply: Pulled) -> bool:
        """Apply the answer of any member, as a round of `Handoff` or a search does; return whether
        to acknowledge it."""
        (transfer,) = transfers_of(reply)
        if not self.holds and transfer.about.hold is not Holding.HELD:
            return False
        return self.handoff._adopt(sender, transfer)

    def ask_for_replica(self, standby: "Host") -> None:
        """Ask a standby only for its replica from before this host's restart."""
        pull = Pull(1, [shard_of(KEY)], 0, replicas=ReplicaRequest.ONLY)
        reply = standby.sender.answer(self.name, pull, self.now, lambda shard: True)
        for about in reply.groups:
            assert about.hold is not Holding.HELD
            counts = reply.counts.unpack()
            group = replace(about, taken_from="")
            self.ownership.replica_answered(*about.shards, standby.name, counts, self.now, group)

    def continue_from(self, copy: Pulled) -> None:
        """Apply the answer of the previous holder, which has only a replica."""
        (about,) = copy.groups
        counts = copy.counts.unpack()
        self.ownership.owner_has_replica(shard_of(KEY), counts, about, self.now)

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
        return self.engine.used(KEY, self.now)
