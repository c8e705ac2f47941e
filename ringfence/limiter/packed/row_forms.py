"""Conversion of counters to numbers in a row, and back.

A row has the number of the counter's form, the newest window number in the row, the numbers of this
data center, and for each other data center its number, the number of its cells and these.
"""

from abc import ABC, abstractmethod
from typing import Final

from ringfence.limiter.reference import Counter, Scheme
from ringfence.limiter.reference.first_hit import FirstHitWindow, FirstHitWindowScheme
from ringfence.limiter.reference.fixed_window import FixedWindow, FixedWindowScheme
from ringfence.limiter.reference.shared import (
    Remote,
    SharedBucket,
    SharedBucketScheme,
    SharedWindow,
    SharedWindowScheme,
)
from ringfence.limiter.reference.sliding_window import SlidingWindow, SlidingWindowScheme

__all__ = ["CAN_BE_ROWS", "Form", "form_of"]

_MAX_WRITERS = 64
"""Data centers that rows can refer to. A counter with counts of a further one cannot be a row."""
CAN_BE_ROWS = frozenset([SharedWindow, SharedBucket, FixedWindow, FirstHitWindow, SlidingWindow])
"""Types of counters that can be rows."""
_OWN = 2
"""Place in a row where the numbers of this data center begin."""


class Form(ABC):
    """Form of the rows of all counters of one scheme.

    A counter whose newest window no longer counts may have expired; another has not.
    """

    def __init__(self, scheme: Scheme, number: int) -> None:
        self.scheme: Final[Scheme] = scheme
        self.number: Final = number
        self.rows = 0
        """Number of rows of this form; the owner of the rows counts them."""
        self._now = self._oldest = -1

    @abstractmethod
    def numbers_of(self, counter: Counter) -> list[int] | None:
        """Return a counter as a row; None if it has counts of too many data centers."""

    @abstractmethod
    def counter_of(self, numbers: list[int]) -> Counter:
        """Return the counter of a row."""

    @abstractmethod
    def oldest(self, now: int) -> int:
        """Return the number of the oldest window that still counts."""

    def may_have_expired(self, numbers: list[int], now: int) -> bool:
        """Whether the counter of a row may have expired, which only the counter itself knows."""
        if now != self._now:  # Most rows are examined at the same instant as the row before.
            self._now, self._oldest = now, self.oldest(now)
        return numbers[1] < self._oldest


class _FixedForm(Form):
    size = _OWN + 2
    """Numbers of a row without those of other data centers."""

    def __init__(self, scheme: FixedWindowScheme, number: int) -> None:
        super().__init__(scheme, number)
        self._scheme = scheme

    def numbers_of(self, counter: Counter) -> list[int]:
        assert isinstance(counter, FixedWindow)
        window = self._scheme.number(counter.start)
        return [self.number, window, window, counter.count]

    def counter_of(self, numbers: list[int]) -> FixedWindow:
        scheme = self._scheme
        start, end = scheme.window(scheme.start_of(numbers[_OWN]))
        return FixedWindow(scheme, start, end, numbers[_OWN + 1])

    def oldest(self, now: int) -> int:
        return self._scheme.number(self._scheme.window(now)[0])


class _FirstHitForm(Form):
    """The end of a window takes the place of its number."""

    def __init__(self, scheme: FirstHitWindowScheme, number: int) -> None:
        super().__init__(scheme, number)
        self._scheme = scheme

    def numbers_of(self, counter: Counter) -> list[int]:
        assert isinstance(counter, FirstHitWindow)
        return [self.number, counter.end, counter.start, counter.count]

    def counter_of(self, numbers: list[int]) -> FirstHitWindow:
        _, end, start, count = numbers
        return FirstHitWindow(self._scheme, start, end, count)

    def oldest(self, now: int) -> int:
        return now + 1


class _SlidingForm(Form):
    def __init__(self, scheme: SlidingWindowScheme, number: int) -> None:
        super().__init__(scheme, number)
        self._scheme = scheme
        self.size = _OWN + 1 + len(scheme.blank)

    def numbers_of(self, counter: Counter) -> list[int]:
        assert isinstance(counter, SlidingWindow)
        return [self.number, counter.slot, counter.slot, *counter.counts]

    def counter_of(self, numbers: list[int]) -> SlidingWindow:
        return SlidingWindow(self._scheme, numbers[_OWN], tuple(numbers[_OWN + 1 : self.size]))

    def oldest(self, now: int) -> int:
        return now // self._scheme.slot_ns - self._scheme.slots


class _SharedForm(Form):
    def __init__(self, scheme: Scheme, number: int, writers: list[str]) -> None:
        super().__init__(scheme, number)
        self._writers = writers

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


class _WindowForm(_SharedForm):
    def __init__(
        self, scheme: SharedWindowScheme, inner: _FixedForm | _SlidingForm, writers: list[str]
    ) -> None:
        super().__init__(scheme, inner.number, writers)
        self._scheme = scheme
        self._inner = inner

    def numbers_of(self, counter: Counter) -> list[int] | None:
        assert isinstance(counter, SharedWindow)
        return self._with_remote(self._inner.numbers_of(counter.own), counter.remote)

    def counter_of(self, numbers: list[int]) -> SharedWindow:
        own = self._inner.counter_of(numbers)
        return SharedWindow(self._scheme, own, self._remote(numbers, self._inner.size))

    def oldest(self, now: int) -> int:
        return self._inner.oldest(now)


class _BucketForm(_SharedForm):
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

    def oldest(self, now: int) -> int:
        return self._scheme.numbers(now).oldest


def form_of(scheme: Scheme, number: int, writers: list[str]) -> Form | None:
    """Return the form of the counters of a scheme; None if they cannot be rows.

    `number` identifies the form. The form appends unknown data centers to `writers`.
    """
    match scheme:
        case SharedBucketScheme():
            return _BucketForm(scheme, number, writers)
        case SharedWindowScheme(inner=inner):
            own = _window_form(inner, number)
            assert isinstance(own, _FixedForm | _SlidingForm)
            return _WindowForm(scheme, own, writers)
        case _:
            return _window_form(scheme, number)


def _window_form(scheme: Scheme, number: int) -> Form | None:
    match scheme:
        case FixedWindowScheme():
            return _FixedForm(scheme, number)
        case FirstHitWindowScheme():
            return _FirstHitForm(scheme, number)
        case SlidingWindowScheme():
            return _SlidingForm(scheme, number)
        case _:
            return None
