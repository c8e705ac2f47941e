"""Containment: an exception in the handling of one request, message or timer ends no node.

Decides what goes on after an internal error: the next call, the next task, the next round. What is
refused because of it is for the caller to say. Cancellation, interrupts and exits pass.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVarTuple

import trio

from ringfence.client.internal_errors import InternalErrors

__all__ = ["Containment"]

_LEAST_PAUSE = 0.1
_MOST_PAUSE = 5.0
"""Seconds until a periodic task that failed is started again, doubling from least to most."""

_Args = TypeVarTuple("_Args")


class Containment(InternalErrors):
    """Runs calls and tasks of one node, each of which may fail alone."""

    def call(self, place: str, call: Callable[[*_Args], object], *args: *_Args) -> bool:
        """Make a call; False when it met an internal error."""
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001 - that is what is contained.
            self.failed(place, error)
            return False
        return True

    async def run(
        self, place: str, task: Callable[[*_Args], Awaitable[object]], *args: *_Args
    ) -> bool:
        """Run a task to its end; False when it met an internal error."""
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
        """Run a task that should not end; start it again, after a pause, when it failed."""
        pause = _LEAST_PAUSE
        while True:
            began = trio.current_time()
            if await self.run(place, task, *args):
                return
            if trio.current_time() - began > _MOST_PAUSE:
                pause = _LEAST_PAUSE
            await trio.sleep(pause)
            pause = min(_MOST_PAUSE, 2 * pause)
