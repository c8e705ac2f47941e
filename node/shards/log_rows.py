"""Rows of a fallback log in a transfer: numbers in pairs, one row for each key.

A pair is an age in ns and units. A changed slot of a concurrency limit adds two pairs: its age and
units if it is held, and its number with 0 units. The counters in the same transfer have the slots
that are held; a changed slot that they lack was released. Older nodes write and read only ages and
units: they ignore pairs without units, and units without a slot are charged.
"""

from collections.abc import Mapping, Sequence

from node.shards.fallback_log import FallbackLog
from ringfence.limiter import Algorithm, Snapshot
from ringfence.wire import SLOT_ID, DecidedCheck

__all__ = ["add_logs", "log_rows", "without_checks", "without_row", "without_units"]


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
        rows.append(row)
    return rows


def add_logs(log: FallbackLog, counts: Snapshot, rows: Sequence[Sequence[int]], now: int) -> None:
    """Add another member's fallback log to a log. The other log has one row for each key of
    `counts`."""
    for at, (key, row) in enumerate(zip(counts.keys, rows, strict=False)):
        units, slots = _split_row(row)
        if slots and _has_slots(counts, at):
            held = _ages_and_units(counts, at)
            for slot in slots:
                if log.add_slot(key, slot) and slot in held:
                    _take_units(units, *held[slot])
            units, _ = _split_row(units)
        log.restore(key, units, counts.limits[counts.which[at]].period_ns, now)


def without_checks(
    keys: Sequence[bytes], rows: Sequence[Sequence[int]], checks: Sequence[DecidedCheck]
) -> list[list[int]]:
    """Subtract the units of checks that both members admitted from the fallback log of the other
    member."""
    by_key = {key: _split_row(row) for key, row in zip(keys, rows, strict=True)}
    for check in checks:
        units, slots = by_key.get(check.key, ([], []))
        if check.row[SLOT_ID] in slots:
            slots.remove(check.row[SLOT_ID])
        _take_units(units, check.age_ns, check.cost)
    return [
        _split_row(units)[0] + [number for slot in slots for number in (slot, 0)]
        for units, slots in map(by_key.__getitem__, keys)
    ]


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
    """Split a row of a fallback log into its pairs with units, and the numbers of its changed
    slots."""
    pairs = list(zip(row[::2], row[1::2], strict=True))
    units = [number for pair in pairs if pair[1] for number in pair]
    return units, [slot for slot, count in pairs if not count]


def _ages_and_units(counts: Snapshot, at: int) -> dict[int, tuple[int, int]]:
    """Return the age in ns and the units of each slot of a key, by slot number."""
    state, period_ns = counts.states[at], counts.limits[counts.which[at]].period_ns
    triples = zip(state[::3], state[1::3], state[2::3], strict=False)  # A peer may send anything.
    return {slot: (max(0, period_ns - left), units) for slot, left, units in triples}


def _take_units(row: list[int], age_ns: int, units: int) -> None:
    """Subtract units from a row of a fallback log, starting with the pair whose age is nearest."""
    # The part of the period that a check fell into is the oldest that is not older than the check.
    for at in sorted(range(0, len(row), 2), key=lambda at: abs(row[at] - age_ns)):
        taken = min(units, row[at + 1])
        row[at + 1] -= taken
        units -= taken
        if not units:
            break
