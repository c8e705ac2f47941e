"""Sliding window log: the time of every admitted hit, for exact counts.

Memory grows with the hits of a key, up to its limit. Hits at one instant share an entry. Charges
above the limit are exact for `_EXTRA_ENTRIES` more entries. Beyond these, a charge joins the
previous entry when that is at most `1 / _EXTRA_ENTRIES` of the period older.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

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
from ringfence.limiter.serialization import MAX_NUMBERS, BadState, checked, fitting, units_in

__all__ = ["SlidingLog", "SlidingLogScheme"]

_ENTRY_BYTES = 18
_EXTRA_ENTRIES = 1024
_TRIM_AT = 32
"""Maximum expired entries before a log is compacted."""


class SlidingLogScheme(Scheme):
    """Values derived from the limit of a sliding log: the period of a hit, and the maximum
    number of hits."""

    __slots__ = ("period_ns",)
    grows = True

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.period_ns: Final = limit.period_ns

    def open(self, now: int, used: int = 0) -> "SlidingLog":
        """Create a log with `used` hits at the instant `now`."""
        log = SlidingLog(self)
        if used:
            log.record(used, now)
        return log

    def restore(self, state: Sequence[int], now: int) -> "SlidingLog":
        """Restore a log from alternating ages and hits, the oldest first."""
        if len(state) % 2:
            raise BadState(f"{len(state)} numbers are no ages and hits")
        ages, hits = checked(state)[::2], units_in(state[1::2])
        if 0 in hits or any(newer > older for older, newer in pairwise(ages)):
            raise BadState("hits out of order, or an age without any")
        log = SlidingLog(self)
        for age_ns, count in zip(ages, hits, strict=True):
            log.record(count, now - age_ns)
        return log

    def adopt(self, counter: Counter, now: int) -> Counter:
        """Convert a counter of another limit: keep its hits if both limits have the same period."""
        if isinstance(counter, SlidingLog) and counter.scheme.period_ns == self.period_ns:
            return counter.copy(self)
        return super().adopt(counter, now)


class SlidingLog(Counter):
    """Hits of one key in the last period: their times in order, and the number of hits at each
    time.

    Entries before `first` have expired; they are removed together.
    """

    __slots__ = ("counts", "first", "scheme", "stamps", "total")

    def __init__(
        self,
        scheme: SlidingLogScheme,
        stamps: "array[int] | None" = None,
        counts: "array[int] | None" = None,
    ) -> None:
        """Create a log with hits at increasing stamps, whose arrays it then changes, or without
        hits."""
        self.scheme: SlidingLogScheme = scheme
        self.stamps = array("q") if stamps is None else stamps
        self.counts = array("q") if counts is None else counts
        self.first = 0
        self.total = sum(self.counts)

    def copy(self, scheme: SlidingLogScheme) -> "SlidingLog":
        """Return a copy of the log under another limit."""
        return SlidingLog(scheme, self.stamps[self.first :], self.counts[self.first :])

    def check(self, cost: int, now: int) -> Verdict:
        """Record `cost` hits at `now` if the window has room for them."""
        scheme = self.scheme
        ceiling = scheme.ceiling
        self._expire(now)
        used = self.total
        wanted = cost or 1
        if used + wanted > ceiling:
            return (
                NEVER if wanted > ceiling else DENIED,
                ceiling - used if used < ceiling else 0,
                0 if wanted > ceiling else self._wait(used + wanted - ceiling, now),
                self._reset_after(now),
                0,
                0,
            )
        if cost:
            self.record(cost, now)
            used += cost
        return (
            ALLOWED if used <= scheme.hard else OVER_SOFT,
            ceiling - used,
            0,
            self._reset_after(now),
            0,
            0,
        )

    def record(self, hits: int, now: int) -> None:
        """Record hits at `now`, or at the newest recorded time if the clock went back."""
        stamps = self.stamps
        if stamps and now <= stamps[-1]:
            self.counts[-1] += hits
        else:
            stamps.append(now)
            self.counts.append(hits)
        self.total += hits

    def refund(self, cost: int, now: int, age_ns: int, slot_id: int) -> None:
        """Remove the oldest `cost` hits at or after `now - age_ns`.

        The charge is among the hits since then. The oldest of them are removed, so the remaining
        hits expire no sooner than the true ones. A charge that may have expired is not refunded.
        Age 0 stands for an unknown time and refunds the newest hits.
        """
        self._expire(now)
        if not age_ns:
            self._remove_newest(cost)
            return
        if self.first == len(self.stamps) or age_ns >= self.scheme.period_ns:
            return
        since = max(now, self.stamps[-1]) - age_ns
        begin = end = bisect_left(self.stamps, since, lo=self.first)
        while cost and end < len(self.stamps):
            struck = min(cost, self.counts[end])
            self.counts[end] -= struck
            self.total -= struck
            cost -= struck
            end += self.counts[end] == 0
        del self.stamps[begin:end], self.counts[begin:end]

    def _remove_newest(self, cost: int) -> None:
        while cost and len(self.stamps) > self.first:
            struck = min(cost, self.counts[-1])
            self.counts[-1] -= struck
            self.total -= struck
            cost -= struck
            if not self.counts[-1]:
                self.stamps.pop()
                self.counts.pop()

    def state(self, now: int) -> list[int]:
        """Return alternating ages and hits, the oldest first.

        When a log is too long for a state, neighbouring entries are merged at the age of the
        newest one.
        """
        self._expire(now)
        end = len(self.stamps)
        step = -(-2 * (end - self.first) // MAX_NUMBERS) or 1
        return [
            number
            for begin in range(self.first, end, step)
            for number in (
                max(0, now - self.stamps[min(begin + step, end) - 1]),
                sum(self.counts[begin : begin + step]),
            )
        ]

    def charge(self, units: int, now: int, age_ns: int) -> None:
        """Insert hits into the log in order of time, unless they have expired."""
        self._expire(now)
        units = fitting(units, self.total)
        if age_ns >= self.scheme.period_ns or not units:
            return
        at = now - age_ns
        index = bisect_left(self.stamps, at, lo=self.first)
        if index < len(self.stamps) and self.stamps[index] == at:
            self.counts[index] += units
        elif self._is_full() and self.first < index and at - self.stamps[index - 1] <= self._grain:
            self.counts[index - 1] += units
        else:
            self.stamps.insert(index, at)
            self.counts.insert(index, units)
        self.total += units

    def used(self, now: int) -> int:
        """Return the hits in the window that ends at `now`."""
        self._expire(now)
        return self.total

    def _is_full(self) -> bool:
        return len(self.stamps) - self.first >= self.scheme.ceiling + _EXTRA_ENTRIES

    @property
    def _grain(self) -> int:
        """Longest time in ns between charges that share an entry when the log is full."""
        return self.scheme.period_ns // _EXTRA_ENTRIES

    @property
    def extra_bytes(self) -> int:
        """Bytes of all log entries, and of the unused capacity of their arrays."""
        return _ENTRY_BYTES * len(self.stamps)

    def _expire(self, now: int) -> None:
        """Remove hits at or before `now - period`."""
        oldest_kept = now - self.scheme.period_ns
        stamps = self.stamps
        first = self.first
        while first < len(stamps) and stamps[first] <= oldest_kept:
            self.total -= self.counts[first]
            first += 1
        if first == len(stamps) or (first >= _TRIM_AT and 2 * first >= len(stamps)):
            del stamps[:first], self.counts[:first]
            first = 0
        self.first = first

    def _wait(self, excess: int, now: int) -> int:
        """Return the time until the `excess` oldest hits of the log have expired."""
        index = self.first
        while excess > self.counts[index]:
            excess -= self.counts[index]
            index += 1
        return self.stamps[index] + self.scheme.period_ns - now

    def _reset_after(self, now: int) -> int:
        return self.stamps[-1] + self.scheme.period_ns - now if self.stamps else 0
