"""What falls due when: a heap of instants, each of which can be moved or forgotten.

Decides nothing but the order; equal instants come in the order they were set.
"""

from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import TypeAlias

__all__ = ["Due", "Timer", "Timers"]


class Due(IntEnum):
    """What there is to do."""

    PROBE = 1
    ASK_OTHERS = 2
    VERDICT = 3
    NACK = 4
    RELAY_END = 5
    GOSSIP = 6
    SUSPICION = 7
    FORGET = 8
    ANNOUNCE = 9
    EXCHANGE = 10
    JOIN = 11
    DAMPING = 12


Timer: TypeAlias = tuple[Due, str | int]
"""What to do, and for whom: a member's name, a probe's number, or which set of members."""


class Timers:
    """At most one instant, in ns, for each timer."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._current: dict[Timer, int] = {}
        self._number = 0

    def __contains__(self, timer: Timer) -> bool:
        return timer in self._current

    def set(self, timer: Timer, at: int) -> None:
        """Let the timer fall due at `at`, and no longer at the instant it had before."""
        self._number += 1
        self._current[timer] = self._number
        heappush(self._heap, (at, self._number, timer))
        if len(self._heap) > 2 * len(self._current) + 64:
            self._heap = [entry for entry in self._heap if self._current.get(entry[2]) == entry[1]]
            heapify(self._heap)

    def cancel(self, timer: Timer) -> None:
        """Forget a timer, set or not."""
        self._current.pop(timer, None)

    def next_at(self) -> int | None:
        """When the next timer falls due; None when none is set."""
        heap, current = self._heap, self._current
        while heap and current.get(heap[0][2]) != heap[0][1]:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop(self, now: int) -> Timer | None:
        """Take the next timer that is due by `now`."""
        at = self.next_at()
        if at is None or at > now:
            return None
        timer = heappop(self._heap)[2]
        del self._current[timer]
        return timer
