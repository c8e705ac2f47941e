"""Conversion of counters of shared limits to numbers in a row, and back.

A row has the number of the counter's form, the newest window number in the row, the numbers of this
data center, and for each other data center its number, the number of its cells and these.
"""

from abc import ABC, abstractmethod
from typing import Final

from ringfence.limiter.reference import Counter, Scheme
from ringfence.limiter.reference.fixed_window import FixedWindow, FixedWindowScheme
from ringfence.limiter.reference.shared import (
    Remote,
    SharedBucket,
    SharedBucketScheme,
    SharedWindow,
    SharedWindowScheme,
)
from ringfence.limiter.reference.sliding_window import SlidingWindow, SlidingWindowScheme

__all__ = ["Form", "form_of"]

_MAX_WRITERS = 64
"""Data centers that rows can refer to. A counter with counts of a further one cannot be a row."""
_OWN = 2
"""Place in a row where the numbers of this data center begin."""


class Form(ABC):
    """Form of the rows of all counters of one scheme.

    A counter whose newest window no longer counts may have expired; another has not.
    """

    def __init__(
        self, scheme: SharedWindowScheme | SharedBucketScheme, number: int, writers: list[str]
    ) -> None:
        self.number: Final = number
        self._windows: Final = scheme
        self._writers = writers
        self._now = self._oldest = -1

    @abstractmethod
    def numbers_of(self, counter: Counter) -> list[int] | None:
        """Return a counter as a row; None if it has counts of too many data centers."""

    @abstractmethod
    def counter_of(self, numbers: list[int]) -> Counter:
        """Return the counter of a row."""

    def may_have_expired(self, numbers: list[int], now: int) -> bool:
        """Whether the counter of a row may have expired, which only the counter itself knows."""
        if now != self._now:  # Most rows are examined at the same instant as the row before.
            self._now, self._oldest = now, self._windows.numbers(now).oldest
        return numbers[1] < self._oldest

    def _with_remote(self, numbers: list[int], remote: Remote) -> list[int] | None:
        writers = self._writers
        for writer, cells in remote:
            if writer not in writers:
                if len(writers) >= _MAX_WRITERS:
                    return None
                writers.append(writer)
            numbers += (writers.index(writer), len(cells), *cells)
            numbers[1] = max(numbers[1], cells[-2])
        return numbers

    def _remote(self, numbers: list[int], at: int) -> Remote:
        remote: Remote = ()
        while at < len(numbers):
            end = at + 2 + numbers[at + 1]
            remote += ((self._writers[numbers[at]], tuple(numbers[at + 2 : end])),)
            at = end
        return remote


class _FixedForm(Form):
    def __init__(
        self,
        scheme: SharedWindowScheme,
        inner: FixedWindowScheme,
        number: int,
        writers: list[str],
    ) -> None:
        super().__init__(scheme, number, writers)
        self._scheme, self._inner = scheme, inner

    def numbers_of(self, counter: Counter) -> list[int] | None:
        assert isinstance(counter, SharedWindow)
        own = counter.own
        assert isinstance(own, FixedWindow)
        window = self._inner.number(own.start)
        return self._with_remote([self.number, window, window, own.count], counter.remote)

    def counter_of(self, numbers: list[int]) -> SharedWindow:
        _, _, window, count, *_ = numbers
        inner = self._inner
        own = FixedWindow(inner, *inner.window(inner.start_of(window)), count)
        return SharedWindow(self._scheme, own, self._remote(numbers, _OWN + 2))


class _SlidingForm(Form):
    def __init__(
        self,
        scheme: SharedWindowScheme,
        inner: SlidingWindowScheme,
        number: int,
        writers: list[str],
    ) -> None:
        super().__init__(scheme, number, writers)
        self._scheme, self._inner = scheme, inner
        self._end = _OWN + 1 + len(inner.blank)

    def numbers_of(self, counter: Counter) -> list[int] | None:
        assert isinstance(counter, SharedWindow)
        own = counter.own
        assert isinstance(own, SlidingWindow)
        numbers = [self.number, own.slot, own.slot, *own.counts]
        return self._with_remote(numbers, counter.remote)

    def counter_of(self, numbers: list[int]) -> SharedWindow:
        slot, *counts = numbers[_OWN : self._end]
        own = SlidingWindow(self._inner, slot, tuple(counts))
        return SharedWindow(self._scheme, own, self._remote(numbers, self._end))


class _BucketForm(Form):
    def __init__(self, scheme: SharedBucketScheme, number: int, writers: list[str]) -> None:
        super().__init__(scheme, number, writers)
        self._scheme = scheme

    def numbers_of(self, counter: Counter) -> list[int] | None:
        assert isinstance(counter, SharedBucket)
        own = counter.admitted
        # The TAT in ticks could exceed 64 bits.
        instant, ticks = divmod(counter.tat, self._scheme.ticks_per_ns)
        newest = own[-2] if own else 0
        numbers = [self.number, newest, instant, ticks, len(own), *own]
        return self._with_remote(numbers, counter.remote)

    def counter_of(self, numbers: list[int]) -> SharedBucket:
        _, _, instant, ticks, size, *_ = numbers
        end = _OWN + 3 + size
        bucket = SharedBucket(self._scheme, instant * self._scheme.ticks_per_ns + ticks)
        bucket.admitted = tuple(numbers[_OWN + 3 : end])
        bucket.remote = self._remote(numbers, end)
        return bucket


def form_of(scheme: Scheme, number: int, writers: list[str]) -> Form | None:
    """Return the form of the counters of a scheme; None if they cannot be rows.

    `number` identifies the form. The form appends unknown data centers to `writers`.
    """
    match scheme:
        case SharedBucketScheme():
            return _BucketForm(scheme, number, writers)
        case SharedWindowScheme(inner=FixedWindowScheme() as inner):
            return _FixedForm(scheme, inner, number, writers)
        case SharedWindowScheme(inner=SlidingWindowScheme() as inner):
            return _SlidingForm(scheme, inner, number, writers)
        case _:
            return None
