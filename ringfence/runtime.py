"""Runtime interface of nodes and clients: clock, events, time limits and task groups.

A node runs on trio, an embedded client on trio or asyncio, and a simulation of both on a
deterministic scheduler. All of them call the functions of this module, which use the runtime of
the running task.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Protocol, TypeVar, TypeVarTuple, cast

import anyio
import anyio.lowlevel
import trio
from trio.lowlevel import (
    Abort,
    RaiseCancelT,
    current_task,
    current_trio_token,
    in_trio_run,
    reschedule,
    wait_task_rescheduled,
)

__all__ = [
    "TASK_STATUS_IGNORED",
    "CancelScope",
    "Event",
    "Future",
    "Runtime",
    "TaskGroup",
    "TaskStatus",
    "checkpoint",
    "current_time",
    "move_on_after",
    "new_future",
    "open_task_group",
    "resolve_future",
    "run_on",
    "sleep",
    "thread_safe_caller",
]

_Args = TypeVarTuple("_Args")
_T = TypeVar("_T")
_T_contra = TypeVar("_T_contra", contravariant=True)


class TaskStatus(Protocol[_T_contra]):
    """Reports that a task, begun by `TaskGroup.start`, is ready."""

    def started(self, value: _T_contra | None = None) -> None:
        """Let `TaskGroup.start` return `value`."""


TASK_STATUS_IGNORED: TaskStatus[Any] = anyio.TASK_STATUS_IGNORED
"""Default `task_status` of a task, for callers of `TaskGroup.start_soon`."""


class CancelScope(Protocol):
    """Block of code that can be cancelled and may have a deadline."""

    @property
    def cancelled_caught(self) -> bool:
        """Whether the cancellation of this scope ended the block."""

    def cancel(self) -> None:
        """Cancel the block."""

    def __enter__(self) -> "CancelScope": ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> bool | None: ...


class TaskGroup(Protocol):
    """Block that ends when all tasks that it started have ended."""

    @property
    def cancel_scope(self) -> CancelScope:
        """Scope of all tasks of the group."""

    def start_soon(self, task: Callable[[*_Args], Awaitable[object]], /, *args: *_Args) -> None:
        """Start a task."""

    async def start(self, task: Callable[..., Awaitable[object]], /, *args: object) -> Any:
        """Start a task that takes `task_status`; return what it passes to `started`."""


class Future(Protocol[_T]):
    """Result that one task waits for. The runtimes other than trio have it."""

    def done(self) -> bool:
        """Return whether the result is set or the wait was cancelled."""

    def set_result(self, result: _T, /) -> None:
        """Set the result and wake the task."""

    def __await__(self) -> Generator[Any, None, _T]: ...


class Runtime(Protocol):
    """Scheduler that replaces trio and asyncio while `run_on` lasts."""

    def current_time(self) -> float:
        """Return monotonic seconds."""

    async def sleep(self, seconds: float) -> None:
        """Wait `seconds`."""

    async def checkpoint(self) -> None:
        """Let other tasks run; raise if the caller is cancelled."""

    def move_on_after(self, seconds: float, *, shield: bool) -> CancelScope:
        """Make a scope that is cancelled after `seconds`."""

    def open_task_group(self) -> AbstractAsyncContextManager[TaskGroup]:
        """Make a task group."""

    def new_future(self) -> Future[Any]:
        """Make a future."""

    def call_soon(self, call: Callable[[], object], /) -> None:
        """Call `call` once the tasks that are ready now have run."""


class _OfThread(threading.local):
    runtime: Runtime | None = None


_of_thread = _OfThread()


@contextmanager
def run_on(runtime: Runtime) -> Iterator[None]:
    """Use `runtime` for all calls of this thread outside trio while the block lasts."""
    before, _of_thread.runtime = _of_thread.runtime, runtime
    try:
        yield
    finally:
        _of_thread.runtime = before


def current_time() -> float:
    """Return the monotonic seconds of the runtime; works in callbacks outside any task, too."""
    if in_trio_run():
        return trio.current_time()
    runtime = _of_thread.runtime
    return asyncio.get_running_loop().time() if runtime is None else runtime.current_time()


async def sleep(seconds: float) -> None:
    """Wait `seconds`."""
    if in_trio_run():
        await trio.sleep(seconds)
    else:
        runtime = _of_thread.runtime
        await (anyio.sleep(seconds) if runtime is None else runtime.sleep(seconds))


async def checkpoint() -> None:
    """Let other tasks run; raise if the caller is cancelled."""
    if in_trio_run():
        await trio.lowlevel.checkpoint()
    else:
        runtime = _of_thread.runtime
        await (anyio.lowlevel.checkpoint() if runtime is None else runtime.checkpoint())


def move_on_after(seconds: float, *, shield: bool = False) -> CancelScope:
    """Make a scope that is cancelled after `seconds`; `shield` keeps outer cancellations out."""
    if in_trio_run():
        return trio.move_on_after(max(0.0, seconds), shield=shield)
    runtime = _of_thread.runtime
    if runtime is not None:
        return runtime.move_on_after(seconds, shield=shield)
    return anyio.move_on_after(seconds, shield=shield)


def open_task_group() -> AbstractAsyncContextManager[TaskGroup]:
    """Make a task group: `async with open_task_group() as tasks`."""
    if in_trio_run():
        return trio.open_nursery()
    runtime = _of_thread.runtime
    if runtime is not None:
        return runtime.open_task_group()
    return cast(AbstractAsyncContextManager[TaskGroup], anyio.create_task_group())


def new_future() -> Future[Any]:
    """Make a future of asyncio or of the runtime set by `run_on`; trio has none."""
    runtime = _of_thread.runtime
    if runtime is None:
        return asyncio.get_running_loop().create_future()
    return runtime.new_future()


def thread_safe_caller() -> Callable[[Callable[[], object]], object]:
    """Return a function by which any thread can have this runtime make a call."""
    if in_trio_run():
        return current_trio_token().run_sync_soon
    runtime = _of_thread.runtime
    if runtime is None:
        return asyncio.get_running_loop().call_soon_threadsafe
    return runtime.call_soon


class Event:
    """Flag that tasks of one runtime wait for; once set, it stays set."""

    __slots__ = ("_is_set", "_wakes")

    def __init__(self) -> None:
        self._is_set = False
        self._wakes: dict[object, Callable[[], object]] = {}
        """By task or future, what wakes each waiter."""

    def is_set(self) -> bool:
        """Return whether `set` was called."""
        return self._is_set

    def set(self) -> None:
        """Wake all tasks that wait."""
        if not self._is_set:
            self._is_set = True
            wakes, self._wakes = self._wakes, {}
            for wake in wakes.values():
                wake()

    async def wait(self) -> None:
        """Wait until the event is set; let other tasks run in any case."""
        if self._is_set:
            await checkpoint()
        elif in_trio_run():
            task = current_task()
            self._wakes[task] = partial(reschedule, task)
            await wait_task_rescheduled(partial(self._abort, task))
        else:
            future = new_future()
            self._wakes[future] = partial(resolve_future, future)
            try:
                await future
            finally:
                self._wakes.pop(future, None)

    def _abort(self, task: object, _: RaiseCancelT) -> Abort:
        del self._wakes[task]
        return Abort.SUCCEEDED


def resolve_future(future: Future[None]) -> None:
    """Wake the task that waits for a future, unless it waits no longer."""
    if not future.done():
        future.set_result(None)
