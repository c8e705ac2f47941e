"""Fixed windows: one count per key, reset when the next window starts.

Plain windows are aligned to the Unix epoch, calendar windows to the days, weeks, months or years
of a time zone, which `calendars` computes.
"""

from collections.abc import Sequence
from typing import Final

from ringfence.limiter.limit import NS_PER_SECOND, Limit
from ringfence.limiter.reference.calendars import CalendarWindows
from ringfence.limiter.reference.counter import Counter
from ringfence.limiter.reference.window import Window, WindowScheme
from ringfence.limiter.serialization import BadState, checked, fitting, units_in

__all__ = ["FixedWindow", "FixedWindowScheme"]


class FixedWindowScheme(WindowScheme):
    """Values derived from the limit of a fixed window: its boundaries, and the maximum count."""

    __slots__ = ("_calendar", "_last", "_period_ns", "_unit_ns")

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self._period_ns: Final = limit.period_ns
        self._unit_ns: Final = NS_PER_SECOND if limit.calendar is not None else limit.period_ns
        self._calendar: Final = (
            None if limit.calendar is None else CalendarWindows(limit.calendar, limit.timezone)
        )
        self._last = (0, 0)
        """Result of the last call of `window`, so that counters share its integers."""

    def window(self, now: int) -> tuple[int, int]:
        """Return the window that contains `now`: its first instant, and the first instant after
        it."""
        if not self._last[0] <= now < self._last[1]:
            start = now - now % self._period_ns
            self._last = (
                (start, start + self._period_ns)
                if self._calendar is None
                else self._calendar.window(now)
            )
        return self._last

    def open(self, now: int, used: int = 0) -> "FixedWindow":
        """Create a counter with `used` units in the window that contains `now`."""
        return FixedWindow(self, *self.window(now), used)

    def restore(self, state: Sequence[int], now: int) -> "FixedWindow":
        """Restore a counter from the number of its window and its count."""
        number, count = checked(state, 2)
        units_in([count])
        start = self.start_of(number)
        if start > self.window(now)[1]:
            raise BadState(f"window {number} has not begun")
        return FixedWindow(self, *self.window(start), count)

    def number(self, start: int) -> int:
        """Return the number of a window: periods since 1970, or its start in seconds for calendar
        windows."""
        return start // self._unit_ns

    def start_of(self, number: int) -> int:
        """Return the start of the window with the given number."""
        return number * self._unit_ns

    def adopt(self, counter: Counter, now: int) -> Counter:
        """Convert a counter of another limit: keep its count if both limits have the same
        windows."""
        counter = counter.own_part(now)
        if isinstance(counter, FixedWindow) and counter.scheme.alignment == self.alignment:
            return FixedWindow(self, counter.start, counter.end, counter.count)
        return super().adopt(counter, now)

    @property
    def alignment(self) -> tuple[object, ...]:
        """Value that is equal for two limits if and only if their windows start at the same
        instants."""
        if self.limit.calendar is not None:
            return self.limit.calendar, self.limit.timezone
        return (self._period_ns,)


class FixedWindow(Window):
    """Count of one key in the latest window that has a charge."""

    __slots__ = ()
    scheme: FixedWindowScheme

    def state(self, now: int) -> list[int]:
        """Return the number of the window and its count."""
        return [self.scheme.number(self.start), self.count]

    def charge(self, units: int, now: int, age_ns: int) -> None:
        """Count units in the window in which they were spent, unless a newer window has started."""
        start, end = self.scheme.window(now)
        if start > self.start:
            self.start, self.end, self.count = start, end, 0
        if max(now, self.start) - age_ns >= self.start:
            self.count += fitting(units, self.count)
