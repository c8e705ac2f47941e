"""Merging of counters from another member into the counters of this node."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from node.metrics.counters import Counters
from node.shards.changed_keys import ChangedKeys
from node.shards.fallback_log import FallbackLog
from node.shards.log_rows import add_logs, refunded_units, without_row
from node.shards.ownership.first_hits import earlier_windows
from node.shards.ownership.shared_buckets import joined_buckets
from node.shards.transfers.unacknowledged_transfers import (
    append_row,
)
from ringfence.limiter import Algorithm, Engine, Limit, Snapshot
from ringfence.wire import SLOT_ID, DecidedCheck

__all__ = ["CounterMerge"]

_UNSHARED_BUCKET = 2
"""Numbers in the state of a bucket. A bucket that data centers share has counts behind them:
alternating period numbers and units of this data center."""


def _longest_age_ns(age_ns: int, limit: Limit | None) -> int:
    """Return the age with which a charge is refunded that was made about `age_ns` ago.

    0 means the newest units. In a sliding log, a hit may be older than the recorded age of its
    check: each message adds its network delay to one of both, and an answer is later than its
    charge.
    """
    if limit is None:
        return age_ns
    return 0 if limit.is_bucket else limit.refund_age_ns(age_ns)


def _age_of_refund(age_ns: int, limit: Limit | None) -> int:
    """Return the age with which units are refunded that the standby refunded about `age_ns` ago.

    It refunded the newest units of a sliding log, and units that had not drained of a bucket.
    """
    is_window = limit is None or not (
        limit.is_bucket or limit.algorithm is Algorithm.SLIDING_WINDOW_LOG
    )
    return age_ns if is_window else 0


class CounterMerge:
    """Restores and charges counters that arrive from other members, and marks their keys as
    changed."""

    def __init__(
        self,
        engine: Engine,
        counters: Counters,
        changed: ChangedKeys,
        on_arrived: Callable[[Sequence[bytes]], None],
        on_refunded: Callable[[Sequence[bytes], int], None] | None = None,
    ) -> None:
        """`on_arrived` is called with keys whose counters this node holds from now on.

        `on_refunded` is called with keys whose units were removed now, because another member had
        refunded or reset them.
        """
        self._engine = engine
        self._counters = counters
        self._changed = changed
        self._on_arrived = on_arrived
        self._on_refunded = on_refunded

    def restore(self, counts: Snapshot, at: int) -> None:
        """Replace the counters of some keys by a snapshot that was taken at the instant `at`."""
        refused = self._engine.restore(counts, at)
        if refused:
            self._counters.add("states_refused", refused)

    def charge(
        self,
        rows: Mapping[bytes, Sequence[int]],
        now: int,
        counter: str = "hits_merged",
        *,
        counts: Snapshot | None = None,
    ) -> None:
        """Charge units to the counters of keys.

        Each row of `rows` alternates an age in ns and a number of units, the oldest first. A key
        that has no counter here is charged under its limit in `counts`, if it is there: the limit
        may have come with a request, so that no rule has it.
        """
        keys: list[bytes] = []
        units: list[int] = []
        ages_ns: list[int] = []
        for key, row in rows.items():
            keys += [key] * (len(row) // 2)
            ages_ns += row[::2]
            units += row[1::2]
        if keys:
            limits = {} if counts is None else self._limits_of_new_keys(counts)
            numbers = {key: number for number, key in enumerate(limits, 1)}
            which = [numbers.get(key, 0) for key in keys]
            self._engine.charge(keys, units, ages_ns, now, limits=[*limits.values()], which=which)
        self._changed.update(keys)
        self._counters.add(counter, sum(units))

    def _limits_of_new_keys(self, counts: Snapshot) -> dict[bytes, Limit]:
        """Return the limits of those keys of a snapshot that have no counter here. The limit of an
        unused key is unknown."""
        columns = zip(counts.keys, counts.states, counts.which, strict=True)
        return {
            key: counts.limits[which]
            for key, state, which in columns
            if state and not self._engine.has(key)
        }

    def charge_log(
        self,
        log: FallbackLog,
        keys: Sequence[bytes],
        counts: Snapshot,
        at: int,
        now: int,
        *,
        limits: Snapshot | None = None,
    ) -> None:
        """Remove the refunded units, charge the units that were admitted in place of an owner (its
        fallback log), and merge the logged slots.

        `counts` contains the slots of the log as they were at the instant `at`. They replace the
        slots with the same numbers. A slot of the log that `counts` lacks is released. `counts`
        also contains the windows of the log that began with a first hit. `limits` has the limits of
        keys without a counter here, if `counts` does not have them.
        """
        self._remove_refunded(log, keys, now)
        rows_of_log = {key: log.row(key, now) for key in keys}
        self.charge(rows_of_log, now, counts=counts if limits is None else limits)
        self._keep_first_hits(rows_of_log, counts, at, now)
        slotted = [key for key in keys if log.slots(key)]
        rows = {key: row for row, key in enumerate(counts.keys)} if slotted else {}
        for key in slotted:
            row = rows.get(key)
            state = [] if row is None else counts.states[row]
            limit = None if row is None else counts.limits[counts.which[row]]
            self._replace_slots(key, log.slots(key), state, limit, at, now)

    def _remove_refunded(self, log: FallbackLog, keys: Iterable[bytes], now: int) -> None:
        """Remove the units of the owner's counters that were refunded in its place."""
        rows = {key: row for key in keys if (row := log.refunded(key, now))}
        if rows:
            counts = [len(row) // 2 for row in rows.values()]
            of_pairs = [key for key, count in zip(rows, counts, strict=True) for _ in range(count)]
            units = [number for row in rows.values() for number in row[1::2]]
            ages_ns = [number for row in rows.values() for number in row[::2]]
            self._remove(of_pairs, units, ages_ns, [0] * len(units), now, _age_of_refund)
            self._changed.update(rows)
            if self._on_refunded is not None:
                self._on_refunded([*rows], now)

    def _keep_first_hits(
        self, rows: Mapping[bytes, Sequence[int]], counts: Snapshot, at: int, now: int
    ) -> None:
        """Let the windows of charged keys begin with the first hit that the charging member or this
        node knows. `counts` has the windows of the former at the instant `at`."""
        if any([limit.first_hit for limit in counts.limits]):
            mine = self._engine.snapshot([key for key, row in rows.items() if row], now)
            self.restore(earlier_windows(mine, counts, now - at), now)

    def _replace_slots(
        self,
        key: bytes,
        numbers: Iterable[int],
        state: Sequence[int],
        limit: Limit | None,
        at: int,
        now: int,
    ) -> None:
        """Replace concurrency slots with the given numbers by the slots in a counter state from the
        instant `at`."""
        here = self._engine.snapshot([key], now)
        limit = here.limits[0] if here.keys else limit
        if limit is None or limit.algorithm is not Algorithm.CONCURRENCY:
            return
        slots = _slots_of(here.states[0], now) if here.keys else {}
        logged = _slots_of(state, at)
        for number in numbers:
            before = slots.pop(number, (0, 0))
            if number in logged:
                slots[number] = max(before, logged[number])
                self._counters.add("hits_merged", 0 if before[1] else logged[number][1])
        held = sorted((ends - now, number, units) for number, (ends, units) in slots.items())
        merged = [n for left, number, units in held if left > 0 for n in (number, left, units)]
        self.restore(Snapshot([key], [merged], [limit], [0], []), now)
        self._changed.update([key])

    def charge_arrived(self, counts: Snapshot, rows: Sequence[Sequence[int]], now: int) -> None:
        """Charge the units in another member's fallback log, which has one row for each key of
        `counts`."""
        plain: dict[bytes, Sequence[int]] = {}
        slotted: dict[bytes, Sequence[int]] = {}
        for key, row in zip(counts.keys, rows, strict=True):
            (slotted if 0 in row[1::2] else plain)[key] = row
        self.charge(plain, now, counts=counts)
        self._keep_first_hits(plain, counts, now, now)
        if slotted:
            log = FallbackLog()
            add_logs(log, counts, [slotted.get(key, ()) for key in counts.keys], now)
            self.charge_log(log, [*slotted], counts, now, now)

    def restore_more(
        self, counts: Snapshot, logs: Sequence[Sequence[int]], now: int
    ) -> tuple[Snapshot, list[Sequence[int]]]:
        """Restore the counters that have more units below another member's log than the counters
        of this node; return the other counters with their rows of the log.

        Both members began with the same units, and the other member admitted more before its log.
        Slots are left to the log, and so are counters with counts of other data centers.
        """
        theirs = Engine(max_keys=max(1, len(counts.keys)))
        theirs.restore(counts, now)
        more, others = Snapshot([], [], [], [], []), Snapshot([], [], [], [], [])
        rows: list[Sequence[int]] = []
        for at, (key, row) in enumerate(zip(counts.keys, logs, strict=True)):
            below = theirs.used(key, now) - sum(row[1::2]) + refunded_units(row)
            is_slotted = counts.limits[counts.which[at]].algorithm is Algorithm.CONCURRENCY
            is_shared = bool(counts.remote_counts and counts.remote_counts[at])
            if is_slotted or is_shared or below <= self._engine.used(key, now):
                append_row(others, counts, at)
                rows.append(row)
            else:
                append_row(more, counts, at)
        self.restore(more, now)
        self._changed.update(more.keys)
        return others, rows

    def restore_below(
        self, log: FallbackLog, copies: Iterable[tuple[int, Snapshot]], now: int
    ) -> None:
        """Restore snapshots, each taken at its own instant, then charge the units in this node's
        fallback log."""
        for at, counts in copies:
            needed = [
                key
                for key, which in zip(counts.keys, counts.which, strict=True)
                if log.slots(key) or counts.limits[which].first_hit
            ]
            mine = self._engine.snapshot(needed, now)
            self.restore(counts, at)
            self.charge_log(log, counts.keys, mine, now, now, limits=counts)

    def refund_log(self, log: FallbackLog, charged_at: int, now: int) -> None:
        """Undo `charge_log` of a fallback log at `charged_at`.

        Slots are not refunded, because a merge counts each slot once.
        """
        keys: list[bytes] = []
        units: list[int] = []
        ages_ns: list[int] = []
        for key in log.keys:
            row = log.row(key, charged_at)
            keys += [key] * (len(row) // 2)
            ages_ns += [age_ns + now - charged_at for age_ns in row[::2]]
            units += row[1::2]
        self._remove(keys, units, ages_ns, [0] * len(keys), now)
        self._changed.update(keys)
        self.charge({key: log.refunded(key, charged_at) for key in log.keys}, now)

    def refund(self, checks: Sequence[DecidedCheck], now: int) -> None:
        """Refund the units of checks that another member has also charged."""
        self._remove(
            [check.key for check in checks],
            [check.cost for check in checks],
            [check.age_ns for check in checks],
            [check.row[SLOT_ID] for check in checks],
            now,
        )

    def _remove(
        self,
        keys: Sequence[bytes],
        units: Sequence[int],
        ages_ns: Sequence[int],
        slots: Sequence[int],
        now: int,
        refund_age: Callable[[int, Limit | None], int] = _longest_age_ns,
    ) -> None:
        """Remove charged units that another charge replaces, or that were refunded elsewhere.

        The other charge adds them to a bucket in full. So all of them are removed, not only the
        part that has not drained since, as by a refund of an application.
        """
        here = self._engine.snapshot([*dict.fromkeys(keys)], now)
        found = dict(zip(here.keys, here.which, strict=True))
        ages = [
            refund_age(age_ns, here.limits[found[key]] if key in found else None)
            for key, age_ns in zip(keys, ages_ns, strict=True)
        ]
        # The limit may have come with a request, so that no rule has it.
        numbers = [found[key] + 1 if key in found else 0 for key in keys]
        self._engine.refund(keys, units, ages, slots, here.limits, numbers, now)

    def admitted(self, counts: Snapshot, regained: Mapping[bytes, int], now: int) -> FallbackLog:
        """Return a log of what this node admitted for each key: slots, and units.

        The units of a sliding window keep the slots of the window; others have the age 0.
        The counts of other data centers are excluded, because both members have them. Units that
        were recovered from other data centers (`regained`) are excluded, because the counters of
        the other member contain them.
        """
        log = FallbackLog()
        scratch = Engine(max_keys=max(1, len(counts.keys)))
        scratch.restore(Snapshot(counts.keys, counts.states, counts.limits, counts.which, []), now)
        for at, key in enumerate(counts.keys):
            limit, state = counts.limits[counts.which[at]], counts.states[at]
            if limit.algorithm is Algorithm.CONCURRENCY:
                for slot, left, units in zip(state[::3], state[1::3], state[2::3], strict=True):
                    log.grant(key, slot, units, limit.period_ns, now + left - limit.period_ns)
                continue
            remote = counts.remote_counts[at] if counts.remote_counts else {}
            if limit.algorithm is Algorithm.SLIDING_WINDOW:
                spent = _units_by_slot(limit, state, now) if scratch.has(key) else []
            elif limit.is_bucket and (remote or len(state) > _UNSHARED_BUCKET):
                # The level has units of other data centers, too.
                spent = [(now, sum(state[_UNSHARED_BUCKET + 1 :: 2]))]
            else:
                spent = [(now, scratch.used(key, now))]
            theirs = regained.get(key, 0)
            for spent_at, units in spent:
                if units > theirs:
                    log.add(key, units - theirs, limit.period_ns, spent_at)
                theirs = max(0, theirs - units)
        return log

    def join(
        self, counts: Snapshot, regained: Mapping[bytes, int], now: int, *, are_shared: bool = False
    ) -> None:
        """Restore counters from another member, and also charge what this node admitted itself.

        With `are_shared`, both members began with the same units, so only the units are charged
        that exceed those of the other member. The units of a sliding log keep their ages.
        """
        mine = self._engine.snapshot(counts.keys, now)
        states = dict(zip(counts.keys, counts.states, strict=True)) if are_shared else {}
        if are_shared:
            theirs = Engine(max_keys=max(1, len(counts.keys)))
            theirs.restore(counts, now)
            regained = {key: theirs.used(key, now) for key in counts.keys}
        aged = {
            key: without_row(state, states.get(key, ()))
            for key, state, which in zip(mine.keys, mine.states, mine.which, strict=True)
            if mine.limits[which].algorithm is Algorithm.SLIDING_WINDOW_LOG
        }
        buckets = joined_buckets(mine, counts, regained, are_shared=are_shared)
        plain = [key for key in mine.keys if key not in {*aged, *buckets.keys}]
        rest = self._engine.snapshot(plain, now)
        log = self.admitted(rest, regained, now)
        self.restore(counts, now)
        self.restore(buckets, now)
        self.charge(aged, now, counts=mine)
        self.charge_log(log, rest.keys, rest, now, now)

    def announce(self, keys: Sequence[bytes]) -> None:
        """Mark received keys as changed, so that they are replicated, and report that this node now
        holds them."""
        self._changed.update(keys)
        self._on_arrived(keys)


def _units_by_slot(limit: Limit, state: Sequence[int], now: int) -> list[tuple[int, int]]:
    """Return the units in each slot of a sliding window with the first instant of the slot, the
    oldest slot first."""
    slot_ns, (latest, *counts) = limit.period_ns // limit.slots, state
    oldest = now // slot_ns - limit.slots
    slots = [(latest - back, units) for back, units in enumerate(counts)]
    return [(slot * slot_ns, units) for slot, units in reversed(slots) if slot >= oldest]


def _slots_of(state: Sequence[int], at: int) -> dict[int, tuple[int, int]]:
    """Convert the stored state of a concurrency limit to expiry and units of each slot, by slot
    number."""
    triples = zip(state[::3], state[1::3], state[2::3], strict=False)  # A peer may send anything.
    return {slot: (at + left, units) for slot, left, units in triples}
