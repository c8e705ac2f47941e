"""State, counters and data of every shard at one node. This module performs the transitions of the
table.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from hashring import SHARDS, NodeId, shard_of
from node.context.round_timer import NEVER, RoundTimer
from node.metrics.counters import Counters
from node.requests.deduplication import DecidedChecks
from node.shards.changed_keys import ChangedKeys
from node.shards.counter_merge import CounterMerge
from node.shards.fallback_log import FallbackLog
from node.shards.log_rows import add_logs, log_rows, logged_counts, without_units
from node.shards.ownership.cover import Arrival, Cover, others
from node.shards.ownership.origins import UNKNOWN, ShardOrigins, are_all_known, is_blind_start
from node.shards.ownership.ownership_table import BLIND, COUNTED, TABLE, Action, Event, State
from node.shards.ownership.unasked_standbys import UnaskedStandbys
from node.shards.replicas import Replicas
from node.shards.transfers.unacknowledged_transfers import OutgoingTransfers
from ringfence.limiter import Engine, Outcomes
from ringfence.wire import Batch

__all__ = ["OnTransition", "ShardStates"]

OnTransition: TypeAlias = Callable[[Event, Sequence[int], bytes], None]
"""Observer of transitions: receives the event, the shards that accepted it, and the state of each
of these shards before."""

_ANNOUNCED = frozenset(
    {Action.RESTORE, Action.JOIN, Action.RESTORE_BELOW_LOG, Action.CHARGE_SENDERS_LOG}
)
"""Actions after which the keys that arrived are counted here."""
_BASES = frozenset({Action.JOIN, Action.RESTORE_BELOW_LOG})
"""Actions after which the counters that arrived are below the units that this node admitted."""
_REGAINED_KEPT_NS = 15_000_000_000
"""Time for which regained units are kept after the last ones were added."""
_OWN_KEPT_NS = 15_000_000_000
"""Time after a start in which a member may still return a shard from before it."""
_OWNER_KEPT_NS = 900_000_000_000
"""Age of the log for an owner after which this node owns the shard, if the owner is not a member.
Membership forgets a dead member after the same time."""
_SETTLED_PER_ROUND = 200
"""Most shards of such owners that change their state in one turn of the event loop."""
_TRANSITIONS = {event: [TABLE.get((state, event)) for state in State] for event in Event}
"""Transitions by event and state; None where the state rejects the event."""
_REJECTED = 255
_NEXT = {
    event: bytes([_REJECTED if each is None else each.state for each in transitions])
    for event, transitions in _TRANSITIONS.items()
}
"""Next state by event and state, for shards that change state by thousands."""
_HELD = bytes(state if state >= COUNTED else 0 for state in range(256))
"""By state: the state in which a node holds a shard, else 0."""


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
        on_refunded: Callable[[Sequence[bytes], int], None] | None = None,
    ) -> None:
        """`on_transition` is called before each transition; simulations use it. Origins of counters
        are numbered from `first_origin`. For the other functions see `CounterMerge`.
        """
        self.me = me
        self.held = bytearray(SHARDS)
        """1 at the index of each shard that is counted here, else 0."""
        self.covers: dict[int, Cover] = {}
        """Data of the shards that are counted in place of their owner."""
        self.ended: dict[int, Cover] = {}
        """Data of the shards of `covers` that this node has owned for some seconds, in this order.
        """
        self.regained: dict[int, dict[bytes, int]] = {}
        """Units regained from other data centers, of shards that started without counters."""
        self._regained_at = 0
        self.unasked = UnaskedStandbys(me)
        self.origins = ShardOrigins(first_origin)
        self.transfers = OutgoingTransfers()
        self.merge = CounterMerge(engine, counters, changed, on_arrived, on_refunded)
        self.rounds = RoundTimer()
        """Rounds of the task that fetches, offers and forgets shards."""
        self._engine, self._counters, self._changed = engine, counters, changed
        self._replicas, self._checks, self._on_transition = replicas, checks, on_transition
        self._states = bytearray(SHARDS)
        self._held_states: bytes | None = None

    def __getitem__(self, shard: int) -> State:
        return State(self._states[shard])

    def is_blind(self, shard: int) -> bool:
        """Return whether this node holds a shard without the counters of its owner."""
        return self._states[shard] in BLIND

    def held_states(self) -> bytes:
        """Return one byte per shard: the state in which this node holds the shard, else 0.

        The result is computed once after each change.
        """
        if self._held_states is None:
            self._held_states = bytes(self._states.translate(_HELD))
        return self._held_states

    def apply(self, shard: int, event: Event, arrival: Arrival) -> bool:
        """Apply an event to a shard; return False when its state rejects the event."""
        transition = _TRANSITIONS[event][self._states[shard]]
        if transition is None:
            return False
        self._held_states = None
        if self._on_transition is not None:
            self._on_transition(event, [shard], bytes([self._states[shard]]))
        self.rounds.add_work()
        cover = self.covers.get(shard)
        for action in transition.actions:
            self._perform(action, shard, arrival)
        self._states[shard] = transition.state
        if arrival.copies and arrival.group is None and arrival.has_own_charges:
            self._checks.on_charges_returned(shard)  # A replica, or an own transfer.
        if transition.state is not State.FRESH:
            self.regained.pop(shard, None)
            self.unasked.drop([shard])
        elif cover is not None:
            self.unasked.add_covered(shard, cover.owner)
        if cover is not None and self.held[shard] and cover.unsent:
            self._changed.update(cover.unsent)  # The owner may be the standby now.
            cover.unsent.clear()
        self._update_origins(shard, transition.actions, arrival)
        if arrival.copies and not _ANNOUNCED.isdisjoint(transition.actions):
            for _, counts in arrival.copies:
                self.merge.announce(counts.keys)
        return True

    def _update_origins(self, shard: int, actions: Sequence[Action], arrival: Arrival) -> None:
        cover = self.covers.get(shard)
        if Action.HOLD in actions:
            if arrival.origins:
                self.origins.set([shard], arrival.origins)
            else:
                self.origins.start([shard], is_blind=cover is not None)
                if cover is not None:
                    (cover.mark,) = self.origins.of(shard)
        elif Action.CHARGE_SENDERS_LOG in actions:
            marks = () if arrival.group is None else arrival.group.marks
            has_base = bool(marks) and self._has_base(shard, arrival)
            self.origins.add(shard, marks if has_base else arrival.origins)
        elif not _ANNOUNCED.isdisjoint(actions):
            self.origins.add(shard, arrival.origins)
        if cover is not None and not cover.mark:
            cover.mark = self.origins.new_mark()
            self.origins.add(shard, [cover.mark])
        self.origins.touch(shard, arrival.now)

    def members_to_ask(
        self, ours: bytes, now: int, is_member: Callable[[NodeId], bool]
    ) -> dict[NodeId, list[int]]:
        """Return members that may have counters of shards held in an owner's place, each with its
        shards.

        Only shards marked in `ours` are considered. This node becomes the owner of two kinds of
        shards. Some belonged to it before its restart, and no member has returned them for a time.
        The owners of the others, for which `is_member` returns False, have failed for good.
        """
        by_member: dict[NodeId, list[int]] = {}
        settled: list[int] = []
        for shard, cover in self.covers.items():
            if not ours[shard]:
                continue
            for name in cover.to_ask:
                by_member.setdefault(name, []).append(shard)
            if cover.owner == self.me:
                is_over = now - cover.arrived_at > _OWN_KEPT_NS
            else:
                is_over = now - cover.since > _OWNER_KEPT_NS and not is_member(cover.owner)
                by_member.setdefault(cover.owner, []).append(shard)
            if is_over and len(settled) < _SETTLED_PER_ROUND:
                settled.append(shard)
        for shard in settled:
            self.apply(shard, Event.OWNER_HAS_NOTHING, Arrival(now))
        return by_member

    def _add_ended(self, shard: int, cover: Cover, now: int) -> None:
        cover.ended_at = now
        self.ended.pop(shard, None)  # Keep the order of the ends.
        self.ended[shard] = cover

    def start_log(self, shard: int, now: int) -> None:
        """Log what this node admits for a shard that it owns, because it had the shard before: it
        may get counters of the shard a second time."""
        cover = Cover(self.me, now, mark=self.origins.new_mark())
        self.origins.add(shard, [cover.mark])
        self._add_ended(shard, cover, now)

    def log_of(self, shard: int) -> Cover | None:
        """Return the data of a shard of which this node has a fallback log, if there is one."""
        return self.covers.get(shard) or self.ended.get(shard)

    def log(
        self, batch: Batch, outcomes: Outcomes, period_of: Callable[[bytes], int], now: int
    ) -> None:
        """Log the effect of a decided batch on the shards of which this node has a fallback log.

        `period_of` returns the period in ns of a key's limit.
        """
        for at, key in enumerate(batch.keys):
            cover = self.log_of(shard_of(key))
            if cover is not None:
                cover.log_row(batch, outcomes, at, period_of, now)
                cover.log.prune(self._engine.has, now)

    def log_units(self, key: bytes, units: int, period_ns: int, at: int, now: int) -> None:
        """Log units of a lease that were charged at the instant `at`, or were refunded `now` if
        they are negative."""
        cover = self.log_of(shard_of(key))
        if cover is not None:
            cover.log_units(key, units, period_ns, at, now)

    def is_restored_by(self, shard: int, event: Event) -> bool:
        """Return whether the counters that arrive with an event replace those of this node, which
        then charges what it admitted."""
        return not _BASES.isdisjoint(self._actions(shard, event))

    def is_added_by(self, shard: int, event: Event, *, are_shared: bool) -> bool:
        """Return whether units that arrive with an event are added to those of this node.

        With `are_shared`, both members began with the same units. Then a join adds only the units
        of this node that exceed those of the sender.
        """
        is_compared = are_shared and Action.JOIN in self._actions(shard, event)
        return bool(self.held[shard]) and not is_compared

    def _actions(self, shard: int, event: Event) -> Sequence[Action]:
        transition = _TRANSITIONS[event][self._states[shard]]
        return () if transition is None else transition.actions

    def release_empty(self, shards: Sequence[int], now: int) -> None:
        """Stop holding shards that have nothing to send, because they are being transferred."""
        for shard in shards:
            self.covers.pop(shard, None)
            self.origins.touch(shard, now)
        self.apply_to_all(shards, Event.SEND)

    def ask_next_owner(self, shard: int, now: int) -> bool:
        """Cover another member that may hold a shard, because the owner does not; return whether
        there is one."""
        cover = self.covers.get(shard)
        if cover is None or cover.next_owner is None or self.is_blind(shard):
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
            self._held_states = None
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
            self.origins.start(begun, is_blind=event is Event.TAKE_OVER_BLIND)
            replicas.drop([shard for shard in begun if shard in replicas])
        if changed and states[changed[0]] >= COUNTED:
            self.transfers.drop(changed)
        if self.regained:
            for shard in changed:
                self.regained.pop(shard, None)
        if self.ended:
            for shard in changed:
                self.ended.pop(shard, None)
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
        regained_at = self._regained_at + _REGAINED_KEPT_NS if self.regained else NEVER
        kept_until = next((each.kept_until for each in self.ended.values()), NEVER)
        return min(regained_at, self.origins.next_expiry, kept_until)

    def expire(self, now: int) -> None:
        """Forget all regained units when the last of them were added long ago, old logs of shards
        that this node owns, and old marks."""
        if now - self._regained_at > _REGAINED_KEPT_NS:
            self.regained.clear()
        while self.ended:
            shard, cover = next(iter(self.ended.items()))
            if now <= cover.kept_until:
                break
            del self.ended[shard]
        self.origins.expire(now, self.covers)

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
                are_shared = bool(self.origins.are_shared(shard, arrival.origins))
                for _, counts in copies:
                    regained = self.regained.get(shard, {})
                    merge.join(counts, regained, now, are_shared=are_shared)
                if shard in self.ended and arrival.group is not None:  # A replica is below the log.
                    self._keep_units(self.ended[shard], shard, arrival)
            case Action.CHARGE_SENDERS_LOG:
                regained = self.regained.get(shard, {})
                has_base = self._has_base(shard, arrival)
                for _, counts in copies:
                    logs = without_units(counts.keys, arrival.logs, regained)
                    if has_base:
                        merge.charge_arrived(counts, logs, now)
                    else:
                        merge.charge_arrived(*merge.restore_more(counts, logs, now), now)
                if shard in self.ended:
                    self.ended[shard].add_log(arrival)
            case Action.KEEP_SENDERS_LOG:
                self.covers[shard].add_log(arrival)
            case Action.KEEP_SENDERS_UNITS:
                self._keep_units(self.covers[shard], shard, arrival)
            case Action.RESTORE_BELOW_LOG:
                log = self.log_of(shard)
                above = FallbackLog() if log is None else self._log_above(log, arrival)
                merge.restore_below(above, copies, now)
                if log is not None:
                    log.to_ask = ()
                    # A replica that arrives late is from before the loss of the owner.
                    log.replicated_until = log.replicated_until or log.since
            case Action.COVER_OWNER | Action.COVER_SENDERS_OWNER | Action.COVER_NEW_OWNER:
                self.covers[shard] = self._new_cover(shard, arrival)
            case Action.END_COVER:
                del self.covers[shard]
            case Action.SETTLE_COVER:
                self._add_ended(shard, self.covers.pop(shard), now)
            case Action.COUNT_HEALED:
                self._counters.add("splits_healed")

    def _has_base(self, shard: int, arrival: Arrival) -> bool:
        """Return whether this node has the units that are below the log of an arriving shard, or
        will receive them in the log of the member that started without the owner's counters."""
        group = arrival.group
        if group is None or not are_all_known(group.origins):
            return True
        known = {*group.marks, *self.origins.of(shard)}
        lacks = [number for number in group.origins if number not in known]
        return not lacks or any(map(is_blind_start, lacks))

    def _log_above(self, cover: Cover, arrival: Arrival) -> FallbackLog:
        """Return this node's log without the units that arriving counters contain already.

        If each start of these counters is that of a part of this log or of the sender's log, they
        have only units of logs. Those that are not in the sender's log are the oldest ones of this
        log that still count: older ones have expired in both. Units that a third member has logged
        may be among them; that member sends its log.
        """
        marks = () if arrival.group is None else arrival.group.marks
        mine = {cover.mark, *cover.marks}.difference(UNKNOWN)
        starts = {number for number in arrival.origins if not number % 2}
        if not starts or mine.isdisjoint(arrival.origins) or not starts <= {*mine, *marks}:
            return cover.log
        contained: dict[bytes, int] = {}
        for _, counts in arrival.copies:
            admitted = self.merge.admitted(counts, {}, arrival.now)
            logged = logged_counts(cover.log, counts, arrival.now)
            current = self.merge.admitted(logged, {}, arrival.now)
            rows = arrival.logs or [()] * len(counts.keys)
            for key, row in zip(counts.keys, rows, strict=True):
                expired = cover.log.units_of(key) - current.units_of(key)
                units = admitted.units_of(key) - sum(row[1::2])
                contained[key] = max(0, expired) + max(0, units)
        return cover.log.without_oldest(contained)

    def _keep_units(self, cover: Cover, shard: int, arrival: Arrival) -> None:
        now = arrival.now
        # The log has all units of these origins, so its receiver has them, too.
        cover.marks.update({*arrival.origins}.difference(UNKNOWN, self.origins.of(shard)))
        for _, counts in arrival.copies:
            rows = log_rows(self.merge.admitted(counts, {}, now), counts, now)
            add_logs(cover.log, counts, rows, now)

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
            log=cover.log if cover is not None else FallbackLog(),
            arrived_at=arrival.now,
            is_owner_restarted=group.is_from_before,
            to_ask=others(self.me, group.taken_from, group.replica_at),
            sent_to=cover.sent_to if cover is not None else None,
            sent_log=cover.sent_log if cover is not None else FallbackLog(),
            sent_mark=cover.sent_mark if cover is not None else 0,
            replicated_until=cover.replicated_until if cover is not None else 0,
            mark=cover.mark if cover is not None else 0,
            marks=cover.marks if cover is not None else set(),
        )
