"""Gathering of what several threads send, so that they share a frame."""

import time
from collections.abc import Callable

__all__ = ["Gathering"]

_LONGEST = 0.001
"""Longest time in seconds for which something waits to be sent."""


class Gathering:
    """Functions to be called when all waiting threads have added to what they will send."""

    def __init__(self) -> None:
        self.is_open = False
        """Whether the leader waits only briefly, so that functions can wait for it."""
        self._functions: list[Callable[[], object]] = []
        self._threads = 0
        """Number of threads that wait for the functions."""
        self._until = 0.0

    def add(self, function: Callable[[], object]) -> None:
        """Add a function for the leader to call."""
        if not self._functions:
            self._until = time.monotonic() + _LONGEST
        self._functions.append(function)

    def count_thread(self) -> None:
        """Count a thread that begins to wait; it may have added to what will be sent."""
        self._threads += bool(self._functions)

    def take(self, threads: int) -> list[Callable[[], object]]:
        """Remove and return the functions, if they are due or all `threads` wait for them."""
        if not self._functions:
            return []
        if self._threads < threads and time.monotonic() < self._until:
            return []
        functions, self._functions, self._threads = self._functions, [], 0
        return functions

    def limit(self, deadline: float) -> float:
        """Return when a leader that would wait until `deadline` must look again."""
        if self._functions:
            return min(deadline, self._until)
        return min(deadline, time.monotonic() + _LONGEST) if self.is_open else deadline
