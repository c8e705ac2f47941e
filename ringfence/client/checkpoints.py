"""Checkpoints of cooperative multitasking, in calls that have nothing to wait for.

On trio, each call is a cancellation point. A full checkpoint, which lets other tasks run, takes as
long as a check in memory, so only every 32nd call has one.
"""

from collections.abc import Awaitable, Callable, Iterator
from math import inf
from typing import cast

from ringfence import runtime
from ringfence.runtime import on_trio

__all__ = ["Checkpoints"]

_CALLS_PER_CHECKPOINT = 32


class _Done:
    """Awaitable that completes without waiting; it costs less than a coroutine."""

    def __await__(self) -> Iterator[None]:
        return iter(())


_DONE = cast(Awaitable[None], _Done())


class Checkpoints:
    """Counter of calls: every 32nd call lets other tasks of the event loop run."""

    __slots__ = ("_calls", "_cancellation_point")

    def __init__(self, *, in_loop: bool = True) -> None:
        """With `in_loop=False`, there is no event loop and no other task, so no call is a
        checkpoint."""
        self._calls: float = 0 if in_loop else -inf
        self._cancellation_point: Callable[[], Awaitable[object]] = (
            self._first_call if in_loop else _return_done
        )

    def take(self) -> Awaitable[object]:
        """Count a call of the limiter. The caller must await the result, which raises if the
        calling task is cancelled."""
        self._calls += 1
        if self._calls < _CALLS_PER_CHECKPOINT:
            return self._cancellation_point()
        self._calls = 0
        return runtime.checkpoint()

    def _first_call(self) -> Awaitable[object]:
        """At the first call, choose the cancellation point that suits the running event loop:
        trio or asyncio."""
        if on_trio.in_trio_run():
            self._cancellation_point = on_trio.trio.lowlevel.checkpoint_if_cancelled
        else:
            self._cancellation_point = _return_done
        return self._cancellation_point()


def _return_done() -> Awaitable[object]:
    return _DONE
