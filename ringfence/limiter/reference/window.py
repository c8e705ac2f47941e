"""Base classes for windows whose count restarts from zero: a count, and the end of its window.

The subclasses in `fixed_window` and `first_hit` define when a window starts.
"""

from abc import abstractmethod

from ringfence.limiter.reference.counter import (
    ALLOWED,
    DENIED,
    NEVER,
    OVER_SOFT,
    Counter,
    Scheme,
    Verdict,
)

__all__ = ["Window", "WindowScheme"]


class WindowScheme(Scheme):
    """Values derived from the limit of a window: its boundaries, and the maximum count."""

    __slots__ = ()

    @abstractmethod
    def window(self, now: int) -> tuple[int, int]:
        """Return the window of a hit at `now`: its first instant, and the first instant after
        it."""


class Window(Counter):
    """Count of one key in the latest window that has a charge."""

    __slots__ = ("count", "end", "scheme", "start")

    def __init__(self, scheme: WindowScheme, start: int, end: int, count: int) -> None:
        self.scheme: WindowScheme = scheme
        self.start = start
        self.end = end
        self.count = count

    def check(self, cost: int, now: int) -> Verdict:
        """Count `cost` in the window of `now` if it fits within the limit."""
        scheme = self.scheme
        start, end, used = self.start, self.end, self.count
        if now >= end:
            start, end = scheme.window(now)
            used = 0
        wanted = cost or 1
        if used + wanted > scheme.ceiling:
            remaining = scheme.ceiling - used
            left = end - now if used else 0
            return (
                NEVER if wanted > scheme.ceiling else DENIED,
                remaining if remaining > 0 else 0,
                0 if wanted > scheme.ceiling else left,
                left,
                0,
                0,
            )
        if cost:
            used += cost
            self.start, self.end, self.count = start, end, used
        return (
            ALLOWED if used <= scheme.hard else OVER_SOFT,
            scheme.ceiling - used,
            0,
            end - now if used else 0,
            0,
            0,
        )

    def refund(self, cost: int, now: int, age_ns: int, slot_id: int) -> None:
        """Refund units from the window of `now`, if the charge was certainly made in it."""
        if max(now, self.start) - age_ns >= self.start:
            self.count = max(self.count - cost, 0)

    def used(self, now: int) -> int:
        """Return the units in the window that contains `now`."""
        return self.count if now < self.end else 0
