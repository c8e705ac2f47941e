"""Token bucket and leaky bucket: the generic cell rate algorithm, one timestamp per key.

Both buckets use the same arithmetic. The leaky bucket as a queue also returns how long an admitted
check must wait. Source: ITU-T I.371, annex A (virtual scheduling).
"""

from collections.abc import Sequence
from math import gcd
from typing import Final

from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import LONGEST_NS
from ringfence.limiter.reference.counter import (
    ALLOWED,
    DENIED,
    NEVER,
    OVER_SOFT,
    Counter,
    Scheme,
    Verdict,
)
from ringfence.limiter.serialization import MAX_UNITS, BadState, checked, fitting, units_in

__all__ = ["Bucket", "BucketScheme"]


class BucketScheme(Scheme):
    """Values derived from the limit of a bucket, which drains one unit per emission interval.

    The interval is the fraction `unit / ticks_per_ns` of a nanosecond, so time is counted in ticks
    of `1 / ticks_per_ns` ns. Then a unit is a whole number of ticks, and nothing is rounded for any
    amount and period.
    """

    __slots__ = ("capacity", "hard_capacity", "is_queue", "ticks_per_ns", "unit")

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        units = max(
            limit.amount, 1
        )  # Amount 0: the ceiling denies everything, so the interval does not matter.
        common = gcd(limit.period_ns, units)
        self.unit: Final = limit.period_ns // common
        self.ticks_per_ns: Final = units // common
        self.hard_capacity: Final = self.hard * self.unit
        self.capacity: Final = self.ceiling * self.unit
        self.is_queue: Final = limit.queue

    def open(self, now: int, used: int = 0) -> "Bucket":
        """Create a bucket that contains `used` units."""
        return Bucket(self, now * self.ticks_per_ns + used * self.unit)

    def restore(self, state: Sequence[int], now: int) -> "Bucket":
        """Restore a bucket from its level: whole units and additional ticks."""
        return Bucket(self, now * self.ticks_per_ns + self.level_of(checked(state, 2)))

    def level_of(self, state: Sequence[int]) -> int:
        """Return the level of a serialized bucket (`Bucket.state`) in ticks. Raises `BadState`."""
        units, ticks = state
        units_in([units])
        if ticks >= self.unit:
            raise BadState(f"{ticks} ticks, which are more than a unit")
        return units * self.unit + ticks

    def adopt(self, counter: Counter, now: int) -> Counter:
        """Convert a counter of another limit to a bucket with an equal level, rounded up by less
        than a tick."""
        return Bucket(self, self.tat_after(counter.own_part(now), now))

    def tat_after(self, counter: Counter, now: int) -> int:
        """Return the theoretical arrival time (TAT) of a bucket that contains the units in use
        of `counter`."""
        if isinstance(counter, Bucket):
            level = -(-counter.level(now) * self.unit // counter.scheme.unit)
        else:
            level = min(counter.used(now), MAX_UNITS) * self.unit
        return now * self.ticks_per_ns + level


class Bucket(Counter):
    """Bucket of one key, stored as the theoretical arrival time (TAT) in ticks at which it will be
    empty."""

    __slots__ = ("scheme", "tat")

    def __init__(self, scheme: BucketScheme, tat: int) -> None:
        self.scheme: BucketScheme = scheme
        self.tat = tat

    def level(self, now: int) -> int:
        """Return the level of the bucket, measured as the ticks until it is empty."""
        return max(self.tat - now * self.scheme.ticks_per_ns, 0)

    def check(self, cost: int, now: int) -> Verdict:
        """Add `cost` units if the bucket has room for them."""
        scheme = self.scheme
        ticks_per_ns = scheme.ticks_per_ns
        at = now * ticks_per_ns
        level = self.tat - at
        if level < 0:  # noqa: PLR1730 - the hot path: max() costs as much as the arithmetic
            level = 0
        wanted = cost or 1
        after = level + wanted * scheme.unit
        capacity = scheme.capacity
        if after > capacity:
            code = NEVER if wanted > scheme.ceiling else DENIED
            # The level can exceed the capacity after a change to a smaller limit.
            retry = 0 if code == NEVER else min(-((capacity - after) // ticks_per_ns), LONGEST_NS)
            remaining = (capacity - level) // scheme.unit if level < capacity else 0
            return code, remaining, retry, min(-(-level // ticks_per_ns), LONGEST_NS), 0, 0
        delay = 0
        if cost:
            self.tat = at + after
            delay = -(-level // ticks_per_ns) if scheme.is_queue else 0
            level = after
        return (
            ALLOWED if level <= scheme.hard_capacity else OVER_SOFT,
            (capacity - level) // scheme.unit,
            0,
            -(-level // ticks_per_ns),
            delay,
            0,
        )

    def refund(self, cost: int, now: int, age_ns: int, slot_id: int) -> None:
        """Refund the remaining units of a charge that may have drained for `age_ns`.

        Drained units are not refunded: if the bucket was idle since the charge, a full refund
        would remove units of other charges.
        """
        scheme = self.scheme
        at = now * scheme.ticks_per_ns
        left = cost * scheme.unit - age_ns * scheme.ticks_per_ns
        if left > 0 and self.tat > at:
            self.tat = max(self.tat - left, at)

    def state(self, now: int) -> list[int]:
        """Return the level as whole units and ticks; ticks alone could exceed 64 bits."""
        return list(divmod(self.level(now), self.scheme.unit))

    def charge(self, units: int, now: int, age_ns: int) -> None:
        """Add units that were spent `age_ns` ago, with the effect of a check at that time."""
        scheme = self.scheme
        poured = max(self.tat, (now - age_ns) * scheme.ticks_per_ns)
        self.tat = poured + fitting(units, self.used(now)) * scheme.unit

    def used(self, now: int) -> int:
        """Return the units in the bucket, rounded up."""
        return -(-self.level(now) // self.scheme.unit)
