"""Containment of internal errors, so that an exception in one request, message or timer does not
end the node.

Decides what continues after an internal error: the next call, task or round. The caller decides
what to refuse because of it. Cancellation, interrupts and exits are not contained.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVarTuple

from ringfence import runtime
from ringfence.peering.internal_errors import InternalErrors

__all__ = ["Containment"]

_MIN_PAUSE = 0.1
_MAX_PAUSE = 5.0
"""Seconds until a periodic task that failed is started again, doubling from least to most."""

_Args = TypeVarTuple("_Args")


class Containment(InternalErrors):
    """Runs the calls and tasks of a node, so that an error in one does not end the others."""

    def call(self, place: str, call: Callable[[*_Args], object], *args: *_Args) -> bool:
        """Call a function; return False when it raised an internal error."""
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001 - that is what is contained.
            self.failed(place, error)
            return False
        return True

    async def run(
        self, place: str, task: Callable[[*_Args], Awaitable[object]], *args: *_Args
    ) -> bool:
        """Run a task to its end; return False when it raised an internal error."""
        try:
            await task(*args)
        except Exception as error:  # noqa: BLE001 - that is what is contained.
            self.failed(place, error)
            return False
        except BaseExceptionGroup as group:
            ours, others = group.split(Exception)
            if ours is not None:
                self.failed(place, ours)
            if others is not None:
                raise others from None
            return False
        return True

    async def supervise(
        self, place: str, task: Callable[[*_Args], Awaitable[object]], *args: *_Args
    ) -> None:
        """Run a task that should never end; restart it after a back-off when it fails."""
        pause = _MIN_PAUSE
        while True:
            began = runtime.current_time()
            if await self.run(place, task, *args):
                return
            if runtime.current_time() - began > _MAX_PAUSE:
                pause = _MIN_PAUSE
            await runtime.sleep(pause)  # A task that fails at once must not fill the log.
            pause = min(_MAX_PAUSE, 2 * pause)
