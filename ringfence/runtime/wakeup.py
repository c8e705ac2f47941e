"""Reusable wake-up of one trio task, for loops that wait repeatedly.

`Event` of `dispatch` is set once, serves several tasks and runs on each runtime. A transport waits
for each burst of packets, and a new event for each wait would cost more than the wait.
"""

from trio.lowlevel import (
    Abort,
    RaiseCancelT,
    Task,
    checkpoint,
    current_task,
    reschedule,
    wait_task_rescheduled,
)

__all__ = ["Wakeup"]


class Wakeup:
    """Wake-up signal for one waiting task; a signal before the wait is not lost."""

    _task: Task | None = None
    _woken = False

    def wake(self) -> None:
        """Resume the task that waits; it runs after all tasks that are ready now."""
        task, self._task = self._task, None
        if task is None:
            self._woken = True
        else:
            reschedule(task)

    async def wait(self) -> None:
        """Wait until `wake` is called, unless it was called since the last wait.

        Other tasks run in both cases, as at a checkpoint of trio.
        """
        if self._woken:
            await checkpoint()
        else:
            self._task = current_task()
            await wait_task_rescheduled(self._abort)
        self._woken = False

    def _abort(self, _: RaiseCancelT) -> Abort:
        self._task = None
        return Abort.SUCCEEDED
