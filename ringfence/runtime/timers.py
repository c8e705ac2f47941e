"""Timed calls in the order of their instants, and the task that makes them on trio."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

import trio

__all__ = ["Planned", "Timers", "TrioTimedCalls"]


class Planned:
    """One call; a `Timer`."""

    __slots__ = ("call", "when")

    def __init__(self, when: float, call: Callable[[], object]) -> None:
        self.when = when
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Do not make the call; harmless when already made."""
        self.call = None


class Timers:
    """The calls in order of time; those for the same instant in order of planning."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Planned]] = []
        self._order = count()

    def plan(self, when: float, call: Callable[[], object]) -> Planned:
        """Add a call for `when`."""
        planned = Planned(when, call)
        if len(self._heap) % 256 == 255:
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapify(self._heap)
        heappush(self._heap, (when, next(self._order), planned))
        return planned

    def next_deadline(self) -> float | None:
        """When the first call is due."""
        while self._heap and self._heap[0][2].call is None:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now: float) -> list[Planned]:
        """Remove what is due; cancelling one still helps until its call has been made."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heappop(self._heap)[2])
        return due


class TrioTimedCalls:
    """`TimedCalls` of a task on trio."""

    def __init__(self) -> None:
        self._timers = Timers()
        self._soon: list[Callable[[], object]] = []
        self._wakeup = trio.Event()
        self._sleeping: trio.CancelScope | None = None

    async def run(self) -> None:
        """Make the calls until cancelled."""
        while True:
            deadline = self._timers.next_deadline()
            with trio.CancelScope(deadline=inf if deadline is None else deadline) as scope:
                self._sleeping = scope
                await self._wakeup.wait()
            self._wakeup = trio.Event()
            calls, self._soon = self._soon, []
            for call in calls:
                call()
            for planned in self._timers.take_due(trio.current_time()):
                if planned.call is not None:
                    planned.call()

    def call_at(self, when: float, call: Callable[[], object]) -> Planned:
        """Call `call` at `when`."""
        if self._sleeping is not None and when < self._sleeping.deadline:
            self._sleeping.deadline = when
        return self._timers.plan(when, call)

    def call_soon(self, call: Callable[[], object]) -> None:
        """Call `call` once the tasks that are ready now have run."""
        self._soon.append(call)
        self._wakeup.set()
