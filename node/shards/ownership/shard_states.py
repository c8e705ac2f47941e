"""State, counters and data of every shard at one node. This module performs the transitions of the
table.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct, field

from hashring import SHARDS, NodeId, shard_of
from node.context.round_timer import NEVER, RoundTimer
from node.metrics.counters import Counters
from node.requests.deduplication import DecidedChecks
from node.shards.changed_keys import ChangedKeys
from node.shards.counter_merge import CounterMerge
from node.shards.fallback_log import FallbackLog
from node.shards.log_rows import add_logs, log_rows
from node.shards.ownership.origins import UNKNOWN, ShardOrigins
from node.shards.ownership.ownership_table import BLIND, COUNTED, TABLE, Action, Event, State
from node.shards.ownership.unasked_standbys import UnaskedStandbys
from node.shards.replicas import Replicas
from node.shards.transfers.unacknowledged_transfers import OutgoingTransfer, OutgoingTransfers
from ringfence.limiter import CHARGED_CODES, Engine, Outcomes, Snapshot
from ringfence.wire import Batch, Op, ShardGroup

__all__ = ["Arrival", "Cover", "OnTransition", "Released", "ShardStates", "others"]

OnTransition: TypeAlias = Callable[[Event, Sequence[int], bytes], None]
"""Observer of transitions: receives the event, the shards that accepted it, and the state of each
of these shards before."""

_ANNOUNCED = frozenset(
    {Action.RESTORE, Action.JOIN, Action.RESTORE_BELOW_LOG, Action.CHARGE_SENDERS_LOG}
)
"""Actions after which the keys that arrived are counted here."""
_BASES = frozenset({Action.JOIN, Action.RESTORE_BELOW_LOG})
"""Actions after which the counters that arrived are below the units that this node admitted."""
_RETURNED_WITHIN_NS = 5_000_000_000
"""Time in which a covered shard is transferred to an owner, after the owner's last replica."""
_DUPLICATES_KEPT_NS = 30_000_000_000
"""Time after the owner's last replica in which a merge may still find checks of both members."""
_REGAINED_KEPT_NS = 15_000_000_000
"""Time for which regained units are kept after the last ones were added."""
_REJECTED = 255
_NEXT = {
    event: bytes(
        [TABLE[state, event].state if (state, event) in TABLE else _REJECTED for state in State]
    )
    for event in Event
}
"""Next state by event and state, for shards that change state by thousands."""


class Cover(Struct):
    """Data of a shard that this node holds in place of its unreachable owner."""

    owner: NodeId
    since: int
    """Instant in ns from which on `log` is complete."""
    log: FallbackLog = field(default_factory=FallbackLog)
    """Units admitted in the owner's place."""
    arrived_at: int = 0
    """Instant in ns at which the shard arrived; 0 when it was taken over."""
    is_owner_restarted: bool = False
    to_ask: tuple[NodeId, ...] = ()
    """Members, without the owner, that may have a replica and have not answered yet."""
    base_of: str = ""
    """Member whose counters were the base, when it was a replica."""
    received_from: NodeId | None = None
    """Member that has transferred the shard to this node last."""
    next_owner: NodeId | None = None
    """Member that is asked next, if the owner has no counters of the shard."""
    copied_at: int | None = None
    """Instant in ns at which the owner last sent a replica; None before the first one."""
    duplicates: dict[bytes, int] = field(default_factory=dict)
    """Most units of each key that both the owner's replica and `log` may have."""
    sent_to: tuple[NodeId, int] | None = None
    """Receiver and number of the transfer that was taken back. It may have arrived."""
    sent_log: FallbackLog = field(default_factory=FallbackLog)
    """The part of `log` that this transfer had."""
    sent_at: int = 0
    """Instant in ns of this transfer; 0 when the log has units of other members, too."""

    @classmethod
    def of_transfer(cls, transfer: OutgoingTransfer, base_of: str) -> "Cover":
        """Return the data of a shard whose transfer was taken back."""
        owner = NodeId(transfer.taken_from or transfer.to)
        cover = cls(owner, transfer.logged_since, is_owner_restarted=transfer.is_from_before)
        cover.base_of, cover.copied_at = base_of, transfer.copied_at
        cover.duplicates = dict(transfer.duplicates or {})
        cover.sent_to, cover.sent_at = (transfer.to, transfer.number), transfer.at
        for part in transfer.parts:
            for log in (cover.log, cover.sent_log):
                add_logs(log, part.counts, part.fallback_counts, transfer.at)
        return cover

    def add_sender(self, sender: NodeId, group: ShardGroup, me: NodeId, *, is_blind: bool) -> None:
        """Record the sender of a transfer of the shard to `me`, which `group` describes.

        `is_blind` means that the owner's counters are still missing.
        """
        self.received_from = sender
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
        log, key, cost = self.log, batch.keys[at], batch.costs[at]
        match batch.op:
            case Op.CHECK | Op.CHARGE:
                if cost and outcomes.codes[at] in CHARGED_CODES:
                    which = batch.which[at] if batch.which else 0
                    limit = batch.limits[which - 1] if which else None
                    period_ns = period_of(key) if limit is None else limit.period_ns
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
                    log.take_back(key, cost)
            case Op.RESET:
                log.forget(key)
                self.sent_log.forget(key)

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


class Released(Struct, frozen=True):
    """Data of a shard that this node has just stopped holding."""

    cover: Cover | None
    is_blind: bool
    """Whether it was covered without the owner's counters."""
    regained: Mapping[bytes, int]


class ShardStates:
    """States of all shards at one node, and the data that belongs to each state."""

    def __init__(
        self,
        me: NodeId,
        engine: Engine,
        counters: Counters,
        changed: ChangedKeys,
        replicas: Replicas,
        checks: DecidedChecks,
        on_arrived: Callable[[Sequence[bytes]], None],
        on_transition: OnTransition | None = None,
        *,
        first_origin: int = 1,
    ) -> None:
        """`on_arrived` is called with keys whose counters this node holds from now on.

        `on_transition` is called before each transition; simulations use it. Origins of counters
        are numbered from `first_origin`.
        """
        self.held = bytearray(SHARDS)
        """1 at the index of each shard that is counted here, else 0."""
        self.covers: dict[int, Cover] = {}
        """Data of the shards that are counted in place of their owner."""
        self.regained: dict[int, dict[bytes, int]] = {}
        """Units regained from other data centers, of shards that started without counters."""
        self._regained_at = 0
        self.unasked = UnaskedStandbys(me)
        self.origins = ShardOrigins(first_origin)
        self.transfers = OutgoingTransfers()
        self.merge = CounterMerge(engine, counters, changed, on_arrived)
        self.rounds = RoundTimer()
        """Rounds of the task that fetches, offers and forgets shards."""
        self._me = me
        self._counters = counters
        self._replicas = replicas
        self._checks = checks
        self._on_transition = on_transition
        self._states = bytearray(SHARDS)

    def __getitem__(self, shard: int) -> State:
        return State(self._states[shard])

    def apply(self, shard: int, event: Event, arrival: Arrival) -> bool:
        """Apply an event to a shard; return False when its state rejects the event."""
        transition = TABLE.get((State(self._states[shard]), event))
        if transition is None:
            return False
        if self._on_transition is not None:
            self._on_transition(event, [shard], bytes([self._states[shard]]))
        self.rounds.add_work()
        for action in transition.actions:
            self._perform(action, shard, arrival)
        self._states[shard] = transition.state
        if event is Event.SEND:
            self._checks.on_charges_transferred(shard, arrival.now)
        elif arrival.copies and arrival.group is None:  # A replica, or an own transfer.
            self._checks.on_charges_returned(shard)
        if transition.state is not State.FRESH:
            self.regained.pop(shard, None)
            self.unasked.drop([shard])
        if Action.HOLD in transition.actions:
            self.origins.set([shard], arrival.origins or self.origins.new())
        elif not _ANNOUNCED.isdisjoint(transition.actions):
            self.origins.add(shard, arrival.origins)
        if not _ANNOUNCED.isdisjoint(transition.actions):
            for _, counts in arrival.copies:
                self.merge.announce(counts.keys)
        return True

    def is_restored_by(self, shard: int, event: Event) -> bool:
        """Return whether the counters that arrive with an event replace those of this node, which
        then charges what it admitted."""
        transition = TABLE.get((self[shard], event))
        return transition is not None and not _BASES.isdisjoint(transition.actions)

    def ask_next_owner(self, shard: int, now: int) -> bool:
        """Cover another member that may hold a shard, because the owner does not; return whether
        there is one."""
        cover = self.covers.get(shard)
        if cover is None or cover.next_owner is None or self._states[shard] in BLIND:
            return False
        owner, cover.next_owner = cover.next_owner, None
        return self.apply(shard, Event.OWNER_MOVED, Arrival(now, owner=owner))

    def apply_to_all(self, shards: Iterable[int], event: Event) -> list[int]:
        """Apply an event that carries no counters to many shards; return the shards that changed
        state."""
        states, after = self._states, _NEXT[event]
        changed = [shard for shard in shards if after[states[shard]] != _REJECTED]
        if self._on_transition is not None:
            self._on_transition(event, changed, bytes([states[shard] for shard in changed]))
        if changed:
            self.rounds.add_work()
        held, replicas = self.held, self._replicas
        begun: list[int] = []
        for shard in changed:
            is_held = held[shard]
            states[shard] = after[states[shard]]
            held[shard] = states[shard] >= COUNTED
            if held[shard] and not is_held:
                begun.append(shard)
        if begun:
            self.origins.set(begun, self.origins.new())
            replicas.drop([shard for shard in begun if shard in replicas])
        if changed and states[changed[0]] >= COUNTED:
            self.transfers.drop(changed)
        if self.regained:
            for shard in changed:
                self.regained.pop(shard, None)
        self.unasked.drop(changed)
        return changed

    def add_regained(self, rows: Mapping[bytes, Sequence[int]], now: int) -> None:
        """Record units that were regained for shards that started without counters; each row
        alternates ages and units."""
        for key, row in rows.items():
            shard = shard_of(key)
            self.origins.add(shard, UNKNOWN)
            if self._states[shard] == State.FRESH:
                self._regained_at = now
                regained = self.regained.setdefault(shard, {})
                regained[key] = regained.get(key, 0) + sum(row[1::2])
                self.rounds.add_work()

    @property
    def next_expiry(self) -> int:
        """Instant from which on `forget_regained` has units to forget."""
        return self._regained_at + _REGAINED_KEPT_NS if self.regained else NEVER

    def forget_regained(self, now: int) -> None:
        """Forget all regained units when the last of them were added long ago."""
        if now - self._regained_at > _REGAINED_KEPT_NS:
            self.regained.clear()

    def _perform(  # noqa: PLR0912 - one branch per action
        self, action: Action, shard: int, arrival: Arrival
    ) -> None:
        copies, now, merge = arrival.copies, arrival.now, self.merge
        match action:
            case Action.RESTORE:
                for at, counts in copies:
                    merge.restore(counts, at)
            case Action.HOLD:
                self._hold(shard)
            case Action.RELEASE:
                self.held[shard] = 0
            case Action.JOIN:
                for _, counts in copies:
                    merge.join(counts, self.regained.get(shard, {}), now)
            case Action.CHARGE_SENDERS_LOG:
                for _, counts in copies:
                    merge.charge_arrived(counts, arrival.logs, now)
            case Action.KEEP_SENDERS_LOG:
                for _, counts in copies:
                    add_logs(self.covers[shard].log, counts, arrival.logs, now)
            case Action.KEEP_SENDERS_UNITS:
                for _, counts in copies:
                    rows = log_rows(merge.admitted(counts, {}, now), counts, now)
                    add_logs(self.covers[shard].log, counts, rows, now)
            case Action.RESTORE_BELOW_LOG:
                cover = self.covers[shard]
                merge.restore_below(cover.log, copies, now)
                cover.to_ask = ()
            case Action.COVER_OWNER | Action.COVER_SENDERS_OWNER | Action.COVER_NEW_OWNER:
                self.covers[shard] = self._new_cover(shard, arrival)
            case Action.END_COVER:
                del self.covers[shard]
            case Action.COUNT_HEALED:
                self._counters.add("splits_healed")

    def _hold(self, shard: int) -> None:
        self.held[shard] = 1
        self.transfers.drop([shard])
        if shard in self._replicas:
            self._replicas.drop([shard])

    def _new_cover(self, shard: int, arrival: Arrival) -> Cover:
        """Return data for a shard that this node holds in place of another owner than before."""
        group, cover = arrival.group, self.covers.get(shard)
        if arrival.cover is not None:
            return arrival.cover
        if group is None:
            assert cover is not None
            assert arrival.owner is not None
            cover.owner = arrival.owner
            return cover
        # A third member may have the original counters. This is also possible when this node owned
        # the shard: it may have transferred the shard before its restart.
        return Cover(
            NodeId(group.taken_from),
            arrival.since if cover is None else min(cover.since, arrival.since),
            cover.log if cover is not None else FallbackLog(),
            arrived_at=arrival.now,
            is_owner_restarted=group.is_from_before,
            to_ask=others(self._me, group.taken_from, group.replica_at),
            sent_to=cover.sent_to if cover is not None else None,
            sent_log=cover.sent_log if cover is not None else FallbackLog(),
        )


def others(me: NodeId, owner: str, *names: str) -> tuple[NodeId, ...]:
    """Return the given member names without this node and without the owner of the shard."""
    return tuple([NodeId(name) for name in names if name not in ("", owner, me)])
