"""Functions for clock, events, time limits and task groups, which use the caller's runtime.

A node runs on trio, an embedded client on trio or asyncio, and a simulation of both on a
deterministic scheduler. All of them call the functions of this module.
"""

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import cache, partial
from math import inf
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.lowlevel

from ringfence.runtime import on_trio
from ringfence.runtime.interface import (
    CancelScope,
    Future,
    Runtime,
    TaskGroup,
    TaskStatus,
    TimedCalls,
)

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

__all__ = [
    "TASK_STATUS_IGNORED",
    "Event",
    "Signal",
    "cancelled_error",
    "checkpoint",
    "clock",
    "current_time",
    "current_runtime",
    "in_trio_run",
    "move_on_after",
    "new_future",
    "open_task_group",
    "open_timed_calls",
    "resolve_future",
    "run_on",
    "sleep",
    "swap_runtime",
    "thread_safe_caller",
]

TASK_STATUS_IGNORED: TaskStatus[Any] = anyio.TASK_STATUS_IGNORED
"""Default `task_status` of a task, for callers of `TaskGroup.start_soon`."""


class _OfThread(threading.local):
    runtime: Runtime | None = None


_of_thread = _OfThread()


@contextmanager
def run_on(runtime: Runtime) -> Iterator[None]:
    """Use `runtime` for all calls to this package from this thread, outside trio, during the
    block."""
    before, _of_thread.runtime = _of_thread.runtime, runtime
    try:
        yield
    finally:
        _of_thread.runtime = before


def swap_runtime(runtime: Runtime | None) -> Runtime | None:
    """Use `runtime` for all calls to this package from this thread from now on; return the one
    before.

    Unlike `run_on`, it costs next to nothing.
    """
    before, _of_thread.runtime = _of_thread.runtime, runtime
    return before


def current_runtime() -> Runtime | None:
    """Return the runtime that `run_on` or `swap_runtime` has set for this thread; None on trio and
    asyncio."""
    return _of_thread.runtime


@cache
def _loop_getter() -> Callable[[], "AbstractEventLoop"]:
    """Return `get_running_loop` of asyncio, which is imported only for its users: a node starts
    faster without it."""
    from asyncio import get_running_loop

    return get_running_loop


def _running_loop() -> "AbstractEventLoop":
    return _loop_getter()()


def in_trio_run() -> bool:
    """Return whether this thread is running trio; trio is not imported for that."""
    return on_trio.in_trio_run()


def current_time() -> float:
    """Return the monotonic time of the runtime in seconds, even in callbacks outside any task."""
    runtime = _of_thread.runtime
    if runtime is not None:
        return runtime.current_time()
    if on_trio.in_trio_run():
        return on_trio.trio.current_time()
    return _running_loop().time()


def clock() -> Callable[[], float]:
    """Return the clock function of the caller's runtime, for callers that read it often."""
    runtime = _of_thread.runtime
    if runtime is not None:
        return runtime.current_time
    return on_trio.trio.current_time if on_trio.in_trio_run() else _running_loop().time


async def sleep(seconds: float) -> None:
    """Wait for `seconds` on the clock of the caller's runtime."""
    runtime = _of_thread.runtime
    if runtime is not None:
        await runtime.sleep(seconds)
    elif on_trio.in_trio_run():
        await on_trio.trio.sleep(max(0.0, seconds))
    else:
        await anyio.sleep(seconds)


async def checkpoint() -> None:
    """Let other tasks run; raise if the caller is cancelled."""
    runtime = _of_thread.runtime
    if runtime is not None:
        await runtime.checkpoint()
    elif on_trio.in_trio_run():
        await on_trio.trio.lowlevel.checkpoint()
    else:
        await anyio.lowlevel.checkpoint()


def move_on_after(seconds: float, *, shield: bool = False) -> CancelScope:
    """Create a scope that is cancelled after `seconds`; with `shield`, outer cancellations do not
    affect it."""
    runtime = _of_thread.runtime
    if runtime is not None:
        return runtime.move_on_after(seconds, shield=shield)
    if on_trio.in_trio_run():
        return on_trio.trio.move_on_after(max(0.0, seconds), shield=shield)
    return anyio.move_on_after(seconds, shield=shield)


def open_task_group() -> AbstractAsyncContextManager[TaskGroup]:
    """Create a task group: `async with open_task_group() as tasks`."""
    runtime = _of_thread.runtime
    if runtime is not None:
        return runtime.open_task_group()
    if on_trio.in_trio_run():
        return on_trio.trio.open_nursery()
    return cast(AbstractAsyncContextManager[TaskGroup], anyio.create_task_group())


@asynccontextmanager
async def open_timed_calls() -> AsyncIterator[TimedCalls]:
    """Create a scheduler of timed calls: `async with open_timed_calls() as calls`."""
    if on_trio.in_trio_run():
        async with on_trio.trio.open_nursery() as nursery:
            from ringfence.runtime.trio_timed_calls import TrioTimedCalls

            calls = TrioTimedCalls()
            nursery.start_soon(calls.run)
            yield calls
            nursery.cancel_scope.cancel()
    else:
        runtime = _of_thread.runtime
        yield _running_loop() if runtime is None else runtime


def cancelled_error() -> type[BaseException]:
    """Return the exception that a cancelled wait raises in the caller's runtime."""
    runtime = None if on_trio.in_trio_run() else _of_thread.runtime
    return anyio.get_cancelled_exc_class() if runtime is None else runtime.cancelled_error()


def new_future() -> Future[Any]:
    """Create a future of asyncio or of the runtime set by `run_on`; trio has no futures."""
    runtime = _of_thread.runtime
    if runtime is None:
        return _running_loop().create_future()
    return runtime.new_future()


def thread_safe_caller() -> Callable[[Callable[[], object]], object]:
    """Return a function that any thread may call to run a callback in the caller's runtime."""
    if on_trio.in_trio_run():
        return on_trio.current_trio_token().run_sync_soon
    runtime = _of_thread.runtime
    if runtime is None:
        return _running_loop().call_soon_threadsafe
    return runtime.call_from_thread


class Event:
    """Flag for which tasks of one runtime can wait; once set, it stays set."""

    __slots__ = ("_is_set", "_wakes")

    def __init__(self) -> None:
        self._is_set = False
        self._wakes: dict[object, Callable[[], object]] = {}
        """Function that wakes each waiter, by task or future."""

    def is_set(self) -> bool:
        """Return whether `set` was called."""
        return self._is_set

    def set(self) -> None:
        """Set the event and wake all waiting tasks."""
        if not self._is_set:
            self._is_set = True
            wakes, self._wakes = self._wakes, {}
            for wake in wakes.values():
                wake()

    async def wait(self) -> None:
        """Wait until the event is set; other tasks run even if it is set already."""
        if self._is_set:
            await checkpoint()
        elif _of_thread.runtime is None and on_trio.in_trio_run():
            task = on_trio.current_task()
            self._wakes[task] = partial(on_trio.reschedule, task)
            await on_trio.wait_task_rescheduled(partial(self._abort, task))
        else:
            future = new_future()
            self._wakes[future] = partial(resolve_future, future)
            try:
                await future
            finally:
                self._wakes.pop(future, None)

    def _abort(self, task: object, _: on_trio.RaiseCancelT) -> on_trio.Abort:
        del self._wakes[task]
        return on_trio.Abort.SUCCEEDED


class Signal:
    """Wake-up signal for one task that waits repeatedly; a signal before the wait is not lost."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = Event()

    def set(self) -> None:
        """Wake the waiting task, or end its next wait at once."""
        self._event.set()

    async def wait(self, seconds: float = inf) -> None:
        """Wait for a signal for at most `seconds`; other tasks run in any case."""
        if seconds < inf:
            with move_on_after(seconds):
                await self._event.wait()
        else:
            await self._event.wait()
        self._event = Event()


def resolve_future(future: Future[None]) -> None:
    """Set the result of a future and wake the task that waits for it, unless the wait has ended."""
    if not future.done():
        future.set_result(None)
