"""Deterministic scheduler: a runtime whose clock jumps to the next timed call when no task can run.

It runs the tasks of `ringfence.runtime.tasks`, for coroutines that use no other runtime. Timed
calls run in the order of their times. Equal programs therefore have equal histories.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from ringfence.runtime import run_on, tasks
from simulations.runtimes.call_heap import CallHeap, PlannedCall

__all__ = ["Scheduler"]


class Scheduler(tasks.Scheduler):
    """Runtime that runs coroutines on virtual time, which starts at 0 seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._heap = CallHeap()
        self._has_ended = False
        self._failure: BaseException | None = None

    def run(self, main: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run `main` to its end, with this scheduler as the runtime."""
        with run_on(self):
            tasks.Task(self, main(), tasks.Scope(self), self).make_ready()
            ready, heap = self._ready, self._heap
            while not self._has_ended:
                while ready:
                    ready.popleft()()
                if self._has_ended:
                    break
                if not heap.entries:
                    raise RuntimeError("deadlock: every task waits for another one")
                when, call = heap.pop()
                if call is not None:
                    self._now = max(self._now, when)
                    call()
        if self._failure is not None:
            raise self._failure

    def ended(self, task: tasks.Task, failure: BaseException | None, value: object) -> None:
        """Record the result of the main task."""
        self._has_ended, self._failure = True, failure

    def current_time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def call_at(self, when: float, call: Callable[[], object]) -> PlannedCall:
        """Schedule a call for an instant, or for now if that instant has passed."""
        return self._heap.plan(when, call)
