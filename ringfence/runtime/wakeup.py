"""Reusable wake-up of one trio task, for loops that wait repeatedly.

`Event` of `dispatch` is set once, serves several tasks and runs on each runtime. A transport waits
for each burst of packets, and a new event for each wait would cost more than the wait.
"""

from math import inf

from trio import CancelScope
from trio.lowlevel import (
    Abort,
    RaiseCancelT,
    Task,
    checkpoint,
    checkpoint_if_cancelled,
    current_task,
    reschedule,
    wait_task_rescheduled,
)

__all__ = ["Wakeup"]


class Wakeup:
    """Wake-up signal for one waiting task; a signal before the wait is not lost."""

    _task: Task | None = None
    _woken = False
    _scope: CancelScope | None = None
    deadline = -inf
    """Time when the wait ends without a signal; -inf when no task waits. To change it, call
    `move_deadline`."""

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
            self._woken = False
            await checkpoint()
        else:
            self._task = current_task()
            await wait_task_rescheduled(self._abort)

    async def wait_until(self, deadline: float) -> None:
        """Wait as `wait` does, but at most until `deadline`."""
        await checkpoint_if_cancelled()
        self.deadline = deadline
        with CancelScope(deadline=deadline) as self._scope:
            await self.wait()
        self._scope = None
        self.deadline = -inf

    def move_deadline(self, deadline: float) -> None:
        """Change the deadline of the present wait, if a task waits."""
        if self._scope is not None:
            self._scope.deadline = self.deadline = deadline

    def _abort(self, _: RaiseCancelT) -> Abort:
        task, self._task = self._task, None
        if task is not None and self._scope is not None and self._scope.cancel_called:
            # The deadline has passed. An exception would cost more than the rest of the wake-up.
            reschedule(task)
            return Abort.FAILED
        return Abort.SUCCEEDED
