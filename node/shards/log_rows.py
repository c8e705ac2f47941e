"""Rows of a fallback log in a transfer: numbers in pairs, one row for each key.

A pair is an age in ns and units. A changed slot of a concurrency limit adds two pairs: its age and
units if it is held, and its number with 0 units. The counters in the same transfer have the slots
that are held; a changed slot that they lack was released. Units that were refunded in the owner's
counter come last: a pair of zeros, and for each refund two pairs, its age and its units, each with
0 units. Older nodes write and read only ages and units: they ignore pairs without units, and units
without a slot are charged.
"""

from collections.abc import Container, Mapping, Sequence
from math import inf

from msgspec.structs import replace

from node.shards.fallback_log import FallbackLog
from ringfence.limiter import Algorithm, Engine, Snapshot
from ringfence.wire import SLOT_ID, CheckId, DecidedCheck

__all__ = [
    "LiftedUnits",
    "add_logs",
    "log_rows",
    "logged_counts",
    "refunded_units",
    "unknown_period_ns",
    "without_checks",
    "without_logged_checks",
    "without_refunds",
    "without_row",
    "without_units",
]

_NEAR_DIVISOR = 32
"""Units of a log belong to a check if their ages differ by at most this fraction of the period, and
`_NEAR_NS`: four of the 128 parts of a period, because each transfer may move units to the next
part."""
_NEAR_NS = 50_000_000
"""Allowance for the recorded time of a check, which is that of its answer."""


_AGES_KEPT = 10
_LEAST_PERIOD_NS = 60_000_000_000
"""Period of refunds of an unused key: at least this time, and a multiple of their largest age."""
_REFUNDED = 0
"""Number before the refunds in a row; no slot has it."""


def log_rows(log: FallbackLog, counts: Snapshot, now: int) -> list[list[int]]:
    """Convert a fallback log to one row of numbers for each key of `counts`, the counters of the
    same node."""
    rows: list[list[int]] = []
    for at, key in enumerate(counts.keys):
        row, slots = log.row(key, now), log.slots(key)
        if slots and _has_slots(counts, at):
            held = _ages_and_units(counts, at)
            for slot in slots:
                row += held.get(slot, ())
            for slot in slots:
                row += (slot, 0)
        refunded = log.refunded(key, now)
        for number in (_REFUNDED, *refunded) if refunded else ():
            row += (number, 0)
        rows.append(row)
    return rows


def logged_counts(log: FallbackLog, counts: Snapshot, now: int) -> Snapshot:
    """Return counters that have only the units of a log, for the keys and limits of `counts`.

    They lack units that no longer count, because their window has ended or they have drained.
    """
    keys: list[bytes] = []
    units: list[int] = []
    ages_ns: list[int] = []
    which: list[int] = []
    for key, number in zip(counts.keys, counts.which, strict=True):
        row = log.row(key, now)
        keys += [key] * (len(row) // 2)
        ages_ns += row[::2]
        units += row[1::2]
        which += [number + 1] * (len(row) // 2)
    scratch = Engine(max_keys=max(1, len(counts.keys)))
    if keys:
        scratch.charge(keys, units, ages_ns, now, limits=counts.limits, which=which)
    return scratch.snapshot([*dict.fromkeys(keys)], now)


def add_logs(log: FallbackLog, counts: Snapshot, rows: Sequence[Sequence[int]], now: int) -> None:
    """Add another member's fallback log to a log. The other log has one row for each key of
    `counts`."""
    for at, (key, row) in enumerate(zip(counts.keys, rows, strict=False)):
        units, numbers = _split_row(row)
        slots, refunded = _split_refunds(numbers)
        if slots and _has_slots(counts, at):
            held = _ages_and_units(counts, at)
            for slot in slots:
                if log.add_slot(key, slot) and slot in held:
                    _take_units(units, *held[slot])
            units, _ = _split_row(units)
        period_ns = counts.limits[counts.which[at]].period_ns
        log.restore(key, units, period_ns, now)
        if not counts.states[at]:  # The limit of an unused key is unknown.
            period_ns = unknown_period_ns(max(refunded[::2], default=0))
        log.restore_refunded(key, refunded, period_ns, now)


def unknown_period_ns(age_ns: int) -> int:
    """Return a period in which to keep a refund of this age, if the limit of its key is unknown."""
    return max(_LEAST_PERIOD_NS, _AGES_KEPT * age_ns)


def refunded_units(row: Sequence[int]) -> int:
    """Return the refunded units in a row of a fallback log."""
    return sum(_split_refunds(_split_row(row)[1])[1][1::2])


def without_refunds(
    keys: Sequence[bytes], rows: Sequence[Sequence[int]], reset: Container[bytes]
) -> Sequence[Sequence[int]]:
    """Return the rows of a fallback log without the refunds of the `reset` keys."""
    left: list[Sequence[int]] = []
    for key, row in zip(keys, rows, strict=True):
        units, numbers = _split_row(row)
        slots, _ = _split_refunds(numbers)
        pairs = [number for slot in slots for number in (slot, 0)]
        left.append([*units, *pairs] if key in reset else row)
    return left


class LiftedUnits:
    """Units that refunds and resets have removed from the fallback log of one member.

    Another member may have charged the same checks. Then the refund or the reset applies to its
    charge, too.
    """

    def __init__(self, decided: Sequence[DecidedCheck], ages_ns: Mapping[CheckId, int]) -> None:
        """`decided` are the checks, refunds and resets of the member with the log, the newest one
        last. `ages_ns` has the ages in ns of the charges at the other member at the same instant.
        """
        self._ages_ns = ages_ns
        self._units: dict[bytes, float] = {}
        self._reset: dict[CheckId, DecidedCheck] = {}
        """Checks before the last reset of their key, with this reset."""
        before: dict[bytes, list[CheckId]] = {}
        for check in decided:
            if check.is_refund or check.is_reset:
                removed = inf if check.is_reset else check.cost
                self._units[check.key] = self._units.get(check.key, 0) + removed
            if check.is_reset:
                self._reset |= dict.fromkeys(before.get(check.key, ()), check)
            else:
                before.setdefault(check.key, []).append(check.id)

    def in_log(self, check: DecidedCheck) -> bool:
        """Return whether the log can have units of a check: its key was not reset later."""
        return check.id not in self._reset

    def take(self, check: DecidedCheck, units: int) -> int:
        """Return how many units must be removed from the other member's charge of a check, and
        count them as removed. The log lacks `units` of the check.

        The result is 0 if a reset has removed that charge already, because it was replicated.
        """
        reset = self._reset.get(check.id)
        if reset is not None and reset.replica_age_ns:
            replicated_ns = reset.age_ns + reset.replica_age_ns
            if self._ages_ns.get(check.id, 0) > replicated_ns:
                return 0
        lost = int(min(units, self._units.get(check.key, 0)))
        if lost:
            self._units[check.key] -= lost
        return lost


def without_checks(
    keys: Sequence[bytes],
    rows: Sequence[Sequence[int]],
    checks: Sequence[DecidedCheck],
    lifted: LiftedUnits,
) -> tuple[list[list[int]], list[DecidedCheck]]:
    """Subtract the units of checks that both members admitted from the fallback log of the other
    member.

    Also returns checks that the member has refunded, so that the log lacks their units. The cost of
    such a check is the number of units that must be removed from the other charge of the check.
    """
    return _subtract_checks(keys, rows, checks, {}, lifted)


def without_logged_checks(
    counts: Snapshot,
    rows: Sequence[Sequence[int]],
    checks: Sequence[DecidedCheck],
    lifted: LiftedUnits,
) -> tuple[list[list[int]], list[DecidedCheck]]:
    """Subtract checks as `without_checks`, but leave units of other times in the log.

    `counts` are the counters of the other member. If the log has units of other times, the other
    member has refunded a check that the log lacks.
    """
    pairs = zip(counts.keys, counts.which, strict=True)
    periods_ns = {key: counts.limits[which].period_ns for key, which in pairs}
    near_ns = {
        check.key: periods_ns[check.key] // _NEAR_DIVISOR + _NEAR_NS
        for check in checks
        if check.key in periods_ns
    }
    return _subtract_checks(counts.keys, rows, checks, near_ns, lifted)


def _subtract_checks(
    keys: Sequence[bytes],
    rows: Sequence[Sequence[int]],
    checks: Sequence[DecidedCheck],
    near_ns: Mapping[bytes, int],
    lifted: LiftedUnits,
) -> tuple[list[list[int]], list[DecidedCheck]]:
    """Subtract the units of checks from a fallback log; also return the checks that it lacks.

    `near_ns` has the largest difference between the ages of a check and of its units, by key. All
    units of other keys are near. The cost of a returned check is the number of units that are not
    near and were left, or that the log lacks, see `LiftedUnits`.
    """
    by_key = {key: _split_row(row) for key, row in zip(keys, rows, strict=True)}
    unlogged: list[DecidedCheck] = []
    for check in checks:
        units, slots = by_key.get(check.key, ([], []))
        slot = check.row[SLOT_ID]
        if slot and slot in slots:
            slots.remove(slot)
        most_ns = inf if slot else near_ns.get(check.key, inf)  # A renewed slot has a new age.
        far, missing = 0, check.cost
        if lifted.in_log(check):
            far, missing = _take_units(units, check.age_ns, check.cost, most_ns)
        lost = lifted.take(check, missing)
        if far + lost:
            unlogged.append(replace(check, cost=far + lost))
    left = [
        _split_row(units)[0] + [number for slot in slots for number in (slot, 0)]
        for units, slots in map(by_key.__getitem__, keys)
    ]
    return left, unlogged


def without_row(row: Sequence[int], other: Sequence[int]) -> list[int]:
    """Subtract the units of another row that alternates ages and units, by the nearest ages."""
    left = list(row)
    for age_ns, units in zip(other[::2], other[1::2], strict=False):  # A peer may send anything.
        _take_units(left, age_ns, units)
    return [number for at in range(0, len(left), 2) if left[at + 1] for number in left[at : at + 2]]


def without_units(
    keys: Sequence[bytes], rows: Sequence[Sequence[int]], units: Mapping[bytes, int]
) -> Sequence[Sequence[int]]:
    """Subtract units that the receiver already has from another member's fallback log, the oldest
    ones first. `units` has their number by key."""
    if units.keys().isdisjoint(keys):
        return rows
    rest: list[list[int]] = []
    for key, row in zip(keys, rows, strict=True):
        left, slots = _split_row(row)
        _take_units(left, max(left[::2], default=0), units.get(key, 0))
        rest.append(_split_row(left)[0] + [number for slot in slots for number in (slot, 0)])
    return rest


def _has_slots(counts: Snapshot, at: int) -> bool:
    """Return whether a counter may have slots: it belongs to a concurrency limit, or its key is
    unused."""
    limit = counts.limits[counts.which[at]]
    return limit.algorithm is Algorithm.CONCURRENCY or not counts.states[at]


def _split_row(row: Sequence[int]) -> tuple[list[int], list[int]]:
    """Split a row of a fallback log into its pairs with units, and the numbers of the others: its
    changed slots, and its refunds."""
    pairs = list(zip(row[::2], row[1::2], strict=True))
    units = [number for pair in pairs if pair[1] for number in pair]
    return units, [slot for slot, count in pairs if not count]


def _split_refunds(numbers: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Split the numbers of a row into its changed slots, and the ages and units of its refunds."""
    end = numbers.index(_REFUNDED) if _REFUNDED in numbers else len(numbers)
    return numbers[:end], numbers[end + 1 :]


def _ages_and_units(counts: Snapshot, at: int) -> dict[int, tuple[int, int]]:
    """Return the age in ns and the units of each slot of a key, by slot number."""
    state, period_ns = counts.states[at], counts.limits[counts.which[at]].period_ns
    triples = zip(state[::3], state[1::3], state[2::3], strict=False)  # A peer may send anything.
    return {slot: (max(0, period_ns - left), units) for slot, left, units in triples}


def _take_units(row: list[int], age_ns: int, units: int, near_ns: float = inf) -> tuple[int, int]:
    """Subtract units from a row of a fallback log, starting with the pair whose age is nearest.

    Pairs whose ages differ by more than `near_ns` stay as they are. Returns the units that would
    have come from them, and the units that the row lacks.
    """
    far = 0
    # The part of the period that a check fell into is the oldest that is not older than the check.
    for at in sorted(range(0, len(row), 2), key=lambda at: abs(row[at] - age_ns)):
        taken = min(units, row[at + 1])
        if abs(row[at] - age_ns) > near_ns:
            far += taken
        else:
            row[at + 1] -= taken
        units -= taken
        if not units:
            break
    return far, units
