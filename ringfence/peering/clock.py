"""The limiter's clock: nanoseconds since the Unix epoch that never go back.

Windows are numbered from the epoch, so the count starts from the wall clock; from then on only the
monotonic clock moves it, so that a stepped or slewed wall clock cannot reopen a window.
"""

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Where an owner reads the time."""

    def now(self) -> int:
        """Nanoseconds since the Unix epoch, never less than before."""


class SystemClock:
    """The host's clock, read once, then counted on by its monotonic clock."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def now(self) -> int:
        """Nanoseconds since the Unix epoch, never less than before."""
        return self._offset + time.monotonic_ns()
