"""Heap of timers; each timer can be moved or cancelled.

Timers with equal times fire in the order in which they were set. `ringfence.runtime.timers` holds
calls; this core has no callbacks and imports nothing from `ringfence`, so its timers are values.
"""

from enum import IntEnum, auto
from heapq import heapify, heappop, heappush
from typing import TypeAlias

__all__ = ["Due", "Timer", "Timers"]


class Due(IntEnum):
    """Kinds of timers of the membership state machine."""

    PROBE = auto()
    INDIRECT_PROBE = auto()
    PROBE_TIMEOUT = auto()
    NACK = auto()
    RELAY_END = auto()
    GOSSIP = auto()
    SUSPICION = auto()
    FORGET = auto()
    ANNOUNCE = auto()
    EXCHANGE = auto()
    JOIN = auto()
    DAMPING = auto()


Timer: TypeAlias = tuple[Due, str | int]
"""Kind and subject: the name of a member, the number of a probe, or a set of members."""


class Timers:
    """Set of timers; each timer has at most one time, in ns."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._current: dict[Timer, int] = {}
        self._number = 0

    def __contains__(self, timer: Timer) -> bool:
        return timer in self._current

    def set(self, timer: Timer, at: int) -> None:
        """Set a timer, or move it if it is already set."""
        self._number += 1
        self._current[timer] = self._number
        heappush(self._heap, (at, self._number, timer))
        self._drop_cancelled()
        if len(self._heap) > 2 * len(self._current) + 64:
            self._heap = [entry for entry in self._heap if self._current.get(entry[2]) == entry[1]]
            heapify(self._heap)

    def cancel(self, timer: Timer) -> None:
        """Cancel a timer, if it is set."""
        if self._current.pop(timer, None) is not None:
            self._drop_cancelled()

    def next_at(self) -> int | None:
        """Return the time of the earliest timer; None when none is set."""
        return self._heap[0][0] if self._heap else None

    def pop(self, now: int) -> Timer | None:
        """Remove and return one timer that is due at `now`; None when none is due."""
        at = self.next_at()
        if at is None or at > now:
            return None
        timer = heappop(self._heap)[2]
        del self._current[timer]
        self._drop_cancelled()
        return timer

    def _drop_cancelled(self) -> None:
        """Remove cancelled and moved timers from the top of the heap, so that its first entry is
        set."""
        heap, current = self._heap, self._current
        while heap and current.get(heap[0][2]) != heap[0][1]:
            heappop(heap)
