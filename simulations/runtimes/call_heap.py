"""Heap of timed calls on virtual time, for the scheduler and for the clock of trio."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

__all__ = ["CallHeap", "PlannedCall"]

_MIN_CANCELLED = 1024
"""Cancelled calls that the heap may keep; above this it removes them when they are the majority."""


class PlannedCall:
    """Scheduled call, which can be cancelled."""

    __slots__ = ("_heap", "call")

    def __init__(self, heap: "CallHeap", call: Callable[[], object]) -> None:
        self._heap = heap
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Cancel the scheduled call; this has no effect when the call was already made."""
        if self.call is not None:
            self.call = None
            self._heap.cancelled += 1


class CallHeap:
    """Timed calls in order of time; calls for the same time keep their order."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, int, PlannedCall]] = []
        """Heap of time, number and call; it also contains cancelled calls."""
        self.cancelled = 0
        """Number of cancelled calls in the heap."""
        self._planned = 0

    def plan(self, when: float, call: Callable[[], object]) -> PlannedCall:
        """Add a call for the instant `when`."""
        if self.cancelled > _MIN_CANCELLED and 2 * self.cancelled > len(self.entries):
            self.entries[:] = [entry for entry in self.entries if entry[2].call is not None]
            heapify(self.entries)
            self.cancelled = 0
        planned = PlannedCall(self, call)
        self._planned += 1
        heappush(self.entries, (when, self._planned, planned))
        return planned

    def pop(self) -> tuple[float, Callable[[], object] | None]:
        """Remove the earliest call, which must exist; return its time and the call, or None if it
        was cancelled."""
        when, _, planned = heappop(self.entries)
        call, planned.call = planned.call, None
        if call is None:
            self.cancelled -= 1
        return when, call
