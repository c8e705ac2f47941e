"""Event for one task that waits once, on the path of every check.

`runtime.Event` serves several tasks and always lets others run, which costs more.
"""

from collections.abc import Callable

from ringfence.runtime import new_future, on_trio, resolve_future

__all__ = ["OneShotEvent"]


class OneShotEvent:
    """Event that is set once and waited for by one task of the same event loop."""

    __slots__ = ("_wake", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._wake: Callable[[], object] | None = None

    def set(self) -> None:
        """Wake the waiting task; a task that waits later does not block."""
        self.is_set = True
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    async def wait(self) -> None:
        """Wait until `set` was called."""
        if self.is_set:
            return
        if on_trio.in_trio_run():
            task = on_trio.current_task()
            self._wake = lambda: on_trio.reschedule(task)
            await on_trio.wait_task_rescheduled(self._abort)
        else:
            future = new_future()
            self._wake = lambda: resolve_future(future)
            await future

    def _abort(self, _: on_trio.RaiseCancelT) -> on_trio.Abort:
        self._wake = None
        return on_trio.Abort.SUCCEEDED
