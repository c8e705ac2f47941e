"""Call of the application: a task for which a thread waits, or whose result a future receives."""

import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import Generic, TypeVar, cast

from ringfence.runtime.tasks import Scheduler, Scope, Task

__all__ = ["Call"]

_Result = TypeVar("_Result")


class Call(Generic[_Result]):
    """Task in a scope that cancels it, and later its result."""

    __slots__ = (
        "_failure",
        "_future",
        "_on_ended",
        "_scheduler",
        "_value",
        "has_begun",
        "is_done",
        "is_unattended",
        "scope",
        "turn",
    )

    def __init__(
        self,
        scheduler: Scheduler,
        on_ended: Callable[["Call[_Result]"], None],
        future: "Future[_Result] | None" = None,
    ) -> None:
        self._scheduler = scheduler
        self._on_ended = on_ended
        self._future = future
        self.scope = Scope(scheduler)
        self.has_begun = False
        self.is_done = False
        self.is_unattended = future is not None
        """Whether no thread waits for the call."""
        self.turn: threading.Lock | None = None
        """Lock at which the thread of the call sleeps while another thread leads."""
        self._value: _Result | None = None
        self._failure: BaseException | None = None

    @property
    def has_future(self) -> bool:
        """Whether a future receives the result."""
        return self._future is not None

    def begin(self, function: Callable[[], Awaitable[_Result]], parent: Scope) -> None:
        """Create the task of the call inside the scope `parent`, and run it until it waits."""
        self.has_begun = True
        self.scope.attach(parent)
        try:
            coroutine = function()
        except Exception as error:  # noqa: BLE001 - the caller gets it.
            self._end(error)
            return
        if not isinstance(coroutine, Coroutine):
            coroutine = _awaited(coroutine)
        Task(self._scheduler, coroutine, self.scope, self).step()

    def ended(self, task: Task, failure: BaseException | None, value: object) -> None:
        """Record the result of the task."""
        self._value = cast(_Result, value)
        self._end(failure)

    def lose(self, error: Exception) -> None:
        """End the call with an exception, because its loop was lost."""
        self.is_done, self._failure = True, error

    def _end(self, failure: BaseException | None) -> None:
        self.is_done, self._failure = True, failure
        self.scope.detach()
        self._on_ended(self)

    def result(self) -> _Result:
        """Return the result of the call, or raise its exception."""
        failure = self._failure
        if failure is None:
            return cast(_Result, self._value)
        if isinstance(failure, Exception):
            raise failure
        raise CancelledError from None

    def deliver(self) -> None:
        """Set the result of the future. Its callbacks may call the loop, so no lock may be held."""
        future, failure = self._future, self._failure
        assert future is not None
        with suppress(InvalidStateError):  # It was cancelled.
            if failure is None:
                future.set_result(cast(_Result, self._value))
            elif isinstance(failure, Exception):
                future.set_exception(failure)
            else:
                future.cancel()


async def _awaited(result: Awaitable[_Result]) -> _Result:
    return await result
