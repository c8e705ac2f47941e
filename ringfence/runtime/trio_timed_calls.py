"""Task that runs scheduled function calls on trio. Only programs on trio import this module."""

from collections.abc import Callable
from math import inf

import trio

from ringfence.runtime.timers import Planned, Timers
from ringfence.runtime.wakeup import Wakeup

__all__ = ["TrioTimedCalls"]


class TrioTimedCalls:
    """Implementation of `TimedCalls` by a task on trio."""

    def __init__(self) -> None:
        self._timers = Timers()
        self._soon: list[Callable[[], object]] = []
        self._wakeup = Wakeup()

    async def run(self) -> None:
        """Run the scheduled calls when they are due, until this task is cancelled."""
        while True:
            deadline = self._timers.next_deadline()
            await self._wakeup.wait_until(inf if deadline is None else deadline)
            calls, self._soon = self._soon, []
            for call in calls:
                call()
            for planned in self._timers.take_due(trio.current_time()):
                planned.run()

    def call_at(self, when: float, call: Callable[[], object]) -> Planned:
        """Schedule `call` for the instant `when`."""
        if when < self._wakeup.deadline:
            self._wakeup.move_deadline(when)
        return self._timers.plan(when, call)

    def call_soon(self, call: Callable[[], object]) -> None:
        """Schedule `call` to run after the tasks that are ready now."""
        self._soon.append(call)
        self._wakeup.wake()
