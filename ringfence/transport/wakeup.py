"""How a trio task waits to be told to go on, when every microsecond counts.

Decides only that: one task, one waker. A `trio.Event` would have to be made anew for each round.
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
    """Wakes the one task that waits; remembers a call that came too early."""

    _task: Task | None = None
    _woken = False

    def wake(self) -> None:
        """Let the task go on, after all tasks that are ready now."""
        task, self._task = self._task, None
        if task is None:
            self._woken = True
        else:
            reschedule(task)

    async def wait(self) -> None:
        """Wait for a `wake` since the last wait. Always lets other tasks run."""
        if self._woken:
            await checkpoint()
        else:
            self._task = current_task()
            await wait_task_rescheduled(self._abort)
        self._woken = False

    def _abort(self, _: RaiseCancelT) -> Abort:
        self._task = None
        return Abort.SUCCEEDED
