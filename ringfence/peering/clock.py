"""Clock of the limiter: nanoseconds since the Unix epoch that never decrease.

Windows are numbered from the epoch, so the clock starts from the wall clock. After that only the
monotonic clock advances it, so that a step of the wall clock cannot reopen a window.
"""

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Interface of the clock by which the owner of a key decides checks."""

    def now(self) -> int:
        """Return nanoseconds since the Unix epoch, never less than before."""


class SystemClock:
    """The host's wall clock at the start, advanced by its monotonic clock."""

    def __init__(self) -> None:
        self.offset = time.time_ns() - time.monotonic_ns()
        """Difference between `now` and the monotonic clock."""

    def now(self) -> int:
        """Return nanoseconds since the Unix epoch, never less than before."""
        return self.offset + time.monotonic_ns()
