"""Log of the units and slots that this node admitted in place of an unreachable owner, which
charges them later, and of the owner's units that this node refunded.

Units have a time, in parts of the period. Slots of concurrency limits have numbers instead: the log
has the numbers of the slots that changed, and the engine has the slots. `ownership` decides when
the log is used, and `log_rows` how it is transferred.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from ringfence.limiter.serialization import fitting

__all__ = ["FEWEST_KEYS", "FallbackLog"]

_Units: TypeAlias = dict[bytes, tuple[int, dict[int, int]]]
"""Per key its period in ns, and units by number of the part of the period."""

_PARTS = 128
"""Parts of a period. They start where windows start, so no unit changes its window."""
_MAX_SLOTS = 4000
"""Most slots of one key. A transferred row has up to four numbers for each of them."""
FEWEST_KEYS = 8
"""Number of keys of a shard below which no key is forgotten."""


class FallbackLog:
    """Units of one shard by key and by part of the key's period. It covers at most one period."""

    def __init__(self) -> None:
        self._units: _Units = {}
        self._refunded: _Units = {}
        """Refunded units of the owner's counters, which are not in `_units`."""
        self._slots: dict[bytes, dict[int, bool]] = {}
        """Changed slots of each key by number, and whether no other member has had the slot."""
        self._prune_at = FEWEST_KEYS
        """Number of keys with which `prune` looks for keys to forget."""

    def add(self, key: bytes, units: int, period_ns: int, now: int) -> None:
        """Add units to the log that were admitted or charged at `now`."""
        _add(self._units, key, units, period_ns, now)

    def take_back(self, key: bytes, units: int, charged_at: int | None = None) -> int:
        """Remove units that were refunded: first those that were charged nearest to an instant, or
        the most recent ones if it is None. Return their number."""
        return _take(self._units, key, units, charged_at)

    def undo_refund(self, key: bytes, units: int, period_ns: int, now: int) -> None:
        """Remove units that were refunded here at `now` and by the owner, so that they are refunded
        once: first from the refunded units of the owner."""
        left = units - _take(self._refunded, key, units, None)
        if left:
            self.add(key, left, period_ns, now)

    def add_refunded(self, key: bytes, units: int, period_ns: int, now: int) -> None:
        """Add refunded units that the owner still counts. `now` is the instant of their charge, or
        of the refund if the charge is unknown."""
        _add(self._refunded, key, units, period_ns, now)

    def refunded(self, key: bytes, now: int) -> list[int]:
        """Return the refunded units of a key: alternating ages in ns, at least 1, and units."""
        period_ns, _ = self._refunded.get(key, (1, {}))
        row = iter(_row(self._refunded, key, now))
        return [
            number
            for age_ns, units in zip(row, row, strict=True)
            if age_ns <= period_ns
            for number in (max(1, age_ns), units)
        ]

    def forget_refunded(self, key: bytes) -> None:
        """Remove all refunds of a key, because the owner has reset its counter itself."""
        self._refunded.pop(key, None)

    def grant(self, key: bytes, slot: int, units: int, period_ns: int, now: int) -> None:
        """Add a slot of a concurrency limit that was granted at `now`. If there are too many slots,
        add only its units."""
        if not self._put(key, slot, is_new=True):
            self.add(key, units, period_ns, now)

    def release(self, key: bytes, slot: int, units: int) -> None:
        """Record that a slot was released; a slot that no other member knows is removed from the
        log."""
        if self._slots.get(key, {}).get(slot):
            self.remove_slots(key, [slot])
        elif not self._put(key, slot, is_new=False):
            self.take_back(key, units)

    def add_slot(self, key: bytes, slot: int) -> bool:
        """Add a changed concurrency slot that other members know; return False if there are too
        many slots."""
        return self._put(key, slot, is_new=False)

    def _put(self, key: bytes, slot: int, *, is_new: bool) -> bool:
        slots = self._slots.setdefault(key, {})
        if slot not in slots and len(slots) >= _MAX_SLOTS:
            return False
        slots.setdefault(slot, is_new)
        return True

    def remove_slots(self, key: bytes, slots: Iterable[int]) -> None:
        """Remove the concurrency slots of a key with the given numbers, if they are in the log."""
        known = self._slots.get(key)
        if known is not None:
            for slot in slots:
                known.pop(slot, None)
            if not known:
                del self._slots[key]

    def slots(self, key: bytes) -> Collection[int]:
        """Return the numbers of the changed concurrency slots of a key.

        A slot that is not in the counters of the key any more was released or has expired.
        """
        return self._slots.get(key, ())

    @property
    def keys(self) -> list[bytes]:
        """Return the keys for which the log holds charged units or changed concurrency slots."""
        units = [key for key, (_, parts) in self._units.items() if parts]
        return [*dict.fromkeys([*units, *self.unused_keys])]

    @property
    def unused_keys(self) -> list[bytes]:
        """Return the keys in the log that may have no counter: they have changed slots of
        concurrency limits, or refunded units."""
        return [*dict.fromkeys([*self._slots, *self._refunded])]

    def subtract(self, other: "FallbackLog") -> None:
        """Remove the slots and units of another log, in each part of the period separately."""
        for key, slots in other._slots.items():
            self.remove_slots(key, slots)
        for mine, others in ((self._units, other._units), (self._refunded, other._refunded)):
            for key in [key for key in others if key in mine]:
                (known_ns, parts), (period_ns, theirs) = mine[key], others[key]
                longest_ns = max(known_ns, period_ns)
                parts = _in_longer_parts(parts, known_ns, longest_ns)
                theirs = _in_longer_parts(theirs, period_ns, longest_ns)
                mine[key] = longest_ns, parts
                for number in sorted(theirs.keys() & parts.keys()):
                    parts[number] -= min(parts[number], theirs[number])
                    if not parts[number]:
                        del parts[number]

    def units_of(self, key: bytes) -> int:
        """Return the number of logged units of a key."""
        return sum(self._units.get(key, (0, {}))[1].values())

    def without_oldest(self, units: Mapping[bytes, int]) -> "FallbackLog":
        """Return a copy of this log without the given numbers of units, the oldest units first."""
        left = FallbackLog()
        left._slots = {key: dict(slots) for key, slots in self._slots.items()}
        for key, (period_ns, parts) in self._units.items():
            rest, excess = dict[int, int](), units.get(key, 0)
            for number in sorted(parts):
                struck = min(excess, parts[number])
                excess -= struck
                if struck < parts[number]:
                    rest[number] = parts[number] - struck
            left._units[key] = period_ns, rest
        return left

    def prune(self, has_counter: Callable[[bytes], bool], now: int) -> None:
        """Forget the units of keys that have no counter any more, and refunds older than a period,
        when there are twice as many keys as after the last time.

        The units have expired, or were evicted. An owner may not return for days, and meanwhile the
        log may get any number of keys. Slots that another member has are kept, because it may have
        to release them.
        """
        if self._size >= self._prune_at:
            self._units = {key: row for key, row in self._units.items() if has_counter(key)}
            self._refunded = {k: row for k, row in self._refunded.items() if self.refunded(k, now)}
            for key in [key for key in self._slots if not has_counter(key)]:
                self.remove_slots(key, [s for s, is_new in self._slots[key].items() if is_new])
            self._prune_at = max(FEWEST_KEYS, 2 * self._size)

    @property
    def _size(self) -> int:
        return len(self._units) + len(self._refunded) + len(self._slots)

    def forget(self, key: bytes) -> None:
        """Remove all units and slots of a key whose counter was reset. Refunds stay, because the
        owner still counts their units."""
        self._units.pop(key, None)
        self._slots.pop(key, None)

    def restore(self, key: bytes, row: Sequence[int], period_ns: int, now: int) -> None:
        """Add the ages and units of one key, a row of a fallback log that another node sent."""
        for age_ns, units in zip(row[::2], row[1::2], strict=True):
            self.add(key, units, period_ns, now - age_ns)

    def restore_refunded(self, key: bytes, row: Sequence[int], period_ns: int, now: int) -> None:
        """Add the ages and refunded units of one key, see `refunded`."""
        for age_ns, units in zip(row[::2], row[1::2], strict=False):  # A peer may send anything.
            self.add_refunded(key, units, period_ns, now - age_ns)

    def row(self, key: bytes, now: int) -> list[int]:
        """Return the logged units of a key: alternating ages in ns and units, oldest first; may be
        empty."""
        return _row(self._units, key, now)


def _add(rows: _Units, key: bytes, units: int, period_ns: int, now: int) -> None:
    known_ns, parts = rows.get(key, (period_ns, {}))
    # It is longer when the rules have changed, or when the period of an unused key was unknown.
    longest_ns = max(period_ns, known_ns)
    parts = _in_longer_parts(parts, known_ns, longest_ns)
    rows[key] = longest_ns, parts
    number = now * _PARTS // longest_ns
    _add_to_part(parts, number, units)
    if len(parts) > _PARTS + 1:
        for old in [part for part in parts if part < number - _PARTS]:
            del parts[old]


def _in_longer_parts(parts: dict[int, int], known_ns: int, period_ns: int) -> dict[int, int]:
    """Return units by number of the part of a period that may be longer than the known one."""
    if period_ns == known_ns:
        return parts
    longer: dict[int, int] = {}
    for part in sorted(parts):
        _add_to_part(longer, _end_of(part, known_ns) * _PARTS // period_ns, parts[part])
    return longer


def _add_to_part(parts: dict[int, int], number: int, units: int) -> None:
    before = parts.get(number, 0)
    parts[number] = before + fitting(units, before)


def _take(rows: _Units, key: bytes, units: int, at: int | None) -> int:
    """Remove units of a key, those nearest to the instant `at` first, or the most recent ones if it
    is None; return their number."""
    period_ns, parts = rows.get(key, (1, {}))
    nearest = max(parts, default=0) if at is None else at * _PARTS // period_ns
    left = units
    for number in sorted(parts, key=lambda number: abs(number - nearest)):
        struck = min(left, parts[number])
        parts[number] -= struck
        left -= struck
        if not parts[number]:
            del parts[number]
    return units - left


def _row(rows: _Units, key: bytes, now: int) -> list[int]:
    period_ns, parts = rows.get(key, (1, {}))
    row: list[int] = []
    for number in sorted(parts):
        # Use the last instant of the part, so that a draining limit is charged late, not early.
        row += (max(0, now - _end_of(number, period_ns)), parts[number])
    return row


def _end_of(part: int, period_ns: int) -> int:
    """Return the last instant of a part of the period."""
    return -(-(part + 1) * period_ns // _PARTS) - 1
