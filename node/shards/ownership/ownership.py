"""Ownership of shards at one node: which shards it holds, and how their counters move.

Only the member that holds a shard, with its counters, decides its checks. A shard is *covered* when
this node holds it in place of an unreachable owner. `ownership_table` has the states of a shard,
the events and the transitions, and `shard_states` performs them. This module turns messages and
calls into events. `handoff` decides which member is asked for a shard, and `shard_sender` answers
members that ask. Nothing here waits.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext

from gossip import Record
from hashring import NodeId, shard_of
from node.metrics.counters import Counters
from node.requests.deduplication import DecidedChecks
from node.requests.leases.lease_grants import Lender
from node.requests.sessions.caller import Caller
from node.shards.applied_refunds import AppliedRefunds
from node.shards.changed_keys import MAX_FRAMES, ChangedKeys
from node.shards.ownership.accepted_transfers import AcceptedTransfers
from node.shards.ownership.arrivals import event_of
from node.shards.ownership.cover import Arrival, Cover, Released, others
from node.shards.ownership.departures import Departures
from node.shards.ownership.duplicate_checks import DuplicateChecks
from node.shards.ownership.origins import UNKNOWN, merge_origins
from node.shards.ownership.ownership_table import Event
from node.shards.ownership.shard_states import OnTransition, ShardStates
from node.shards.replicas import Replicas
from node.shards.shard_steps import ShardSteps
from node.shards.transfers.crossed_transfers import CrossedTransfers
from node.shards.transfers.unacknowledged_transfers import OutgoingTransfer, append_row
from ringfence.limiter import Code, Engine, Outcomes, PackedSnapshot, Snapshot
from ringfence.peering.engine_choice import first_slot
from ringfence.wire import Batch, DecidedCheck, Op, ShardGroup

__all__ = ["ShardOwnership"]

_LAST_CHARGED = Code.OVER_SOFT.value


class ShardOwnership:
    """Shards of which one node has the counters and decides the checks; their states and data."""

    def __init__(
        self,
        me: NodeId,
        engine: Engine,
        counters: Counters,
        period_of: Callable[[bytes], int],
        on_arrived: Callable[[Sequence[bytes]], None],
        on_started: Callable[[Sequence[int]], None],
        *,
        max_keys: int,
        max_bytes: int | None = None,
        decided_checks: DecidedChecks | None = None,
        changed: ChangedKeys | None = None,
        lender: Lender[Caller] | None = None,
        on_transition: OnTransition | None = None,
        first_id: int = 1,
        steps: ShardSteps | None = None,
    ) -> None:
        """`period_of` returns the period in ns of a key's limit, `first_id` numbers origins. For
        `on_arrived` see `CounterMerge`; `on_started` gets shards that start without counters."""
        self.replicas, self.steps = Replicas(max_keys, max_bytes), steps or ShardSteps()
        self.changed = ChangedKeys() if changed is None else changed
        self.decided_checks = checks = DecidedChecks() if decided_checks is None else decided_checks
        """Move with their shards, so that the new owner knows the outcome of a repeated check."""
        self._states = states = ShardStates(
            *(me, engine, counters, self.changed, self.replicas, checks, on_arrived, on_transition),
            first_origin=first_slot(me, first_id),
            on_refunded=None if lender is None else lender.on_units_removed,
        )
        self.held, self.held_states = self._states.held, self._states.held_states
        """By shard: 1 or its state if it is counted here, else 0. The second one is a function."""
        self.transfers, self.unasked, self.log_of = states.transfers, states.unasked, states.log_of
        self.rounds, self.origins, self.regained = states.rounds, states.origins, states.regained
        self.merge, self._covers = self._states.merge, self._states.covers
        self.refunds = AppliedRefunds(engine, self.merge, self._covers, period_of)
        self._duplicates = DuplicateChecks(checks, self.merge, self.refunds)
        self._me, self._engine, self._counters, self._period_of = me, engine, counters, period_of
        self._on_started, self._lender = on_started, lender
        self._crossed = CrossedTransfers(self.transfers, self.merge, checks, self.held)
        self._left, self._accepted = Departures(), AcceptedTransfers()

    # -- deciding ------------------------------------------------------------------------------

    def record_decided(self, batch: Batch, outcomes: Outcomes, now: int) -> None:
        """Record the keys that a batch has changed, for the standby and for covered owners."""
        keys, codes = batch.keys, outcomes.codes
        if batch.op is Op.CHECK and any(codes) and max(codes) > _LAST_CHARGED:
            keys = [k for k, code in zip(keys, codes, strict=True) if code <= _LAST_CHARGED]
        frames = self.changed.frames
        frames.append(keys)
        waiting = len(frames)
        if waiting == 1:
            self.changed.notify()
        elif waiting >= MAX_FRAMES:
            self.changed.merge()
        if self._covers or self._states.ended:
            self._states.log(batch, outcomes, self._period_of, now)

    def log_units(self, key: bytes, units: int, at: int, now: int) -> None:
        """See `ShardStates.log_units`."""
        self._states.log_units(key, units, self._period_of(key), at, now)

    # -- queries -------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Number of shards that this node holds."""
        return self.held.count(1)

    @property
    def is_empty(self) -> bool:
        """Whether this node holds no shard and all its transfers were acknowledged."""
        return not self.count and self.transfers.are_confirmed

    @property
    def covers(self) -> Mapping[int, Cover]:
        """Data of each shard that this node holds in place of its owner."""
        return self._covers

    def is_blind(self, shard: int) -> bool:
        """Return whether this node holds a shard without the counters of its owner."""
        return self._states.is_blind(shard)

    def members_to_ask(
        self, ours: bytes, now: int, is_member: Callable[[NodeId], bool]
    ) -> dict[NodeId, list[int]]:
        """See `ShardStates.members_to_ask`."""
        return self._states.members_to_ask(ours, now, is_member)

    # -- start and takeover --------------------------------------------------------------------

    def start(self, shards: Iterable[int]) -> None:
        """Start to hold shards for which no member has counters."""
        started = self._states.apply_to_all(shards, Event.START)
        if started:
            self._on_started(started)

    def take_over(
        self,
        shard: int,
        owner: NodeId,
        replica: Iterable[tuple[int, Snapshot]],
        now: int,
        silent: Sequence[NodeId] = (),
        found: ShardGroup | None = None,
    ) -> None:
        """Take over a shard from its unreachable owner, starting from a replica of its counters.

        `replica` has counters with their instants. When another member sent the replica, `found`
        describes it. `silent` members may have a replica that must not be overwritten if this node
        has none.
        """
        if self.held[shard]:
            return
        transfer, sender = self.transfers.get(shard), self.replicas.sender_of(shard)
        base_of = sender or ("" if found is None else found.taken_from)
        if transfer is not None and transfer.parts:
            self._retake(shard, transfer, now, base_of)
            return
        whose, then = self._left.owners_of_replica(base_of, owner, self._me)
        copies = [(min(at, now), counts) for at, counts in replica]
        cover = Cover(whose, now, base_of=base_of, next_owner=then)
        cover.replicated_until = max([at for at, _ in copies], default=0)
        event = Event.TAKE_OVER
        if not any([counts.keys for _, counts in copies]):
            event = Event.TAKE_OVER_BLIND
            cover.to_ask = others(self._me, whose, *silent)
        known = merge_origins(self.replicas.origins_of(shard), found.origins if found else ())
        origins = known or UNKNOWN if event is Event.TAKE_OVER else ()
        is_own = transfer is None or transfer.to == base_of
        arrival = Arrival(now, copies, cover=cover, origins=origins, has_own_charges=is_own)
        self._states.apply(shard, event, arrival)
        if event is Event.TAKE_OVER_BLIND:
            self._on_started([shard])
        self._counters.add("shards_taken")

    def take_over_blind(
        self, shards: Sequence[int], owner: NodeId, now: int, silent: Sequence[NodeId]
    ) -> None:
        """Take over many shards of an unreachable owner, without a replica or a transfer."""
        taken = self._states.apply_to_all(shards, Event.TAKE_OVER_BLIND)
        to_ask = others(self._me, owner, *silent)
        for shard in taken:
            (mark,) = self.origins.of(shard)
            self._covers[shard] = Cover(owner, now, mark=mark, to_ask=to_ask)
        if taken:
            self._on_started(taken)
            self._counters.add("shards_taken", len(taken))

    def _retake(self, shard: int, transfer: OutgoingTransfer, now: int, base_of: str) -> None:
        """Take back a shard whose transfer to another member was not acknowledged.

        The parts of the transfer are still here, and no replica can be newer.
        """
        cover = Cover.of_transfer(transfer, base_of)
        copies = [(min(transfer.at, now), part.counts.unpack()) for part in transfer.parts]
        is_empty = not any([counts.keys for _, counts in copies])
        if transfer.taken_from:
            is_blind = is_empty or bool(transfer.ask)
            event = Event.TAKE_OVER_BLIND if is_blind else Event.TAKE_OVER
        else:
            is_blind = is_empty
            event = Event.RETAKE_BLIND if is_blind else Event.RETAKE
        if is_blind:
            cover.to_ask = others(self._me, cover.owner, transfer.ask)
        arrival = Arrival(now, copies, cover=cover, origins=transfer.origins)
        self._states.apply(shard, event, arrival)
        if is_empty:
            self._on_started([shard])
        self._counters.add("shards_taken")

    # -- arrivals ------------------------------------------------------------------------------

    def accept(
        self,
        shard: int,
        group: ShardGroup,
        sender: NodeId,
        counts: Snapshot,
        logs: Sequence[Sequence[int]],
        now: int,
        decided: Sequence[DecidedCheck] = (),
    ) -> bool:
        """Accept a shard that `sender` has transferred; merge it with this node's counters, if any.

        `group` describes the transfer. A repeated transfer has no effect. A check that both this
        node and the sender (`decided`) have decided is counted once. Returns False when the shard
        cannot be accepted yet, see `_is_in_flight`; the sender then keeps its transfer.
        """
        if self._is_in_flight(shard, group, sender):
            return False
        if not self._add_new([shard], group, sender):
            return True
        is_held = bool(self.held[shard])
        if is_held and self.origins.have_all(shard, group.marks[:1]):
            return True
        cover = self._covers.get(shard)
        if group.taken_from and cover is not None and cover.owner == sender:
            # The sender holds the shard in another member's place, so it is not the owner.
            self._states.ask_next_owner(shard, now)
        crossed = self._crossed.find(shard, group, sender, decided, now)
        had_before = not is_held and bool(self.origins.of(shard))
        log = self._states.log_of(shard)
        are_shared = self.origins.are_shared(shard, group.origins) if is_held else None
        group = self.unasked.correct_group(shard, group, sender, are_shared=are_shared)
        is_unrelated = are_shared is False or (shard in self._covers and not counts.keys)
        event = event_of(self._states, shard, group, sender, counts, is_unrelated=is_unrelated)
        is_restored = self._states.is_restored_by(shard, event)
        if log is not None and is_restored:
            log.find_sent(group.origins)
        is_added = self._states.is_added_by(shard, event, are_shared=bool(are_shared))
        logs = self._duplicates.remove(
            log, counts, logs, decided, now, is_added=is_added, is_restored=is_restored
        )
        # The sender may not know that this node was the standby of the owner. But a replica that
        # the sender itself sent has the units that it has sent now.
        whose = self.replicas.sender_of(shard) or ""
        is_base = whose != sender and (group.replica_at == self._me or whose == group.taken_from)
        origins = self.replicas.origins_of(shard)
        is_new = {*group.marks}.isdisjoint(origins)  # It has no units of the sender's log.
        is_used = bool(group.replica_at) and is_base and is_new and not is_held
        replica = [(min(at, now), each) for at, each in self.replicas.of(shard)] if is_used else []
        since = now - max([check.age_ns for check in decided], default=0)
        arrival = Arrival(now, [(now, counts)], logs, group, since=since, origins=group.origins)
        self._states.apply(shard, event, arrival)
        if shard in self._covers:
            received = self._covers[shard]
            received.add_sender(sender, group, self._me, is_blind=self.is_blind(shard))
        elif had_before:
            self._states.start_log(shard, now)
        if crossed is not None:
            self._crossed.charge(shard, crossed, decided, now)
            self.origins.add(shard, crossed.origins)
        if replica:
            arrival = Arrival(now, replica, origins=origins or UNKNOWN)
            self._states.apply(shard, Event.REPLICA_FOUND, arrival)
            if shard in self._covers:
                self._covers[shard].base_of = whose
        self._counters.add("keys_pulled", len(counts.keys))
        return True

    def _is_in_flight(self, shard: int, group: ShardGroup, sender: NodeId) -> bool:
        """Return whether this node's own counters of a shard, or its log for the owner, are in an
        unacknowledged transfer.

        The receiver may not have all parts yet, so they must not be dropped for counters without
        them. A repeated transfer drops nothing. `CrossedTransfers` keeps a log whose receiver sends
        the owner's counters.
        """
        mine = self.transfers.get(shard)
        if mine is None or not any([part.counts.count for part in mine.parts]):
            return False
        if mine.taken_from and not group.taken_from and mine.to == sender:
            return False
        if not {*mine.marks[:1]}.isdisjoint(group.origins):
            return False
        return not self._accepted.has(shard, sender, group.transfer_id)

    def accept_empty(
        self, shards: Iterable[int], group: ShardGroup, sender: NodeId, now: int
    ) -> list[int]:
        """Accept shards that their owner `sender` has transferred without any counters.

        Returns these shards; use `accept` for the others, which are held or in flight.
        """
        new = [s for s in shards if not (self.held[s] or self._is_in_flight(s, group, sender))]
        arrived = self._add_new(new, group, sender)
        crossed = self._crossed.find_all(arrived, group, sender, now)
        self._states.apply_to_all(arrived, Event.TRANSFER)
        for shard, transfer in crossed.items():
            self._crossed.charge(shard, transfer, (), now)
            self.origins.add(shard, transfer.origins)
        return new

    def _add_new(self, shards: Sequence[int], group: ShardGroup, sender: NodeId) -> Sequence[int]:
        """Record a transfer; return the shards for which it was not accepted before."""
        new = self._accepted.add(shards, sender, group.transfer_id)
        self._counters.add("shards_pulled", len(new))
        return new

    # -- answers of the owner of a covered shard -----------------------------------------------

    def owner_has_nothing(self, shard: int, now: int) -> None:
        """Become the owner of a shard, because the owner in whose place this node held it has no
        counters; if another member may hold the shard, ask that one first."""
        if not self._states.ask_next_owner(shard, now):
            self._states.apply(shard, Event.OWNER_HAS_NOTHING, Arrival(now))

    def owner_moved(self, shard: int, owner: NodeId, now: int) -> None:
        """Record a new owner for a shard that this node holds, because the previous owner
        transferred it there."""
        self._states.apply(shard, Event.OWNER_MOVED, Arrival(now, owner=owner))

    def owner_has_replica(self, shard: int, counts: Snapshot, group: ShardGroup, now: int) -> None:
        """Use a replica from the owner of a shard that this node holds in its place.

        The owner has no counters of its own. The replica contains earlier counters of this node, or
        counters of a third member, as `group` describes. If the owner itself has transferred the
        shard to this node, the replica contains nothing new.
        """
        whose = group.taken_from
        if self._states.ask_next_owner(shard, now):
            return
        cover = self._covers.get(shard)
        if cover is not None and cover.owner in cover.received_from and whose in ("", self._me):
            self._states.apply(shard, Event.OWNER_HAS_NOTHING, Arrival(now))
            return
        is_own = whose in ("", self._me) or self._left.has_stopped(whose)
        event = Event.REPLICA_OF_OWN if is_own else Event.REPLICA_OF_OTHER
        origins = group.origins or UNKNOWN
        if not is_own and cover is not None and cover.mark in origins:
            origins = ()  # The third member started from these counters, and still has its log.
        if not origins or self.origins.have_all(shard, origins):
            counts = Snapshot([], [], [], [], [])
        arrival = Arrival(now, [(now, counts)], owner=NodeId(whose), origins=origins)
        self._states.apply(shard, event, arrival)

    def replica_answered(
        self, shard: int, name: NodeId, counts: Snapshot, now: int, group: ShardGroup
    ) -> None:
        """Use the late replica of a member that did not answer when this node took over or started
        the shard, as `group` describes.

        It is ignored if its owner has transferred the shard to this node, or if it has counters of
        this node since its start: it has no other units.
        """
        cover = self._covers.get(shard)
        is_asked = bool(self.unasked.on_answer(name, [shard]))
        if not is_asked and (cover is None or name not in cover.to_ask):
            return
        whose = group.taken_from
        if cover is None and self.origins.are_shared(shard, group.origins):
            return
        if self.origins.have_all(shard, group.origins):
            counts = Snapshot([], [], [], [], [])
        if counts.keys and (cover is None or whose not in cover.received_from):
            if cover is not None:
                cover.base_of = whose
                if whose not in ("", self._me, cover.owner):
                    cover.next_owner = NodeId(whose)  # It still has the counters, and their log.
            arrival = Arrival(now, [(now, counts)], origins=group.origins or UNKNOWN)
            self._states.apply(shard, Event.REPLICA_FOUND, arrival)
        elif cover is not None:
            cover.to_ask = tuple([each for each in cover.to_ask if each != name])

    # -- members and replicas ------------------------------------------------------------------

    def on_member_change(self, before: Record | None, after: Record) -> None:
        """Record that another member has restarted or left."""
        name = NodeId(after.name)
        if before is not None and after.generation > before.generation:
            for cover in self._covers.values():  # A restarted owner may have lost its counters.
                if cover.owner == name:
                    cover.is_owner_restarted = True
        self._left.update(after)

    def keep_replica(
        self,
        sender: NodeId,
        counts: PackedSnapshot,
        now: int,
        origins: Sequence[tuple[int, ...]] | None = None,
    ) -> None:
        """Store counters that an owner replicates here; use them for shards held in its place.

        `origins` has the origins of each counter, or of all counters, if they are known.
        """
        self.replicas.keep(sender, counts, now, origins)
        self.rounds.add_work()
        if any([cover.owner == sender for cover in self._covers.values()]):
            self._follow_owner(sender, counts.unpack(), now, origins or (UNKNOWN,))

    def _follow_owner(
        self,
        sender: NodeId,
        counts: Snapshot,
        now: int,
        origins: Sequence[tuple[int, ...]],
    ) -> None:
        """Update the owner's part of the counters of shards that this node covers.

        Skipped after a restart of the owner, because this node may have counters that the owner
        lacks. Skipped for another member that holds shards of the same owner in its place, because
        its counters may include units that this node admitted.
        """
        theirs: dict[int, Snapshot] = {}
        for at, key in enumerate(counts.keys):
            shard = shard_of(key)
            cover = self._covers.get(shard)
            if cover is None or cover.owner != sender or cover.is_owner_restarted:
                continue
            if cover.mark in origins[min(at, len(origins) - 1)]:
                continue
            cover.copied_at, cover.replicated_until, cover.base_of = now, now, sender
            if counts.states[at]:
                append_row(theirs.setdefault(shard, Snapshot([], [], [], [], [])), counts, at)
                self.origins.add(shard, origins[min(at, len(origins) - 1)])
        for shard, base in theirs.items():
            cover, before = self._covers[shard], self._engine.local_counts(base.keys, now)
            self.merge.restore_below(cover.log, [(now, base)], now)
            after = self._engine.local_counts(base.keys, now)
            cover.add_duplicates(base.keys, before, after, now)

    def restore_lost(self, rows: Mapping[bytes, Sequence[int]], now: int) -> None:
        """Charge counts that this data center lost and has recovered from other data centers; each
        row alternates an age in ns and a number of units, the oldest first."""
        self.merge.charge(rows, now, "hits_recalled")
        self._states.add_regained(rows, now)
        self.merge.announce(list(rows))

    def snapshot(self, keys: Sequence[bytes], now: int) -> PackedSnapshot:
        """Return the counter states of keys for the standby; unused keys have empty states."""
        with nullcontext() if self._lender is None else self._lender.counted(keys, now):
            return self._engine.pack(keys, now)

    # -- transfers to other members ------------------------------------------------------------

    def release(self, shard: int, now: int) -> Released:
        """Stop holding a shard because it is being transferred; return its data."""
        regained = self._states.regained.get(shard, {})
        cover = self._covers.pop(shard, None) or self._states.ended.pop(shard, None)
        released = Released(cover, self.is_blind(shard), regained)
        self._states.apply(shard, Event.SEND, Arrival(now))
        return released

    def release_empty(self, shards: Sequence[int], now: int) -> None:
        """See `ShardStates.release_empty`."""
        self._states.release_empty(shards, now)

    def acknowledge(self, receiver: NodeId, shards: Iterable[int], number: int, now: int) -> None:
        """Drop the stored parts of shards whose receiver has acknowledged the transfer `number`.

        This node may have started to hold such a shard again. Then the receiver has counted the log
        of the transfer, so this node removes those units from its own log.
        """
        shards = [*shards]
        for shard in shards if self._covers else ():
            cover = self._covers.get(shard)
            if cover is not None:
                cover.confirm_sent(receiver, number)
        self._crossed.confirm(shards, receiver, number, now)
        confirmed = self.transfers.confirm(shards, receiver, number)
        self._states.apply_to_all(confirmed, Event.ACKNOWLEDGE)

    @property
    def next_expiry(self) -> int:
        """Instant in ns from which on `expire` has something to forget."""
        parts = (self.transfers, self._crossed, self.replicas, self._states)
        return min([part.next_expiry for part in parts])

    def expire(self, now: int) -> None:
        """Forget old transfers, unused replicas, and old records of recovered units."""
        self._states.apply_to_all(self.transfers.expire(now), Event.FORGET)
        self._crossed.expire(now)
        self.replicas.expire(now)
        self._states.expire(now)
