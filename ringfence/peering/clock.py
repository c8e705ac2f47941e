"""The limiter's clock: nanoseconds since the Unix epoch that never go back.

Windows are numbered from the epoch, so the count starts from the wall clock; from then on only the
monotonic clock moves it, so that a stepped or slewed wall clock cannot reopen a window.
"""

import asyncio
import time
from typing import Protocol

import trio
from trio.lowlevel import in_trio_run

__all__ = ["Clock", "SystemClock", "loop_time"]


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


def loop_time() -> float:
    """The event loop's monotonic seconds, as `anyio.current_time`, but also where asyncio calls us
    outside of any task."""
    return trio.current_time() if in_trio_run() else asyncio.get_running_loop().time()
