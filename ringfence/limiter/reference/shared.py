"""Counters of rules that several data centers share: local counts, and counts received from the
others.

Each data center is the only writer of its own count in a numbered window. A merge takes the larger
count, so repeated, late and reordered messages have no effect. Windows decide on the sum of all
counts. Buckets are charged with the increase since the last message of a writer.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from ringfence.limiter.limit import Limit
from ringfence.limiter.reference.bucket import Bucket, BucketScheme
from ringfence.limiter.reference.counter import OVER_SOFT, Counter, Scheme, Verdict
from ringfence.limiter.reference.fixed_window import FixedWindow, FixedWindowScheme
from ringfence.limiter.reference.sliding_window import SlidingWindow, SlidingWindowScheme
from ringfence.limiter.serialization import (
    MAX_UNITS,
    BadState,
    checked,
    fitting,
    flatten_pairs,
    pairs_of,
)

__all__ = [
    "Remote",
    "Shared",
    "SharedBucket",
    "SharedBucketScheme",
    "SharedWindow",
    "SharedWindowScheme",
]

_CELL_BYTES = 100
_Cells: TypeAlias = tuple[int, ...]
"""Alternating window numbers and counts, the oldest window first. Dicts would need 200 bytes more
for each key."""
Remote: TypeAlias = tuple[tuple[str, _Cells], ...]
"""Names and counts of other data centers."""
_BEFORE = ""
"""Writer name for units that were counted before the windows changed."""


class WindowNumbers(NamedTuple):
    """Range of the window numbers whose counts still affect decisions at an instant."""

    oldest: int
    """Oldest window that still counts."""
    current: int
    next: int
    """Next window, where data centers with a fast clock may already count."""


class _Merged(NamedTuple):
    """Result of a merge of received counts."""

    remote: Remote
    refused: int
    """Rejected counts."""
    increase: int
    """Increase of the sum of the counts."""


class Shared(ABC):
    """Interface of a counter that merges counts of other data centers."""

    __slots__ = ()
    remote: Remote

    @abstractmethod
    def numbers(self, now: int) -> WindowNumbers:
        """Return the range of window or slot numbers whose counts still affect decisions."""

    @abstractmethod
    def local_counts(self, now: int) -> list[int]:
        """Return this data center's counts of a key: alternating window numbers and counts,
        oldest first."""

    @abstractmethod
    def merge_remote(self, writer: str, cells: Mapping[int, int], now: int) -> int:
        """Merge another data center's counts; return how many were rejected because their window is
        in the future."""

    @abstractmethod
    def restore_remote(self, writer: str, cells: Mapping[int, int], now: int) -> None:
        """Restore another data center's counts from the counter that this counter replaces."""

    def merge_counts_of(self, other: "Shared", now: int) -> None:
        """Merge the counts of other data centers that another counter of the same windows has."""
        for writer, cells in other.remote:
            self.merge_remote(writer, dict(_pairs(cells)), now)

    def remote_cells(self, now: int) -> dict[str, list[int]]:
        """Return the counts of each other data center for windows that still affect decisions.

        Their format is that of `local_counts`.
        """
        oldest = self.numbers(now).oldest
        cells = {
            writer: flatten_pairs({n: count for n, count in _pairs(known) if n >= oldest})
            for writer, known in self.remote
        }
        return {writer: numbers for writer, numbers in cells.items() if numbers}

    def _merged(self, writer: str, cells: Mapping[int, int], now: int) -> _Merged:
        """Merge the counts that a data center sent with the stored ones: the larger count is kept,
        up to `MAX_UNITS` in all windows."""
        numbers, remote = self.numbers(now), dict(self.remote)
        known = {n: c for n, c in _pairs(remote.pop(writer, ())) if n >= numbers.oldest}
        refused = increase = 0
        for number, count in cells.items():
            if number > numbers.current and number != numbers.next:
                refused += 1
            elif number >= numbers.oldest:
                added = fitting(count - known.get(number, 0), sum(known.values()))
                if added:
                    increase += added
                    known[number] = known.get(number, 0) + added
        if known:
            remote[writer] = tuple(flatten_pairs(known))
        return _Merged(tuple(remote.items()), refused, increase)


class SharedWindowScheme(Scheme):
    """Values derived from the limit of a fixed or sliding window that several data centers
    share."""

    __slots__ = ("inner",)

    def __init__(self, limit: Limit, inner: FixedWindowScheme | SlidingWindowScheme) -> None:
        super().__init__(limit)
        self.inner: Final = inner

    def open(self, now: int, used: int = 0) -> "SharedWindow":
        """Create a counter with `used` units that this data center charged."""
        return SharedWindow(self, self.inner.open(now, used))

    def restore(self, state: Sequence[int], now: int) -> "SharedWindow":
        """Restore the counts of this data center; those of other data centers are restored
        separately."""
        return SharedWindow(self, self.inner.restore(state, now))

    def adopt(self, counter: Counter, now: int) -> Counter:
        """Convert a counter of another limit: keep the counts of all data centers if both limits
        have the same windows.

        Otherwise the sum is kept without its parts. It is not sent to other data centers, because
        each of them converts its own counters.
        """
        if isinstance(counter, SharedWindow) and counter.scheme.alignment == self.alignment:
            own = self.inner.adopt(counter.own, now)
            return SharedWindow(self, _plain(own), counter.remote)
        if isinstance(counter, Shared):
            adopted = self.open(now)
            used = min(counter.used(now), MAX_UNITS)
            adopted.merge_remote(_BEFORE, {adopted.numbers(now).current: used}, now)
            return adopted
        return SharedWindow(self, _plain(self.inner.adopt(counter, now)))

    def numbers(self, now: int) -> WindowNumbers:
        """Return the range of window or slot numbers whose counts still affect decisions."""
        inner = self.inner
        if isinstance(inner, SlidingWindowScheme):
            slot = now // inner.slot_ns
            return WindowNumbers(slot - inner.slots, slot, slot + 1)
        start, end = inner.window(now)
        return WindowNumbers(inner.number(start), inner.number(start), inner.number(end))

    @property
    def alignment(self) -> tuple[object, ...]:
        """Value that is equal for two limits if and only if their windows start at the same
        instants."""
        return type(self.inner), self.inner.alignment


class SharedWindow(Counter, Shared):
    """Counter of one key: its window in this data center, and the counts of other data centers."""

    __slots__ = ("own", "remote", "scheme")

    def __init__(
        self,
        scheme: SharedWindowScheme,
        own: FixedWindow | SlidingWindow,
        remote: Remote = (),
    ) -> None:
        self.scheme: SharedWindowScheme = scheme
        self.own = own
        self.remote = remote

    def check(self, cost: int, now: int) -> Verdict:
        """Decide a check by the units in use in all data centers; charge an admitted cost to
        this one."""
        row = self._sum(now).check(cost, now)
        if cost and row[0] <= OVER_SOFT:
            self.own.charge(cost, now, 0)
        return row

    def refund(self, cost: int, now: int, age_ns: int, slot_id: int) -> None:
        """Refund units that this data center charged.

        Another data center that received the larger count keeps it until this count exceeds it,
        because a smaller count looks like an old one.
        """
        self.own.refund(cost, now, age_ns, slot_id)

    def used(self, now: int) -> int:
        """Return the units in use of all data centers together."""
        return self._sum(now).used(now)

    def own_part(self, now: int) -> Counter:
        """Return the window of this data center alone."""
        return self.own

    def is_expired(self, now: int) -> bool:
        """Whether no count of any data center affects decisions any more.

        A sum may affect them even if each count is below one unit. A table examines two counters
        for each new key, so the usual case returns early.
        """
        own = self.own
        if any(own.rolled(now).counts) if isinstance(own, SlidingWindow) else own.used(now):
            return False
        oldest = self.numbers(now).oldest
        return all([n < oldest for _, known in self.remote for n in known[::2]])

    def state(self, now: int) -> list[int]:
        """Return this data center's count as numbers, to restore it on another node."""
        return self.own.state(now)

    def charge(self, units: int, now: int, age_ns: int) -> None:
        """Add units that another node of this data center has admitted."""
        self.own.charge(units, now, age_ns)

    def numbers(self, now: int) -> WindowNumbers:
        """Return the range of window slot numbers whose counts still affect decisions."""
        return self.scheme.numbers(now)

    def local_counts(self, now: int) -> list[int]:
        """Return this data center's counts of a key: alternating window numbers and counts."""
        own = self.own
        if isinstance(own, FixedWindow):
            return own.state(now) if own.used(now) else []
        own = own.rolled(now)
        return flatten_pairs(
            {own.slot - back: count for back, count in enumerate(own.counts) if count}
        )

    def merge_remote(self, writer: str, cells: Mapping[int, int], now: int) -> int:
        """Merge another data center's counts of the key; return the number of rejected counts."""
        merged = self._merged(writer, cells, now)
        self.remote = merged.remote
        return merged.refused

    def restore_remote(self, writer: str, cells: Mapping[int, int], now: int) -> None:
        """Restore another data center's counts from the counter that this counter replaces."""
        self.merge_remote(writer, cells, now)

    @property
    def extra_bytes(self) -> int:
        """Bytes that the counts of this data center and of other data centers need beyond a
        small counter."""
        return self.own.extra_bytes + _remote_bytes(self.remote)

    def _sum(self, now: int) -> FixedWindow | SlidingWindow:
        """Return a counter whose counts are the sums over all data centers."""
        own = self.own
        if isinstance(own, FixedWindow):
            start, end, count = own.start, own.end, own.count
            if now >= end:
                start, end = own.scheme.window(now)
                count = 0
            number = own.scheme.number(start)
            for _, known in self.remote:
                for at in range(0, len(known), 2):
                    if known[at] == number:
                        count += known[at + 1]
            return FixedWindow(own.scheme, start, end, count)
        total = own.rolled(now)
        counts = list(total.counts)
        for _, known in self.remote:
            for at in range(0, len(known), 2):
                # Below 0 is the next slot of a writer whose clock is fast.
                back = max(0, total.slot - known[at])
                if back < len(counts):
                    counts[back] += known[at + 1]
        return SlidingWindow(own.scheme, total.slot, tuple(counts))


class SharedBucketScheme(BucketScheme):
    """Values derived from the limit of a bucket to which several data centers add units."""

    __slots__ = ("period_ns",)

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.period_ns: Final = limit.period_ns

    def open(self, now: int, used: int = 0) -> "SharedBucket":
        """Create a bucket with `used` units that this data center charged."""
        bucket = SharedBucket(self, super().open(now, used).tat)
        bucket.note(used, now, 0)
        return bucket

    def numbers(self, now: int) -> WindowNumbers:
        """Return the range of period numbers whose counts still affect decisions."""
        current = now // self.period_ns
        return WindowNumbers(current - 1, current, current + 1)

    def restore(self, state: Sequence[int], now: int) -> "SharedBucket":
        """Restore a bucket from its level and this data center's counts by period number."""
        if len(state) < 2:
            raise BadState("no level")
        level, cells = checked(state[:2]), pairs_of(state[2:])
        bucket = SharedBucket(self, now * self.ticks_per_ns + self.level_of(level))
        if max(cells, default=0) > bucket.numbers(now).next:
            raise BadState("units in a future period")
        bucket.admitted = tuple(flatten_pairs(cells))
        return bucket

    def adopt(self, counter: Counter, now: int) -> Counter:
        """Convert a counter of another limit: keep its level, and its counts by data center if both
        periods are equal.

        Units that only this data center counted so far are sent to the other data centers.
        """
        bucket = SharedBucket(self, self.tat_after(counter, now))
        if isinstance(counter, SharedBucket):
            if counter.scheme.limit.period_ns == self.period_ns:
                bucket.admitted, bucket.remote = counter.admitted, counter.remote
        elif not isinstance(counter, Shared):
            bucket.note(counter.used(now), now, 0)
        return bucket


class SharedBucket(Bucket, Shared):
    """Bucket of one key; units of other data centers are added when their counts arrive.

    Counts are per period number, so a count can restart without reducing the old one. Counts that
    arrive later than the next period are ignored, because most of them have drained by then.
    """

    __slots__ = ("admitted", "remote")

    scheme: SharedBucketScheme

    def __init__(self, scheme: SharedBucketScheme, tat: int) -> None:
        super().__init__(scheme, tat)
        self.admitted: _Cells = ()
        """Units of this data center by period number."""
        self.remote: Remote = ()

    def check(self, cost: int, now: int) -> Verdict:
        """Decide a check; record an admitted cost, to send it to the other data centers."""
        row = super().check(cost, now)
        if cost and row[0] <= OVER_SOFT:
            self.note(cost, now, 0)
        return row

    def charge(self, units: int, now: int, age_ns: int) -> None:
        """Add units that another node of this data center has admitted."""
        super().charge(units, now, age_ns)
        self.note(units, now, age_ns)

    def refund(self, cost: int, now: int, age_ns: int, slot_id: int) -> None:
        """Refund units, and reduce the count that is sent to other data centers."""
        super().refund(cost, now, age_ns, slot_id)
        number = (now - age_ns) // self.scheme.limit.period_ns
        cells = dict(_pairs(self.admitted))
        left = cells.pop(number, 0) - cost
        if left > 0:
            cells[number] = left
        self.admitted = tuple(flatten_pairs(cells))

    def own_part(self, now: int) -> Counter:
        """Return a bucket with the units of this data center in the current and the previous
        period, as far as they may not have drained."""
        scheme, units = self.scheme, sum(self.local_counts(now)[1::2])
        return Bucket(scheme, min(self.tat, now * scheme.ticks_per_ns + units * scheme.unit))

    def is_expired(self, now: int) -> bool:
        """Whether the bucket is empty and no count affects decisions any more."""
        if not super().is_expired(now):
            return False
        oldest = self.numbers(now).oldest
        cells = (self.admitted, *[known for _, known in self.remote])
        return all([n < oldest for known in cells for n in known[::2]])

    def state(self, now: int) -> list[int]:
        """Return the level of the bucket, then this data center's counts by period number."""
        return [*super().state(now), *self.local_counts(now)]

    def numbers(self, now: int) -> WindowNumbers:
        """Return the range of period numbers whose counts still affect decisions."""
        return self.scheme.numbers(now)

    def local_counts(self, now: int) -> list[int]:
        """Return this data center's counts of a key: alternating period numbers and counts."""
        oldest = self.numbers(now).oldest
        return flatten_pairs({n: units for n, units in _pairs(self.admitted) if n >= oldest})

    def merge_remote(self, writer: str, cells: Mapping[int, int], now: int) -> int:
        """Merge another data center's counts of the key; return the number of rejected counts."""
        merged = self._merged(writer, cells, now)
        self.remote = merged.remote
        super().charge(merged.increase, now, 0)
        return merged.refused

    def restore_remote(self, writer: str, cells: Mapping[int, int], now: int) -> None:
        """Restore another data center's counts; the level of the bucket already includes their
        units."""
        self.remote = self._merged(writer, cells, now).remote

    @property
    def extra_bytes(self) -> int:
        """Bytes that the counts of other data centers need beyond a small counter."""
        return _remote_bytes(self.remote)

    def note(self, units: int, now: int, age_ns: int) -> None:
        """Record units that this data center has admitted, to send them to other data centers."""
        oldest = self.numbers(now).oldest
        number = (now - age_ns) // self.scheme.limit.period_ns
        if number >= oldest and self.admitted[:-1] == (number,):  # The usual case.
            self.admitted = number, self.admitted[1] + fitting(units, self.admitted[1])
            return
        cells = {n: noted for n, noted in _pairs(self.admitted) if n >= oldest}
        if units and number >= oldest:
            cells[number] = cells.get(number, 0) + fitting(units, sum(cells.values()))
        self.admitted = tuple(flatten_pairs(cells))


def _plain(counter: Counter) -> FixedWindow | SlidingWindow:
    """Return the counter after the assertion that it is a fixed or a sliding window."""
    assert isinstance(counter, FixedWindow | SlidingWindow)
    return counter


def _pairs(cells: _Cells) -> Iterator[tuple[int, int]]:
    return zip(cells[::2], cells[1::2], strict=True)


def _remote_bytes(remote: Remote) -> int:
    return _CELL_BYTES * sum([len(known) for _, known in remote]) // 2
