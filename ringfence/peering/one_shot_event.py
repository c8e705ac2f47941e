"""How a task waits for its answer, when every microsecond counts, under trio and under asyncio.

`anyio.Event` does the same for many tasks and at several times the cost; here one task waits once.
"""

import asyncio
from collections.abc import Callable

import trio
from trio.lowlevel import (
    Abort,
    RaiseCancelT,
    current_task,
    in_trio_run,
    reschedule,
    wait_task_rescheduled,
)

__all__ = ["OneShotEvent"]


class OneShotEvent:
    """Set once, by anyone on the same event loop; waited for by one task."""

    __slots__ = ("_wake", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._wake: Callable[[], object] | None = None

    def set(self) -> None:
        """Let the waiting task go on, now or when it comes to wait."""
        self.is_set = True
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    async def wait(self) -> None:
        """Wait until `set`; returns at once when it was."""
        if self.is_set:
            return
        if in_trio_run():
            task: trio.lowlevel.Task = current_task()
            self._wake = lambda: reschedule(task)
            await wait_task_rescheduled(self._abort)
        else:
            future = asyncio.get_running_loop().create_future()
            self._wake = lambda: _settle(future)
            await future

    def _abort(self, _: RaiseCancelT) -> Abort:
        self._wake = None
        return Abort.SUCCEEDED


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():  # The task may have been cancelled meanwhile.
        future.set_result(None)
