"""Heap of scheduled calls in order of time, for transports and the timed calls of a runtime.

Three other modules keep timers in another way. Gossip sets its timers by name (`gossip.timers`). A
QUIC connection moves its timer with each packet, so the connection itself has its deadline
(`connection_table`). A link checks all its batches with one timer (`peering.link.timeouts`).
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

__all__ = ["Planned", "Timers"]


class Planned:
    """Scheduled call, which can be cancelled."""

    __slots__ = ("call", "when")

    def __init__(self, when: float, call: Callable[[], object]) -> None:
        self.when = when
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Cancel the scheduled call; this has no effect when the call was already made."""
        self.call = None

    def run(self) -> None:
        """Make the call, unless it was cancelled."""
        if self.call is not None:
            self.call()


class Timers:
    """Queue of scheduled calls, in order of time; calls for the same time keep their order."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Planned]] = []
        self._order = count()

    def plan(self, when: float, call: Callable[[], object]) -> Planned:
        """Schedule a call for the instant `when`."""
        planned = Planned(when, call)
        if len(self._heap) % 256 == 255:
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapify(self._heap)
        heappush(self._heap, (when, next(self._order), planned))
        return planned

    def next_deadline(self) -> float | None:
        """Return the instant of the earliest scheduled call; None if there is none."""
        while self._heap and self._heap[0][2].call is None:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now: float) -> list[Planned]:
        """Remove and return the scheduled calls that are due; each can be cancelled until it is
        made."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heappop(self._heap)[2])
        return due
