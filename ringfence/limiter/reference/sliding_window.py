"""Sliding window of several counters; the oldest counter is weighted by its overlap with the
window.

With one slot this is the two-counter estimate that Cloudflare described in 2017. With more slots
the error is at most the hits of one slot. Slots are aligned to the Unix epoch, so all nodes use the
same slot numbers.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

from ringfence.limiter.limit import Limit
from ringfence.limiter.reference.counter import (
    ALLOWED,
    DENIED,
    NEVER,
    OVER_SOFT,
    Counter,
    Scheme,
    Verdict,
)
from ringfence.limiter.serialization import BadState, checked, fitting, units_in

__all__ = ["SlidingWindow", "SlidingWindowScheme"]

_POINTER_BYTES = 8
_COUNT_BYTES = _POINTER_BYTES + 32
_LARGEST_CACHED = 256
"""Maximum integer for which Python shares one object."""
_Counts: TypeAlias = tuple[int, ...]
"""Hits per slot, the current slot first, the weighted one last: one more than there are slots."""


class SlidingWindowScheme(Scheme):
    """Values derived from the limit of a sliding window, which is divided into slots."""

    __slots__ = ("blank", "extra_bytes", "slot_ns", "slots")

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.slots: Final = limit.slots
        self.slot_ns: Final = limit.period_ns // limit.slots
        self.blank: Final[_Counts] = (0,) * (limit.slots + 1)
        per_slot = _POINTER_BYTES if self.ceiling <= _LARGEST_CACHED else _COUNT_BYTES
        self.extra_bytes: Final = per_slot * (limit.slots - 1)

    def open(self, now: int, used: int = 0) -> "SlidingWindow":
        """Create a counter with `used` units in the slot that contains `now`."""
        return SlidingWindow(self, now // self.slot_ns, (used, *self.blank[1:]))

    def restore(self, state: Sequence[int], now: int) -> "SlidingWindow":
        """Restore a counter from the number of its latest slot and the counts, newest first."""
        slot, *counts = checked(state, self.slots + 2)
        if slot > now // self.slot_ns + 1:
            raise BadState(f"slot {slot} has not begun")
        return SlidingWindow(self, slot, tuple(units_in(counts)))

    def adopt(self, counter: Counter, now: int) -> Counter:
        """Convert a counter of another limit: keep its counts if both windows have the same
        slots."""
        counter = counter.own_part(now)
        if isinstance(counter, SlidingWindow) and counter.scheme.alignment == self.alignment:
            return SlidingWindow(self, counter.slot, counter.counts)
        return super().adopt(counter, now)

    @property
    def alignment(self) -> tuple[object, ...]:
        """Value that is equal for two limits if and only if their windows have the same slots."""
        return self.slot_ns, self.slots


class SlidingWindow(Counter):
    """Hits of one key by slot (part) of the sliding window, up to the latest slot that has a
    charge."""

    __slots__ = ("counts", "scheme", "slot")

    def __init__(self, scheme: SlidingWindowScheme, slot: int, counts: _Counts) -> None:
        self.scheme: SlidingWindowScheme = scheme
        self.slot = slot
        self.counts = counts

    def check(self, cost: int, now: int) -> Verdict:
        """Count `cost` in the slot of `now`, if the estimated hits in the window stay within the
        limit."""
        scheme = self.scheme
        slot_ns = scheme.slot_ns
        ceiling = scheme.ceiling
        slot, counts = self.slot, self.counts
        if now // slot_ns > slot:
            slot, counts = self._rolled(now)
        # Inlined `_estimate`: the hot path of the default algorithm.
        oldest = counts[-1]
        used = sum(counts)
        if oldest and now > slot * slot_ns:
            used += oldest * ((slot + 1) * slot_ns - now) // slot_ns - oldest
        wanted = cost or 1
        if used + wanted > ceiling:
            return (
                NEVER if wanted > ceiling else DENIED,
                ceiling - used if used < ceiling else 0,
                0 if wanted > ceiling else _wait(counts, slot, slot_ns, now, ceiling - wanted),
                _reset_after(counts, slot, slot_ns, now) if used else 0,
                0,
                0,
            )
        if cost:
            used += cost
            current = counts[0] + cost
            counts = (current, oldest) if scheme.slots == 1 else (current, *counts[1:])
            self.slot = slot
            self.counts = counts
        return (
            ALLOWED if used <= scheme.hard else OVER_SOFT,
            ceiling - used,
            0,
            _reset_after(counts, slot, slot_ns, now) if used else 0,
            0,
            0,
        )

    def refund(self, cost: int, now: int, age_ns: int, slot_id: int) -> None:
        """Refund units from the slot that contains `now - age_ns`, but not from newer slots."""
        slot, counts = self._rolled(now)
        slot_ns = self.scheme.slot_ns
        index = slot - (max(now, slot * slot_ns) - age_ns) // slot_ns
        if index < len(counts):
            left = max(counts[index] - cost, 0)
            self.slot, self.counts = slot, (*counts[:index], left, *counts[index + 1 :])

    def state(self, now: int) -> list[int]:
        """Return the number of the latest slot and the counts, newest first."""
        return [self.slot, *self.counts]

    def charge(self, units: int, now: int, age_ns: int) -> None:
        """Count units in the slot in which they were spent, if that slot is still in the window."""
        slot, counts = self._rolled(now)
        slot_ns = self.scheme.slot_ns
        index = slot - (max(now, slot * slot_ns) - age_ns) // slot_ns
        if index < len(counts):
            count = counts[index] + fitting(units, sum(counts))
            counts = (*counts[:index], count, *counts[index + 1 :])
        self.slot, self.counts = slot, counts

    def used(self, now: int) -> int:
        """Return the estimated units in the window that ends at `now`."""
        slot, counts = self._rolled(now)
        return _estimate(counts, slot, self.scheme.slot_ns, now)

    @property
    def extra_bytes(self) -> int:
        """Bytes of the counts of all window slots except the first."""
        return self.scheme.extra_bytes

    def rolled(self, now: int) -> "SlidingWindow":
        """Return a copy of the counter in which the latest slot is the slot of `now`."""
        return SlidingWindow(self.scheme, *self._rolled(now))

    def _rolled(self, now: int) -> tuple[int, _Counts]:
        """Return the counts of all window slots, shifted so that the first one belongs to the
        slot of `now`."""
        slot = now // self.scheme.slot_ns
        passed = slot - self.slot
        if passed <= 0:
            return self.slot, self.counts
        return slot, (self.scheme.blank[:passed] + self.counts)[: len(self.counts)]


def _estimate(counts: _Counts, slot: int, slot_ns: int, now: int) -> int:
    """Return the estimated hits in the window: the oldest slot counts by the part inside the
    window, rounded down."""
    overlap = min((slot + 1) * slot_ns - now, slot_ns)  # min(): the clock may have gone back.
    oldest = counts[-1]
    return oldest * overlap // slot_ns + sum(counts) - oldest


def _wait(counts: _Counts, slot: int, slot_ns: int, now: int, room: int) -> int:
    """Return the exact time until the estimated hits in the window fall to `room`.

    Examines one slot after the other. When the counts between the current and the oldest slot fit,
    the weight of the oldest count `n` must fall to `spare`: `n * overlap < (spare + 1) * slot_ns`.
    """
    between = sum(counts)
    for ahead, oldest in enumerate(reversed(counts)):
        between -= oldest
        spare = room - between
        if spare >= oldest:
            return (slot + ahead) * slot_ns - now
        if spare >= 0:
            overlap = ((spare + 1) * slot_ns - 1) // oldest
            if overlap:
                return (slot + ahead + 1) * slot_ns - overlap - now
    return (slot + len(counts)) * slot_ns - now


def _reset_after(counts: _Counts, slot: int, slot_ns: int, now: int) -> int:
    """Return the time until the estimated hits in the window fall to 0."""
    current = counts[0]
    if current:  # The usual case: one step of `_wait`.
        return (slot + len(counts)) * slot_ns - (slot_ns - 1) // current - now
    return _wait(counts, slot, slot_ns, now, 0)
