"""Concurrency limit: units in flight, in slots that their holder releases or that expire.

A slot expires after the limit's period, so a holder that crashes does not keep its units.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Final

from ringfence.limiter.limit import Limit
from ringfence.limiter.reference.counter import (
    ALLOWED,
    DENIED,
    NEVER,
    OVER_SOFT,
    Counter,
    Scheme,
    SlotNumbers,
    Verdict,
)
from ringfence.limiter.serialization import MAX_NUMBERS, BadState, checked, fitting, units_in

__all__ = ["Concurrency", "ConcurrencyScheme"]

_FIELDS = 3
"""Numbers per slot in a state."""
_SLOT_BYTES = 215


class ConcurrencyScheme(Scheme):
    """Values derived from a concurrency limit: time to live of a slot, and maximum units in
    flight."""

    __slots__ = ("slot_numbers", "time_to_live_ns")
    grows = True

    def __init__(self, limit: Limit, slot_numbers: SlotNumbers) -> None:
        super().__init__(limit)
        self.time_to_live_ns: Final = limit.period_ns
        self.slot_numbers: Final = slot_numbers

    def open(self, now: int, used: int = 0) -> "Concurrency":
        """Create a counter with `used` units in flight, in one slot without a holder, which only
        expires."""
        counter = Concurrency(self)
        if used:
            counter.grant(used, now)
        return counter

    def restore(self, state: Sequence[int], now: int) -> "Concurrency":
        """Restore a counter from the id, time left and units of each slot, in order of expiry."""
        if len(state) % _FIELDS:
            raise BadState(f"{len(state)} numbers are no slots")
        ids, left, units = checked(state)[::3], state[1::3], units_in(state[2::3])
        if len({0, *ids}) <= len(ids) or 0 in units:
            raise BadState("two slots with one number, or a slot without a number or units")
        if any(later < sooner for sooner, later in pairwise(left)):
            raise BadState("slots out of order")
        counter = Concurrency(self)
        for slot_id, left_ns, count in zip(ids, left, units, strict=True):
            counter.slots[slot_id] = (now + left_ns, count)
        counter.in_flight = sum(units)
        return counter

    def adopt(self, counter: Counter, now: int) -> Counter:
        """Convert a counter of another limit: slots keep their id and expiry, so that holders
        can release them."""
        if isinstance(counter, Concurrency):
            return counter.copy(self)
        return super().adopt(counter, now)


class Concurrency(Counter):
    """Slots of one key under a concurrency limit: (expiry, units) by slot id, in order of
    expiry."""

    __slots__ = ("in_flight", "scheme", "slots")

    def __init__(self, scheme: ConcurrencyScheme) -> None:
        self.scheme: ConcurrencyScheme = scheme
        self.slots: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self.in_flight = 0

    def copy(self, scheme: ConcurrencyScheme) -> "Concurrency":
        """Return a copy of the counter, with all its slots, under another limit."""
        counter = Concurrency(scheme)
        counter.slots, counter.in_flight = self.slots.copy(), self.in_flight
        return counter

    def check(self, cost: int, now: int) -> Verdict:
        """Grant a slot of `cost` units if the limit permits so many units in flight."""
        scheme = self.scheme
        ceiling = scheme.ceiling
        self._expire(now)
        wanted = cost or 1
        in_flight = self.in_flight
        if in_flight + wanted > ceiling:
            return (
                NEVER if wanted > ceiling else DENIED,
                ceiling - in_flight if in_flight < ceiling else 0,
                0 if wanted > ceiling else self._wait(in_flight + wanted - ceiling, now),
                self._reset_after(now),
                0,
                0,
            )
        slot_id = self.grant(cost, now) if cost else 0
        return (
            ALLOWED if self.in_flight <= scheme.hard else OVER_SOFT,
            ceiling - self.in_flight,
            0,
            self._reset_after(now),
            0,
            slot_id,
        )

    def grant(self, units: int, now: int) -> int:
        """Put `units` in flight in a new slot; return the slot's id."""
        slot_id = self._new_id()
        self._hold(slot_id, units, now + self.scheme.time_to_live_ns)
        self.in_flight += units
        return slot_id

    def renew(self, slot_id: int, now: int) -> Verdict:
        """Extend a slot by a whole period from now; return a denial when it has expired."""
        self._expire(now)
        units = self.slots.get(slot_id, (0, 0))[1]
        if units:
            self._hold(slot_id, units, now + self.scheme.time_to_live_ns)
        code, remaining, _, reset_after, _, _ = self.check(0, now)
        if units:
            code = ALLOWED if self.in_flight <= self.scheme.hard else OVER_SOFT
        return (code if units else DENIED, remaining, 0, reset_after, 0, slot_id if units else 0)

    def refund(self, cost: int, now: int, age_ns: int, slot_id: int) -> None:
        """Release the whole slot; without a slot id, release `cost` units, those that expire first.

        Nothing is released for an unknown slot, or for a slot that may have expired.
        """
        self._expire(now)
        if cost == 0:
            return
        if slot_id:
            _, units = self.slots.pop(slot_id, (0, 0))
            self.in_flight -= units
            return
        cost = min(cost, self.in_flight) if age_ns < self.scheme.time_to_live_ns else 0
        self.in_flight -= cost
        while cost:
            oldest, (ends, units) = next(iter(self.slots.items()))
            if units > cost:
                self.slots[oldest] = (ends, units - cost)
                return
            del self.slots[oldest]
            cost -= units

    def state(self, now: int) -> list[int]:
        """Return id, time left and units of each slot, ordered by expiry.

        When there are too many slots for a state, the first to expire are merged into one slot
        without a holder, which only expires.
        """
        self._expire(now)
        most = MAX_NUMBERS // _FIELDS
        pooled = len(self.slots) - most + 1 if len(self.slots) > most else 0
        numbers: list[int] = []
        if pooled:
            first = list(islice(self.slots.values(), pooled))
            numbers += (self._new_id(), first[-1][0] - now)
            numbers.append(sum(units for _, units in first))
        for slot_id, (ends, units) in islice(self.slots.items(), pooled, None):
            numbers += (slot_id, ends - now, units)
        return numbers

    def charge(self, units: int, now: int, age_ns: int) -> None:
        """Count units as in flight, in a slot without a holder, which only expires."""
        self._expire(now)
        units = fitting(units, self.in_flight)
        ends = now - age_ns + self.scheme.time_to_live_ns
        if ends > now and units:
            self._hold(self._new_id(), units, ends)
            self.in_flight += units

    def used(self, now: int) -> int:
        """Return the units in flight."""
        self._expire(now)
        return self.in_flight

    @property
    def extra_bytes(self) -> int:
        """Bytes that all slots of the counter occupy."""
        return _SLOT_BYTES * len(self.slots)

    def _new_id(self) -> int:
        """Return a new slot id that differs from the ids of other nodes."""
        slot_id = self.scheme.slot_numbers.take()
        while slot_id in self.slots:
            slot_id = self.scheme.slot_numbers.take()
        return slot_id

    def _hold(self, slot_id: int, units: int, ends: int) -> None:
        """Store a slot in order of expiry; a shorter time to live can end it before older slots."""
        is_last = ends >= self._last_end()
        self.slots[slot_id] = (ends, units)
        if is_last:
            self.slots.move_to_end(slot_id)
        else:
            self.slots = OrderedDict(sorted(self.slots.items(), key=lambda slot: slot[1][0]))

    def _expire(self, now: int) -> None:
        while self.slots:
            slot_id, (ends, units) = next(iter(self.slots.items()))
            if ends > now:
                return
            del self.slots[slot_id]
            self.in_flight -= units

    def _wait(self, excess: int, now: int) -> int:
        """Return the time until so many slots have expired that `excess` units are no longer in
        flight."""
        ends = now
        for slot_ends, units in self.slots.values():
            if excess <= 0:
                break
            ends = slot_ends
            excess -= units
        return ends - now

    def _reset_after(self, now: int) -> int:
        return self._last_end() - now if self.slots else 0

    def _last_end(self) -> int:
        return next(reversed(self.slots.values()))[0] if self.slots else 0
