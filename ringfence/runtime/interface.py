"""Interface of a runtime: the functions of trio, asyncio or a simulation that Ringfence needs."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Protocol, TypeVar, TypeVarTuple

__all__ = [
    "CancelScope",
    "Future",
    "Runtime",
    "TaskGroup",
    "TaskStatus",
    "TimedCall",
    "TimedCalls",
]

_Args = TypeVarTuple("_Args")
_T = TypeVar("_T")
_T_contra = TypeVar("_T_contra", contravariant=True)


class TaskStatus(Protocol[_T_contra]):
    """Object by which a task reports to `TaskGroup.start` that it is ready."""

    def started(self, value: _T_contra | None = None) -> None:
        """Report that the task is ready; `TaskGroup.start` then returns `value`."""


class CancelScope(Protocol):
    """Block of code that can be cancelled and may have a deadline."""

    shield: bool
    """Whether outer cancellations do not affect the block."""

    @property
    def cancelled_caught(self) -> bool:
        """Whether the block ended because this scope was cancelled."""

    def cancel(self) -> None:
        """Cancel the block of this scope."""

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
        """Start a task in this group."""

    async def start(self, task: Callable[..., Awaitable[object]], /, *args: object) -> Any:
        """Start a task that has an argument `task_status`; return what it passes to `started`."""


class Future(Protocol[_T]):
    """Result that one task can wait for. All runtimes except trio have futures."""

    def done(self) -> bool:
        """Return whether the result of the future is set or the wait for it was cancelled."""

    def set_result(self, result: _T, /) -> None:
        """Set the result of the future, and wake the task that waits for it."""

    def __await__(self) -> Generator[Any, None, _T]: ...


class TimedCall(Protocol):
    """Scheduled function call, which can be cancelled; `TimedCalls.call_at` returns it."""

    def cancel(self) -> None:
        """Cancel the scheduled call; this has no effect when the call was already made."""


class TimedCalls(Protocol):
    """Scheduler of calls at instants of the runtime's clock."""

    def call_at(self, when: float, call: Callable[[], object], /) -> TimedCall:
        """Schedule `call` for the instant `when`."""

    def call_soon(self, call: Callable[[], object], /) -> object:
        """Schedule `call` to run after the tasks that are ready now."""


class Runtime(TimedCalls, Protocol):
    """Interface of a scheduler that replaces trio and asyncio while `run_on` lasts."""

    def current_time(self) -> float:
        """Return the monotonic time in seconds."""

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds` on the clock of this runtime."""

    async def checkpoint(self) -> None:
        """Let other tasks run; raise if the caller is cancelled."""

    def move_on_after(self, seconds: float, *, shield: bool) -> CancelScope:
        """Create a scope that is cancelled after `seconds`."""

    def open_task_group(self) -> AbstractAsyncContextManager[TaskGroup]:
        """Create a task group of this runtime."""

    def new_future(self) -> Future[Any]:
        """Create a future of this runtime."""

    def cancelled_error(self) -> type[BaseException]:
        """Return the exception that a cancelled wait raises."""

    def call_from_thread(self, call: Callable[[], object], /) -> object:
        """Schedule a call, from any thread."""
