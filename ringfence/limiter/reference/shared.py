"""Counters of global rules: what this data center admitted, and what the others said they did.

Each data center is the only writer of its own count of a numbered window, so hearing the same
twice, late or in another order changes nothing: the larger count stands. Windows are decided on
the sum; buckets are charged with what came on top since a writer was last heard.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ringfence.limiter.limit import Limit
from ringfence.limiter.reference.bucket import Bucket, BucketScheme
from ringfence.limiter.reference.counter import OVER_SOFT, Counter, Scheme, Verdict
from ringfence.limiter.reference.fixed_window import FixedWindow, FixedWindowScheme
from ringfence.limiter.reference.sliding_window import SlidingWindow, SlidingWindowScheme
from ringfence.limiter.serialization import (
    MOST_UNITS,
    BadState,
    checked,
    fitting,
    in_turns,
    pairs_of,
)

__all__ = ["Shared", "SharedBucketScheme", "SharedWindowScheme"]

_CELL_BYTES = 100
_BEFORE = ""
"""The writer, no data center, of units that were counted before the windows changed."""


class _Numbers(NamedTuple):
    """The window numbers that count at an instant."""

    oldest: int
    """The first that still weighs."""
    current: int
    next: int
    """Whoever's clock is ahead of ours may be there already."""


class Shared(ABC):
    """A counter that hears of other data centers."""

    __slots__ = ()
    heard: dict[str, dict[int, int]]
    """Per data center its counts by window number. The inner maps are never changed in place."""

    @abstractmethod
    def numbers(self, now: int) -> _Numbers:
        """Which windows or slots count now."""

    @abstractmethod
    def told(self, now: int) -> list[int]:
        """What this data center admitted: window number and count in turns, oldest first."""

    @abstractmethod
    def hear(self, writer: str, cells: Mapping[int, int], now: int) -> int:
        """Take another data center's counts; return how many were refused: of windows to come."""

    @abstractmethod
    def recall(self, writer: str, cells: Mapping[int, int], now: int) -> None:
        """Know again what the counter had heard that this one goes on from."""

    def heard_cells(self, now: int) -> dict[str, list[int]]:
        """What others said, as `hear` takes it; of windows that still weigh."""
        oldest = self.numbers(now).oldest
        cells = {
            writer: in_turns({n: count for n, count in known.items() if n >= oldest})
            for writer, known in self.heard.items()
        }
        return {writer: numbers for writer, numbers in cells.items() if numbers}

    def _merge(self, writer: str, cells: Mapping[int, int], now: int) -> tuple[int, int]:
        """Let the larger counts stand; return how many cells were refused, and how much rose."""
        numbers = self.numbers(now)
        known = {n: c for n, c in self.heard.get(writer, {}).items() if n >= numbers.oldest}
        refused = risen = 0
        for number, count in cells.items():
            if number > numbers.current and number != numbers.next:
                refused += 1
            elif number >= numbers.oldest and count > known.get(number, 0):
                risen += count - known.get(number, 0)
                known[number] = count
        if known:
            self.heard[writer] = known
        else:
            self.heard.pop(writer, None)
        return refused, risen


class SharedWindowScheme(Scheme):
    """A fixed or sliding window over several data centers."""

    __slots__ = ("inner",)

    def __init__(self, limit: Limit, inner: FixedWindowScheme | SlidingWindowScheme) -> None:
        super().__init__(limit)
        self.inner: Final = inner

    def open(self, now: int, used: int = 0) -> "SharedWindow":
        """Start with `used` units of this data center."""
        return SharedWindow(self, self.inner.open(now, used), {})

    def revive(self, state: Sequence[int], now: int) -> "SharedWindow":
        """Read what this data center admitted; what was heard comes apart."""
        return SharedWindow(self, self.inner.revive(state, now), {})

    def adopt(self, counter: Counter, now: int) -> Counter:
        """Keep own and heard counts when both schemes have the same windows.

        Otherwise the sum counts on, as nobody's: each data center carries it over for itself, so
        none must be told.
        """
        if isinstance(counter, SharedWindow) and counter.scheme.alignment == self.alignment:
            own = self.inner.adopt(counter.own, now)
            return SharedWindow(self, _plain(own), dict(counter.heard))
        if isinstance(counter, Shared):
            adopted = self.open(now)
            used = min(counter.used(now), MOST_UNITS)
            adopted.hear(_BEFORE, {adopted.numbers(now).current: used}, now)
            return adopted
        return SharedWindow(self, _plain(self.inner.adopt(counter, now)), {})

    @property
    def alignment(self) -> tuple[object, ...]:
        """Equal for two schemes exactly when they cut time at the same instants."""
        return type(self.inner), self.inner.alignment


class SharedWindow(Counter, Shared):
    """One key's own window counter and what was heard of others."""

    __slots__ = ("heard", "own", "scheme")

    def __init__(
        self,
        scheme: SharedWindowScheme,
        own: FixedWindow | SlidingWindow,
        heard: dict[str, dict[int, int]],
    ) -> None:
        self.scheme: SharedWindowScheme = scheme
        self.own = own
        self.heard = heard

    def check(self, cost: int, now: int) -> Verdict:
        """Decide on the sum; charge the own count."""
        row = self._sum(now).check(cost, now)
        if cost and row[0] <= OVER_SOFT:
            self.own.charge(cost, now, 0)
        return row

    def refund(self, cost: int, now: int, age_ns: int, lease: int) -> None:
        """Give back what was charged here. Others who were told of it already keep counting it
        until the own count has passed what they know: a smaller one looks like an old one."""
        self.own.refund(cost, now, age_ns, lease)

    def used(self, now: int) -> int:
        """Units of all data centers."""
        return self._sum(now).used(now)

    def is_rested(self, now: int) -> bool:
        """Whether no count weighs any more, however little: two that weigh less than a unit each
        may make one together."""
        oldest = self.numbers(now).oldest
        return not self.told(now) and all(
            n < oldest for known in self.heard.values() for n in known
        )

    def state(self, now: int) -> list[int]:
        """What this data center admitted."""
        return self.own.state(now)

    def charge(self, units: int, now: int, age_ns: int) -> None:
        """Count units that this data center admitted elsewhere."""
        self.own.charge(units, now, age_ns)

    def numbers(self, now: int) -> _Numbers:
        """See `Shared`."""
        inner = self.scheme.inner
        if isinstance(inner, SlidingWindowScheme):
            slot = now // inner.slot_ns
            return _Numbers(slot - inner.slots, slot, slot + 1)
        start, end = inner.window(now)
        return _Numbers(inner.number(start), inner.number(start), inner.number(end))

    def told(self, now: int) -> list[int]:
        """See `Shared`."""
        own = self.own
        if isinstance(own, FixedWindow):
            return own.state(now) if own.used(now) else []
        own = own.rolled(now)
        return in_turns({own.slot - back: count for back, count in enumerate(own.counts) if count})

    def hear(self, writer: str, cells: Mapping[int, int], now: int) -> int:
        """See `Shared`."""
        return self._merge(writer, cells, now)[0]

    def recall(self, writer: str, cells: Mapping[int, int], now: int) -> None:
        """See `Shared`."""
        self.hear(writer, cells, now)

    @property
    def extra_bytes(self) -> int:
        """Those of the own window and of the cells of other data centers."""
        return self.own.extra_bytes + _CELL_BYTES * sum(map(len, self.heard.values()))

    def _sum(self, now: int) -> FixedWindow | SlidingWindow:
        """Add all data centers up in a counter of the plain kind."""
        own = self.own
        if isinstance(own, FixedWindow):
            start, end, count = own.start, own.end, own.count
            if now >= end:
                start, end = own.scheme.window(now)
                count = 0
            number = own.scheme.number(start)
            count += sum([known.get(number, 0) for known in self.heard.values()])
            return FixedWindow(own.scheme, start, end, count)
        total = own.rolled(now)
        counts = list(total.counts)
        for known in self.heard.values():
            for number, count in known.items():
                back = max(0, total.slot - number)  # The next slot, by a clock that is ahead.
                if back < len(counts):
                    counts[back] += count
        return SlidingWindow(own.scheme, total.slot, tuple(counts))


class SharedBucketScheme(BucketScheme):
    """A bucket that several data centers pour into."""

    __slots__ = ("period_ns",)

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.period_ns: Final = limit.period_ns

    def open(self, now: int, used: int = 0) -> "SharedBucket":
        """Start a bucket with `used` units of this data center in it."""
        bucket = SharedBucket(self, super().open(now, used).tat)
        bucket.note(used, now, 0)
        return bucket

    def revive(self, state: Sequence[int], now: int) -> "SharedBucket":
        """Read the level, then what this data center admitted by number of the period."""
        if len(state) < 2:
            raise BadState("no level")
        level, cells = checked(state[:2]), pairs_of(state[2:])
        bucket = SharedBucket(self, now * self.ticks_per_ns + self.level_of(level))
        if max(cells, default=0) > bucket.numbers(now).next:
            raise BadState("units that were admitted in a period to come")
        bucket.admitted = dict(cells)
        return bucket

    def adopt(self, counter: Counter, now: int) -> Counter:
        """Keep the level, and who said what when periods are numbered alike.

        The others are told what this data center counted alone until now.
        """
        bucket = SharedBucket(self, self.tat_after(counter, now))
        if isinstance(counter, SharedBucket):
            if counter.scheme.limit.period_ns == self.period_ns:
                bucket.admitted, bucket.heard = dict(counter.admitted), dict(counter.heard)
        elif not isinstance(counter, Shared):
            bucket.note(counter.used(now), now, 0)
        return bucket


class SharedBucket(Bucket, Shared):
    """One key's bucket; what other data centers admit is poured in as it is heard of.

    They say so by number of the period, so that a count may begin anew without taking the old one
    back. What is heard of later than the next period is let go: by then most of it has drained.
    """

    __slots__ = ("admitted", "heard")

    def __init__(self, scheme: BucketScheme, tat: int) -> None:
        super().__init__(scheme, tat)
        self.admitted: dict[int, int] = {}
        """Units of this data center by number of the period."""
        self.heard: dict[str, dict[int, int]] = {}

    def check(self, cost: int, now: int) -> Verdict:
        """Pour in, and note it for the others."""
        row = super().check(cost, now)
        if cost and row[0] <= OVER_SOFT:
            self.note(cost, now, 0)
        return row

    def charge(self, units: int, now: int, age_ns: int) -> None:
        """Pour in units that this data center admitted elsewhere."""
        super().charge(units, now, age_ns)
        self.note(units, now, age_ns)

    def refund(self, cost: int, now: int, age_ns: int, lease: int) -> None:
        """Take out of the bucket, and of what the others will be told."""
        super().refund(cost, now, age_ns, lease)
        number = (now - age_ns) // self.scheme.limit.period_ns
        left = self.admitted.pop(number, 0) - cost
        if left > 0:
            self.admitted[number] = left

    def is_rested(self, now: int) -> bool:
        """Whether it is empty, and no count can be heard or told again."""
        oldest = self.numbers(now).oldest
        cells = (self.admitted, *self.heard.values())
        return super().is_rested(now) and all(n < oldest for known in cells for n in known)

    def state(self, now: int) -> list[int]:
        """The level, then what this data center admitted by number of the period."""
        return [*super().state(now), *self.told(now)]

    def numbers(self, now: int) -> _Numbers:
        """See `Shared`."""
        current = now // self.scheme.limit.period_ns
        return _Numbers(current - 1, current, current + 1)

    def told(self, now: int) -> list[int]:
        """See `Shared`."""
        oldest = self.numbers(now).oldest
        return in_turns({n: units for n, units in self.admitted.items() if n >= oldest})

    def hear(self, writer: str, cells: Mapping[int, int], now: int) -> int:
        """See `Shared`."""
        refused, risen = self._merge(writer, cells, now)
        super().charge(risen, now, 0)
        return refused

    def recall(self, writer: str, cells: Mapping[int, int], now: int) -> None:
        """See `Shared`: the level has these units already."""
        self._merge(writer, cells, now)

    def note(self, units: int, now: int, age_ns: int) -> None:
        """Write units down as admitted by this data center."""
        oldest = self.numbers(now).oldest
        number = (now - age_ns) // self.scheme.limit.period_ns
        for old in [old for old in self.admitted if old < oldest]:
            del self.admitted[old]
        if units and number >= oldest:
            units = fitting(units, sum(self.admitted.values()))
            self.admitted[number] = self.admitted.get(number, 0) + units


def _plain(counter: Counter) -> FixedWindow | SlidingWindow:
    """Name the kind that the scheme of a shared window makes."""
    assert isinstance(counter, FixedWindow | SlidingWindow)
    return counter
