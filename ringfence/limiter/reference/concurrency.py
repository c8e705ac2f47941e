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
    LeaseIds,
    Scheme,
    Verdict,
)
from ringfence.limiter.serialization import MAX_NUMBERS, BadState, checked, fitting, units_in

__all__ = ["Concurrency", "ConcurrencyScheme"]

_FIELDS = 3
"""Numbers per slot in a state."""
_LEASE_BYTES = 215


class ConcurrencyScheme(Scheme):
    """Values derived from a concurrency limit: time to live of a slot, and maximum units in
    flight."""

    __slots__ = ("lease_ids", "time_to_live_ns")
    grows = True

    def __init__(self, limit: Limit, lease_ids: LeaseIds) -> None:
        super().__init__(limit)
        self.time_to_live_ns: Final = limit.period_ns
        self.lease_ids: Final = lease_ids

    def open(self, now: int, used: int = 0) -> "Concurrency":
        """Create a counter with `used` units in one slot that can only expire."""
        counter = Concurrency(self)
        if used:
            counter.grant(used, now)
        return counter

    def restore(self, state: Sequence[int], now: int) -> "Concurrency":
        """Restore slots from their id, time left and units, in order of expiry."""
        if len(state) % _FIELDS:
            raise BadState(f"{len(state)} numbers are no leases")
        ids, left, units = checked(state)[::3], state[1::3], units_in(state[2::3])
        if len({0, *ids}) <= len(ids) or 0 in units:
            raise BadState("two leases of one name, or one without a name or units")
        if any(later < sooner for sooner, later in pairwise(left)):
            raise BadState("leases out of order")
        counter = Concurrency(self)
        for lease, left_ns, count in zip(ids, left, units, strict=True):
            counter.leases[lease] = (now + left_ns, count)
        counter.in_flight = sum(units)
        return counter

    def adopt(self, counter: Counter, now: int) -> Counter:
        """Convert another counter: its slots keep their expiry, so that holders can release
        them."""
        if isinstance(counter, Concurrency):
            return counter.copy(self)
        return super().adopt(counter, now)


class Concurrency(Counter):
    """Slots of one key by id, in order of expiry: (expiry, units)."""

    __slots__ = ("in_flight", "leases", "scheme")

    def __init__(self, scheme: ConcurrencyScheme) -> None:
        self.scheme: ConcurrencyScheme = scheme
        self.leases: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self.in_flight = 0

    def copy(self, scheme: ConcurrencyScheme) -> "Concurrency":
        """Return a counter with the same slots under another scheme."""
        counter = Concurrency(scheme)
        counter.leases, counter.in_flight = self.leases.copy(), self.in_flight
        return counter

    def check(self, cost: int, now: int) -> Verdict:
        """Grant a slot of `cost` units if they fit."""
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
        lease = self.grant(cost, now) if cost else 0
        return (
            ALLOWED if self.in_flight <= scheme.hard else OVER_SOFT,
            ceiling - self.in_flight,
            0,
            self._reset_after(now),
            0,
            lease,
        )

    def grant(self, units: int, now: int) -> int:
        """Put `units` in flight in a new slot; return the slot's id."""
        lease = self._new_id()
        ends = max(now + self.scheme.time_to_live_ns, self._last_end())
        self.leases[lease] = (ends, units)
        self.in_flight += units
        return lease

    def renew(self, lease: int, now: int) -> Verdict:
        """Extend a slot by a whole period from now; return a denial when it has expired."""
        self._expire(now)
        units = self.leases.get(lease, (0, 0))[1]
        if units:
            ends = max(now + self.scheme.time_to_live_ns, self._last_end())
            self.leases[lease] = (ends, units)
            self.leases.move_to_end(lease)
        code, remaining, _, reset_after, _, _ = self.check(0, now)
        if units:
            code = ALLOWED if self.in_flight <= self.scheme.hard else OVER_SOFT
        return (code if units else DENIED, remaining, 0, reset_after, 0, lease if units else 0)

    def refund(self, cost: int, now: int, age_ns: int, lease: int) -> None:
        """Release the whole slot; without a slot id, release `cost` units, those that expire first.

        Nothing is released for an unknown slot, or for one that may have expired.
        """
        self._expire(now)
        if cost == 0:
            return
        if lease:
            _, units = self.leases.pop(lease, (0, 0))
            self.in_flight -= units
            return
        cost = min(cost, self.in_flight) if age_ns < self.scheme.time_to_live_ns else 0
        self.in_flight -= cost
        while cost:
            oldest, (ends, units) = next(iter(self.leases.items()))
            if units > cost:
                self.leases[oldest] = (ends, units - cost)
                return
            del self.leases[oldest]
            cost -= units

    def state(self, now: int) -> list[int]:
        """Return id, time left and units of each slot, ordered by expiry.

        When there are too many slots for a state, the first to expire are merged into one slot
        that can only expire.
        """
        self._expire(now)
        most = MAX_NUMBERS // _FIELDS
        pooled = len(self.leases) - most + 1 if len(self.leases) > most else 0
        numbers: list[int] = []
        if pooled:
            first = list(islice(self.leases.values(), pooled))
            numbers += (self._new_id(), first[-1][0] - now)
            numbers.append(sum(units for _, units in first))
        for lease, (ends, units) in islice(self.leases.items(), pooled, None):
            numbers += (lease, ends - now, units)
        return numbers

    def charge(self, units: int, now: int, age_ns: int) -> None:
        """Put units in flight in a slot that can only expire."""
        self._expire(now)
        units = fitting(units, self.in_flight)
        ends = now - age_ns + self.scheme.time_to_live_ns
        if ends > now and units:
            self.leases[self._new_id()] = (ends, units)
            self.leases = OrderedDict(sorted(self.leases.items(), key=lambda lease: lease[1][0]))
            self.in_flight += units

    def used(self, now: int) -> int:
        """Return the units in flight."""
        self._expire(now)
        return self.in_flight

    @property
    def extra_bytes(self) -> int:
        """Bytes that all slots of the counter occupy."""
        return _LEASE_BYTES * len(self.leases)

    def _new_id(self) -> int:
        """Return a new slot id that differs from the ids of other nodes."""
        lease = self.scheme.lease_ids.take()
        while lease in self.leases:
            lease = self.scheme.lease_ids.take()
        return lease

    def _expire(self, now: int) -> None:
        while self.leases:
            lease, (ends, units) = next(iter(self.leases.items()))
            if ends > now:
                return
            del self.leases[lease]
            self.in_flight -= units

    def _wait(self, excess: int, now: int) -> int:
        """Return the time until slots with `excess` units in flight have expired."""
        ends = now
        for lease_ends, units in self.leases.values():
            if excess <= 0:
                break
            ends = lease_ends
            excess -= units
        return ends - now

    def _reset_after(self, now: int) -> int:
        return self._last_end() - now if self.leases else 0

    def _last_end(self) -> int:
        return next(reversed(self.leases.values()))[0] if self.leases else 0
