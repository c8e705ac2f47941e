"""Windows that start with the first hit of a key: a count, and the end of the window.

Equivalent to INCR with EXPIRE in Redis. Every key has its own windows without numbers, so counts of
data centers cannot be added.
"""

from collections.abc import Sequence

from ringfence.limiter.reference.counter import Counter
from ringfence.limiter.reference.window import Window, WindowScheme
from ringfence.limiter.serialization import checked, fitting, units_in

__all__ = ["FirstHitWindow", "FirstHitWindowScheme"]


class FirstHitWindowScheme(WindowScheme):
    """Values derived from the limit of a window that starts with the first hit of a key."""

    __slots__ = ()

    def window(self, now: int) -> tuple[int, int]:
        """Return a window that starts at `now`: its first instant, and the first instant after
        it."""
        return now, now + self.limit.period_ns

    def open(self, now: int, used: int = 0) -> "FirstHitWindow":
        """Create a counter with `used` units in a window that starts now; without units, no window
        has started."""
        start, end = self.window(now) if used else (now, now)
        return FirstHitWindow(self, start, end, used)

    def restore(self, state: Sequence[int], now: int) -> "FirstHitWindow":
        """Restore a counter from the age of its window and its count."""
        age_ns, count = checked(state, 2)
        units_in([count])
        return FirstHitWindow(self, *self.window(now - age_ns), count)

    def adopt(self, counter: Counter, now: int) -> Counter:
        """Convert a counter of another limit: keep its window and count if both windows have the
        same length."""
        if (
            isinstance(counter, FirstHitWindow)
            and counter.scheme.limit.period_ns == self.limit.period_ns
        ):
            return FirstHitWindow(self, counter.start, counter.end, counter.count)
        return super().adopt(counter, now)


class FirstHitWindow(Window):
    """Count of one key in the window that its first hit started."""

    __slots__ = ()

    def state(self, now: int) -> list[int]:
        """Return the age of the window and its count."""
        return [max(0, now - self.start), self.count]

    def charge(self, units: int, now: int, age_ns: int) -> None:
        """Count units in the current window, or start a window at the time of the charge.

        Units from shortly before the current window count in it. Units that are a period old belong
        to an expired window and are ignored.
        """
        if age_ns >= self.scheme.limit.period_ns:
            return
        if now < self.end:
            self.count += fitting(units, self.count)
        else:
            self.start, self.end = self.scheme.window(now - age_ns)
            self.count = fitting(units, 0)
