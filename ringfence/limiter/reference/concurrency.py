"""Concurrency: units in flight, each under a lease that its holder releases or time ends.

A lease lives for the limit's period, so a holder that is lost frees its units by itself.
"""

from collections import OrderedDict
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

__all__ = ["Concurrency", "ConcurrencyScheme"]


class ConcurrencyScheme(Scheme):
    """How long a lease lives, and how many units may be in flight."""

    __slots__ = ("lease_ids", "time_to_live_ns")

    def __init__(self, limit: Limit, lease_ids: LeaseIds) -> None:
        super().__init__(limit)
        self.time_to_live_ns: Final = limit.period_ns
        self.lease_ids: Final = lease_ids

    def open(self, now: int, used: int = 0) -> "Concurrency":
        """Start with `used` units under a lease that nobody holds: only time ends it."""
        counter = Concurrency(self)
        if used:
            counter.grant(used, now)
        return counter

    def adopt(self, counter: Counter, now: int) -> Counter:
        """Keep the leases, each as long as it was granted for, so that holders can release them."""
        if isinstance(counter, Concurrency):
            return counter.copy(self)
        return super().adopt(counter, now)


class Concurrency(Counter):
    """One key's leases by id, in order of their end: (end, units)."""

    __slots__ = ("in_flight", "leases", "scheme")

    def __init__(self, scheme: ConcurrencyScheme) -> None:
        self.scheme: ConcurrencyScheme = scheme
        self.leases: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self.in_flight = 0

    def copy(self, scheme: ConcurrencyScheme) -> "Concurrency":
        """Repeat the leases under another scheme."""
        counter = Concurrency(scheme)
        counter.leases, counter.in_flight = self.leases.copy(), self.in_flight
        return counter

    def check(self, cost: int, now: int) -> Verdict:
        """Grant a lease over `cost` units if they fit."""
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
        """Put `units` in flight under a new lease; return its id."""
        lease = self.scheme.lease_ids.take()
        ends = max(now + self.scheme.time_to_live_ns, self._last_end())
        self.leases[lease] = (ends, units)
        self.in_flight += units
        return lease

    def refund(self, cost: int, now: int, age_ns: int, lease: int) -> None:
        """Release the lease, whole; without an id, the `cost` units whose time ends first.

        An unknown lease has ended already, and so may one that is as old as leases live: then
        nothing is released.
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

    def used(self, now: int) -> int:
        """Units in flight."""
        self._expire(now)
        return self.in_flight

    def _expire(self, now: int) -> None:
        while self.leases:
            lease, (ends, units) = next(iter(self.leases.items()))
            if ends > now:
                return
            del self.leases[lease]
            self.in_flight -= units

    def _wait(self, excess: int, now: int) -> int:
        """Find the time until leases over `excess` units, all of them in flight, have ended."""
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
