"""Scheduler of tasks, without a clock and without I/O: tasks, futures, cancel scopes, task groups.

A subclass adds the clock and the loop that runs what is ready: `caller_loop` for blocking clients,
and the scheduler of simulations. Ready tasks run in the order in which they became ready.
Cancellation follows trio: inside a cancelled scope, each wait raises `Cancelled` until the block
ends.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from math import inf
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar, TypeVarTuple, cast

from ringfence.runtime.interface import TimedCall

__all__ = ["Cancelled", "Scheduler", "Scope", "Task", "TaskOwner"]

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")


class Cancelled(BaseException):
    """Exception that is raised in a task whose scope is cancelled."""


class _Future(Generic[_T]):
    """Result that is set later and that one task waits for."""

    __slots__ = ("_is_done", "_result", "_task")

    def __init__(self) -> None:
        self._is_done = False
        self._task: Task | None = None

    def done(self) -> bool:
        """Return whether the result is set or the wait was cancelled."""
        return self._is_done

    def set_result(self, result: _T) -> None:
        """Set the result and wake the task."""
        self._result = result
        self._is_done = True
        if self._task is not None:
            self._task.make_ready()

    def resolve(self) -> None:
        """Wake the waiting task without setting a result."""
        if not self._is_done:
            self.set_result(cast(_T, None))

    def park(self, task: "Task") -> None:
        """Register the task that waits for the result."""
        if self._is_done:
            task.make_ready()
        else:
            self._task = task

    def cancel(self) -> None:
        """Cancel the wait for the result."""
        self._is_done, self._task = True, None

    def __await__(self) -> "Generator[_Future[_T], None, _T]":
        if not self._is_done:
            yield self
        return self._result


class _Yield:
    """Checkpoint: the task continues after the other tasks that are ready."""

    def park(self, task: "Task") -> None:
        """Queue the task to run again."""
        task.make_ready()

    def cancel(self) -> None:
        """Do nothing, because a checkpoint does not wait."""

    def __await__(self) -> "Generator[_Yield, None, None]":
        yield self


class TaskOwner(Protocol):
    """Receiver of the end of a task: a task group, or the code that started the task."""

    def ended(self, task: "Task", failure: BaseException | None, value: object) -> None:
        """Receive the exception with which a task ended, or None and the task's return value."""


class Task:
    """Running coroutine with its innermost cancel scope."""

    __slots__ = (
        "_coroutine",
        "_error",
        "_parked_at",
        "_scheduler",
        "is_shielded",
        "owner",
        "scope",
    )

    def __init__(
        self,
        scheduler: "Scheduler",
        coroutine: Coroutine[Any, Any, object],
        scope: "Scope",
        owner: TaskOwner,
    ) -> None:
        self._scheduler = scheduler
        self._coroutine = coroutine
        self._error: BaseException | None = None
        self._parked_at: _Future[Any] | _Yield | None = None
        """Future of the current wait; None while the task is ready or runs."""
        self.scope = scope
        self.owner = owner
        self.is_shielded = False
        """Whether the current wait ignores a cancellation of the task."""
        scope.tasks[self] = None

    def make_ready(self) -> None:
        """Queue the task to run in the next round."""
        self._parked_at = None
        self._scheduler.call_soon(self.step)

    def cancel(self) -> None:
        """Raise `Cancelled` in the task at the point where it waits, if it waits."""
        if self._parked_at is not None and not self.is_shielded:
            self._parked_at.cancel()
            self._error = Cancelled()
            self.make_ready()

    def step(self) -> None:
        """Run the task until it waits or ends."""
        self._scheduler.task = self
        error, self._error = self._error, None
        try:
            if error is None:
                parked_at = self._coroutine.send(None)
            else:
                parked_at = self._coroutine.throw(error)
        except StopIteration as end:
            self._end(None, end.value)
        except BaseException as failure:
            if self._scheduler.is_interrupt(failure):
                raise
            self._end(failure, None)
        else:
            self._parked_at = parked_at
            if self.scope.is_cancelled:
                self.cancel()
            if self._parked_at is not None:
                parked_at.park(self)

    def _end(self, failure: BaseException | None, value: object) -> None:
        self.scope.tasks.pop(self, None)
        self.owner.ended(self, failure, value)


class Scope:
    """Cancel scope; all scopes form a tree with the scheduler's scope as its root."""

    def __init__(
        self, scheduler: "Scheduler", *, seconds: float = inf, shield: bool = False
    ) -> None:
        self._scheduler = scheduler
        self._seconds = seconds
        self.shield = shield
        """Whether outer cancellations do not affect the scope."""
        self._timer: TimedCall | None = None
        self._parent: Scope | None = None
        self._owner: Task | None = None
        self._children: dict[Scope, None] = {}
        self.tasks: dict[Task, None] = {}
        """Tasks that have this scope as their innermost one."""
        self.is_cancelled = False
        """Whether waits inside raise `Cancelled`."""
        self._cancel_called = False
        self.cancelled_caught = False

    def cancel(self) -> None:
        """Cancel all code inside the scope."""
        self._cancel_called = True
        self._spread()

    def _spread(self) -> None:
        if self.is_cancelled:
            return
        self.is_cancelled = True
        for child in list(self._children):
            if not child.shield:
                child._spread()
        for task in list(self.tasks):
            task.cancel()

    def attach(self, parent: "Scope") -> None:
        """Add the scope to the tree of scopes."""
        self._parent = parent
        parent._children[self] = None
        if self._cancel_called or (parent.is_cancelled and not self.shield):
            self._spread()

    def detach(self) -> None:
        """Remove the scope from the tree of scopes."""
        if self._parent is not None:
            self._parent._children.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def __enter__(self) -> "Scope":
        scheduler = self._scheduler
        task = self._owner = scheduler.running()
        outer = task.scope
        outer.tasks.pop(task, None)
        task.scope = self
        self.tasks[task] = None
        self.attach(outer)
        if self._seconds <= 0:
            self.cancel()
        elif self._seconds < inf:
            self._timer = scheduler.call_at(scheduler.current_time() + self._seconds, self.cancel)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        task, outer = self._owner, self._parent
        assert task is not None
        assert outer is not None
        self.detach()
        self.tasks.pop(task, None)
        task.scope = outer
        outer.tasks[task] = None
        is_outer = outer.is_cancelled and not self.shield
        if error is None or not self._cancel_called or is_outer:
            return False
        if isinstance(error, Cancelled):
            self.cancelled_caught = True
            return True
        if isinstance(error, BaseExceptionGroup):
            ours, others = error.split(Cancelled)
            self.cancelled_caught = ours is not None
            if ours is not None and others is not None:
                raise others
        return False


class _Status:
    """Implementation of `TaskStatus` for a task that starts in one group and continues in
    another."""

    def __init__(self, begins_in: "_TaskGroup", goes_on_in: "_TaskGroup") -> None:
        self.value: Any = None
        self.is_started = False
        self._begins_in = begins_in
        self._goes_on_in = goes_on_in

    def started(self, value: object = None) -> None:
        """Make the call of `start` return `value`; this has no effect after that call was
        cancelled."""
        if not self.is_started and not self._begins_in.cancel_scope.is_cancelled:
            self.is_started, self.value = True, value
            self._begins_in.hand_over(self._goes_on_in)


class _TaskGroup(AbstractAsyncContextManager["_TaskGroup"]):
    """Group of tasks; its block ends when all of them have ended."""

    def __init__(self, scheduler: "Scheduler") -> None:
        self._scheduler = scheduler
        self.cancel_scope = Scope(scheduler)
        self._tasks: dict[Task, Scope] = {}
        """Tasks with the scope in which each began."""
        self._errors: list[BaseException] = []
        self._is_cancelled = False
        """Whether a task of the block ended by a cancellation."""
        self._empty: _Future[None] | None = None

    def start_soon(self, task: Callable[[*_Args], Awaitable[object]], *args: *_Args) -> None:
        """Start a task in this task group."""
        self._start(task(*args), self.cancel_scope)

    async def start(self, task: Callable[..., Awaitable[object]], *args: object) -> Any:
        """Start a task; return what it passes to `task_status.started`."""
        try:
            async with _TaskGroup(self._scheduler) as begins_in:
                status = _Status(begins_in, self)
                scope = Scope(self._scheduler)
                scope.attach(begins_in.cancel_scope)
                begins_in._start(task(*args, task_status=status), scope)
        except BaseExceptionGroup as errors:
            if len(errors.exceptions) == 1:
                raise errors.exceptions[0] from None
            raise
        if not status.is_started:
            raise RuntimeError("the task ended before it was started")
        return status.value

    def _start(self, coroutine: Awaitable[object], scope: Scope) -> None:
        task = Task(self._scheduler, cast("Coroutine[Any, Any, object]", coroutine), scope, self)
        self._tasks[task] = scope
        task.make_ready()

    def hand_over(self, other: "_TaskGroup") -> None:
        """Move the only task of this task group to another task group."""
        task, scope = self._tasks.popitem()
        scope.detach()
        scope.attach(other.cancel_scope)
        task.owner = other
        other._tasks[task] = scope
        self._note_empty()

    def ended(self, task: Task, failure: BaseException | None, value: object) -> None:
        """Record the end of a task; its error cancels the other tasks of the group."""
        scope = self._tasks.pop(task)
        if scope is not self.cancel_scope:
            scope.detach()
        self._fail(failure)
        self._note_empty()

    def _note_empty(self) -> None:
        if not self._tasks and self._empty is not None:
            self._empty.resolve()

    def _fail(self, failure: BaseException | None) -> None:
        cancelled: BaseException | None
        if isinstance(failure, BaseExceptionGroup):
            cancelled, failure = failure.split(Cancelled)
        else:
            cancelled = failure if isinstance(failure, Cancelled) else None
        if cancelled is not None:
            self._is_cancelled = True
        if failure is not None and failure is not cancelled:
            self._errors.append(failure)
            self.cancel_scope.cancel()

    async def __aenter__(self) -> "_TaskGroup":
        self.cancel_scope.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        scope, task = self.cancel_scope, self._scheduler.running()
        if error is not None:
            self._fail(error)
            scope.cancel()
        task.is_shielded = True
        if self._tasks:
            self._empty = _Future()
            await self._empty
        else:
            await _Yield()
        task.is_shielded = False
        left = self._left()
        if not scope.__exit__(None, left, None) and left is not None:
            raise left
        return True

    def _left(self) -> BaseException | None:
        """Return the exception with which the block of a task group ends; None if there is none."""
        cancelled = [Cancelled()] if self._is_cancelled else []
        if self._errors:
            return BaseExceptionGroup("errors of a task group", [*self._errors, *cancelled])
        return cancelled[0] if cancelled else None


class Scheduler(ABC):
    """Runtime without a clock: it queues the tasks that are ready, and a subclass runs them."""

    def __init__(self) -> None:
        self.task: Task | None = None
        """Task that runs now or ran last."""
        self._ready: deque[Callable[[], object]] = deque()

    def running(self) -> Task:
        """Return the task that is running now."""
        assert self.task is not None
        return self.task

    def is_interrupt(self, error: BaseException) -> bool:
        """Return whether an exception in a task interrupts the scheduler itself; never, unless a
        subclass runs in threads of the application."""
        return False

    @abstractmethod
    def current_time(self) -> float:
        """Return the monotonic time in seconds."""

    @abstractmethod
    def call_at(self, when: float, call: Callable[[], object]) -> TimedCall:
        """Schedule a call for an instant, or for now if that instant has passed."""

    def call_soon(self, call: Callable[[], object]) -> None:
        """Schedule a call after the tasks that are ready now."""
        self._ready.append(call)

    def call_from_thread(self, call: Callable[[], object]) -> None:
        """Schedule a call, from any thread that may exist beside this scheduler."""
        self._ready.append(call)

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds` on the clock of this scheduler."""
        if seconds <= 0:
            await _Yield()
            return
        future: _Future[None] = _Future()
        if seconds == inf:
            await future
            return
        timer = self.call_at(self.current_time() + seconds, future.resolve)
        try:
            await future
        except BaseException:
            timer.cancel()
            raise

    async def checkpoint(self) -> None:
        """Let other tasks run; raise if the caller is cancelled."""
        await _Yield()

    def move_on_after(self, seconds: float, *, shield: bool) -> Scope:
        """Create a scope that is cancelled after `seconds`."""
        return Scope(self, seconds=seconds, shield=shield)

    def open_task_group(self) -> _TaskGroup:
        """Create a task group of this scheduler."""
        return _TaskGroup(self)

    def new_future(self) -> _Future[Any]:
        """Create a future for one waiting task."""
        return _Future()

    def cancelled_error(self) -> type[BaseException]:
        """Return the exception that a cancelled wait raises."""
        return Cancelled
