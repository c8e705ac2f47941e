"""Data of a shard that a node holds in place of its owner, and of the counters that arrive."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from hashring import NodeId
from node.shards.fallback_log import FEWEST_KEYS, FallbackLog
from node.shards.log_rows import add_logs
from node.shards.ownership.origins import UNKNOWN
from node.shards.transfers.unacknowledged_transfers import OutgoingTransfer
from ringfence.limiter import CHARGED_CODES, Outcomes, Snapshot
from ringfence.wire import Batch, Op, ShardGroup

__all__ = ["Arrival", "Cover", "Released", "others", "period_of_row"]

_RETURNED_WITHIN_NS = 5_000_000_000
"""Time in which a covered shard is transferred to an owner, after the owner's last replica."""
_DUPLICATES_KEPT_NS = 30_000_000_000
"""Time after the owner's last replica in which a merge may still find checks of both members."""
_ENDED_KEPT_NS = 15_000_000_000
"""Time for which the log of a cover is kept after this node has become the owner."""


class Cover(Struct):
    """Data of a shard that this node holds in place of its unreachable owner."""

    owner: NodeId
    since: int
    """Instant in ns from which on `log` is complete."""
    mark: int = 0
    """Mark of the start of this node's part of the log; 0 before the shard is held."""
    marks: set[int] = field(default_factory=set)
    """Marks and origins of the parts of the log that came from other members."""
    ended_at: int | None = None
    """Instant in ns from which on this node owns the shard; None before."""
    log: FallbackLog = field(default_factory=FallbackLog)
    """Units admitted in the owner's place."""
    replicated_until: int = 0
    """Instant in ns at which the newest counter of the shard arrived that the owner had replicated
    here; 0 if there is none."""
    arrived_at: int = 0
    """Instant in ns at which the shard arrived; 0 when it was taken over."""
    is_owner_restarted: bool = False
    to_ask: tuple[NodeId, ...] = ()
    """Members, without the owner, that may have a replica and have not answered yet."""
    base_of: str = ""
    """Member whose counters were the base, when it was a replica."""
    received_from: set[NodeId] = field(default_factory=set)
    """Members that have transferred the shard to this node."""
    next_owner: NodeId | None = None
    """Member that is asked next, if the owner has no counters of the shard."""
    copied_at: int | None = None
    """Instant in ns at which the owner last sent a replica although this node holds the shard, or
    although the link to the owner was silent; None before the first one."""
    duplicates: dict[bytes, int] = field(default_factory=dict)
    """Most units of each key that both the owner's replica and `log` may have."""
    sent_to: tuple[NodeId, int] | None = None
    """Receiver and number of the transfer that was taken back. It may have arrived."""
    sent_log: FallbackLog = field(default_factory=FallbackLog)
    """The part of `log` that this transfer had."""
    sent_at: int = 0
    """Instant in ns of this transfer; 0 when the log has units of other members, too."""
    sent_mark: int = 0
    """Mark of this transfer. Counters with this mark have all its units."""
    unsent: dict[bytes, None] = field(default_factory=dict)
    """Changed keys that were not replicated to the owner, because it may have newer counters."""
    prune_at: int = FEWEST_KEYS
    """Number of `unsent` keys with which `add_unsent` looks for keys to forget."""
    is_used: bool = False
    """Whether this node has decided checks of the shard, or has charged leases."""

    @property
    def has_decisions(self) -> bool:
        """Whether this node, or a member that sent the shard, may have decided checks of it."""
        return self.is_used or bool(self.received_from) or self.sent_to is not None

    @property
    def is_ended(self) -> bool:
        """Whether this node owns the shard now."""
        return self.ended_at is not None

    @property
    def has_data(self) -> bool:
        """Whether a transfer of the shard has data of the log even if the shard has no counter."""
        return bool(self.log.unused_keys or self.duplicates)

    @property
    def kept_until(self) -> int:
        """Instant in ns until which the log is needed, for a shard that this node owns now."""
        return (self.ended_at or 0) + _ENDED_KEPT_NS

    def replica_age_ns(self, now: int) -> int:
        """Return the age of the newest counter of the shard that the owner had replicated; 0 if
        there is none."""
        return max(1, now - self.replicated_until) if self.replicated_until else 0

    def add_unsent(self, key: bytes, has_counter: Callable[[bytes], bool]) -> None:
        """Record a changed key that is not replicated to the owner; forget keys whose counters have
        expired or were evicted, because the owner may not return for days."""
        self.unsent[key] = None
        if len(self.unsent) >= self.prune_at:
            self.unsent = {each: None for each in self.unsent if has_counter(each)}
            self.prune_at = max(FEWEST_KEYS, 2 * len(self.unsent))

    def add_log(self, arrival: "Arrival") -> None:
        """Add the fallback log of the sender of counters that arrived."""
        self.marks.update(() if arrival.group is None else arrival.group.marks)
        for _, counts in arrival.copies:
            add_logs(self.log, counts, arrival.logs, arrival.now)

    @classmethod
    def of_transfer(cls, transfer: OutgoingTransfer, base_of: str) -> "Cover":
        """Return the data of a shard whose transfer was taken back."""
        owner = NodeId(transfer.taken_from or transfer.to)
        cover = cls(owner, transfer.logged_since, is_owner_restarted=transfer.is_from_before)
        cover.base_of, cover.copied_at = base_of, transfer.copied_at
        cover.duplicates = dict(transfer.duplicates or {})
        cover.replicated_until = transfer.replicated_until
        cover.marks = {*transfer.marks[1:]}
        cover.sent_mark = next(iter(transfer.marks), 0)
        cover.sent_to, cover.sent_at = (transfer.to, transfer.number), transfer.at
        for part in transfer.parts:
            counts = part.counts.unpack()
            for log in (cover.log, cover.sent_log):
                add_logs(log, counts, part.fallback_counts, transfer.at)
        return cover

    def add_sender(self, sender: NodeId, group: ShardGroup, me: NodeId, *, is_blind: bool) -> None:
        """Record the sender of a transfer of the shard to `me`, which `group` describes.

        `is_blind` means that the owner's counters are still missing.
        """
        self.received_from.add(sender)
        if is_blind and group.replica_at:
            asked = dict.fromkeys([*self.to_ask, group.replica_at])
            self.to_ask = others(me, self.owner, *asked)
        if group.taken_from == self.owner and not group.replica_at:
            self.base_of = group.taken_from

    def log_row(
        self,
        batch: Batch,
        outcomes: Outcomes,
        at: int,
        period_of: Callable[[bytes], int],
        now: int,
    ) -> None:
        """Add the effect of the row `at` of a decided batch to the log.

        `period_of` returns the period in ns of a key's limit.
        """
        self.is_used = True
        log, key, cost = self.log, batch.keys[at], batch.costs[at]
        match batch.op:
            case Op.CHECK | Op.CHARGE:
                if cost and outcomes.codes[at] in CHARGED_CODES:
                    period_ns = period_of_row(batch, at, period_of)
                    if outcomes.slot_ids[at]:
                        log.grant(key, outcomes.slot_ids[at], cost, period_ns, now)
                    else:
                        log.add(key, cost, period_ns, now)
            case Op.RENEW:
                if outcomes.slot_ids[at]:
                    log.add_slot(key, outcomes.slot_ids[at])
                    self.sent_log.remove_slots(key, [outcomes.slot_ids[at]])
            case Op.REFUND:
                slot = batch.slot_ids[at] if batch.slot_ids else 0
                if slot:
                    log.release(key, slot, cost)
                    self.sent_log.remove_slots(key, [slot])
                else:
                    removed = outcomes.slot_ids[at]  # Other units of the refund do not count.
                    age_ns = batch.ages_ns[at] if batch.ages_ns else 0
                    period_ns = period_of_row(batch, at, period_of)
                    self._log_refund(key, cost, removed, period_ns, now - age_ns, now)
            case Op.RESET:
                log.forget(key)
                self.sent_log.forget(key)

    def _log_refund(
        self, key: bytes, cost: int, removed: int, period_ns: int, at: int, now: int
    ) -> None:
        """Log that a refund of `cost` units, which were charged at `at`, has `removed` units.

        `at` is `now` if the instant of the charge is unknown.
        """
        charged_at = at if at < now else None
        refunded = removed - self.log.take_back(key, min(cost, removed), charged_at)
        if refunded > 0:
            self.log.add_refunded(key, refunded, period_ns, at)

    def log_units(self, key: bytes, units: int, period_ns: int, at: int, now: int) -> None:
        """Log units that were charged at `at`, or were refunded `now` if they are negative."""
        self.is_used = True
        if units > 0:
            self.log.add(key, units, period_ns, at)
        else:
            self._log_refund(key, -units, -units, period_ns, at, now)

    def is_owner_counting(self, now: int) -> bool:
        """Return whether the owner of the shard also holds it at the same time.

        Then checks that both members decided are counted twice, until the shard is transferred.
        """
        return self.copied_at is not None and 0 <= now - self.copied_at < _RETURNED_WITHIN_NS

    def possible_duplicates(self, key: bytes, now: int) -> int:
        """Return the most units of a key that are counted twice here until the shard is
        transferred.

        An owner that does not return for a time will not remove them; then the result is 0.
        """
        if not self.duplicates or self.is_owner_restarted or self.copied_at is None:
            return 0
        is_recent = 0 <= now - self.copied_at < _DUPLICATES_KEPT_NS
        return self.duplicates.get(key, 0) if is_recent else 0

    def add_duplicates(
        self,
        keys: Sequence[bytes],
        before: Sequence[Sequence[int]],
        after: Sequence[Sequence[int]],
        now: int,
    ) -> None:
        """Record the units that the owner's replica added to counts of global rules.

        `before` and `after` have the counts of `keys`, see `Engine.local_counts`. The log may have
        the same checks, so at most the units in the log are duplicates.
        """
        for key, old, new in zip(keys, before, after, strict=True):
            added = max(0, sum(new[1::2]) - sum(old[1::2])) + self.duplicates.get(key, 0)
            found = min(added, sum(self.log.row(key, now)[1::2])) if added else 0
            if found:
                self.duplicates[key] = found

    def confirm_sent(self, receiver: NodeId, number: int) -> None:
        """Remove the units of an acknowledged transfer from the fallback log, because its receiver
        has counted them."""
        if self.sent_to == (receiver, number):
            self._remove_sent()

    def find_sent(self, origins: Sequence[int]) -> None:
        """Remove the units of the transfer that was taken back from the fallback log, if counters
        with the given origins have them."""
        if self.sent_to is not None and self.sent_mark and self.sent_mark in origins:
            self._remove_sent()

    def _remove_sent(self) -> None:
        self.log.subtract(self.sent_log)
        self.sent_to, self.sent_log = None, FallbackLog()
        self.since = max(self.since, self.sent_at)


class Arrival(Struct, frozen=True):
    """Input of one transition of a shard's state, such as received counters and their sender."""

    now: int
    copies: Sequence[tuple[int, Snapshot]] = ()
    """Counters, each with its instant in ns."""
    logs: Sequence[Sequence[int]] = ()
    """The sender's log, per key of the only copy."""
    group: ShardGroup | None = None
    cover: Cover | None = None
    owner: NodeId | None = None
    since: int = 0
    origins: tuple[int, ...] = UNKNOWN
    """Origins of these counters; empty without counters."""
    has_own_charges: bool = True
    """Whether a replica has the charges that this node has transferred to another member."""


class Released(Struct, frozen=True):
    """Data of a shard that this node has just stopped holding."""

    cover: Cover | None
    is_blind: bool
    """Whether it was covered without the owner's counters."""
    regained: Mapping[bytes, int]


def period_of_row(batch: Batch, at: int, period_of: Callable[[bytes], int]) -> int:
    """Return the period in ns of the limit in the row `at` of a batch. `period_of` has the periods
    of keys whose limits are in the rules."""
    which = batch.which[at] if batch.which else 0
    return batch.limits[which - 1].period_ns if which else period_of(batch.keys[at])


def others(me: NodeId, owner: str, *names: str) -> tuple[NodeId, ...]:
    """Return the given member names without this node and without the owner of the shard."""
    return tuple([NodeId(name) for name in names if name not in ("", owner, me)])
