"""One heap of events for all hosts of a run, and coroutines that wait on it without trio.

Equal instants come in the order in which they were planned, so one seed has one history.
"""

from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

__all__ = ["EventLoop", "Future", "TaskSet"]

_T = TypeVar("_T")


class EventLoop:
    """What happens when, in ns of virtual time."""

    def __init__(self) -> None:
        self.now = 0
        self.count = 0
        """Events planned so far."""
        self._heap: list[tuple[int, int, Callable[..., object], tuple[object, ...]]] = []

    @property
    def seconds(self) -> float:
        """The time as hosts' clocks take it."""
        return self.now / 1e9

    def at(self, when: int, call: Callable[..., object], *args: object) -> None:
        """Call at an instant; one that has passed is now."""
        self.count += 1
        heappush(self._heap, (max(when, self.now), self.count, call, args))

    def run(self, until: int) -> None:
        """Let everything happen up to an instant."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, call, args = heappop(heap)
            call(*args)
        self.now = max(self.now, until)


class Future(Generic[_T]):
    """A value that a coroutine may await until somebody has it."""

    def __init__(self, soon: Callable[[Callable[[], None]], None]) -> None:
        """`soon` has something called in a moment: whoever waits goes on after the present call."""
        self._soon = soon
        self._found: list[_T] = []
        self._waiting: list[Callable[[], None]] = []

    @property
    def is_there(self) -> bool:
        """Whether nobody needs to wait any more."""
        return bool(self._found)

    def resolve(self, value: _T) -> None:
        """Let those go on who wait; the first value holds."""
        if not self._found:
            self._found.append(value)
            for call in self._waiting:
                self._soon(call)

    def then(self, call: Callable[[], None]) -> None:
        """Call once it is there, which it is not yet."""
        self._waiting.append(call)

    def __await__(self) -> "Generator[Future[_T], None, _T]":
        if not self._found:
            yield self
        return self._found[0]


class TaskSet:
    """The coroutines of one host, which await nothing but `Future` values."""

    def __init__(self) -> None:
        self._running: dict[Coroutine[Any, Any, object], None] = {}

    def start(self, coroutine: Coroutine[Any, Any, object]) -> Callable[[], None]:
        """Run it up to where it waits; returns what cancels it."""
        self._running[coroutine] = None
        self._step(coroutine)
        return lambda: self._cancel(coroutine)

    def cancel(self) -> None:
        """End all, as a nursery would that is cancelled."""
        for coroutine in list(self._running):
            self._cancel(coroutine)

    def _step(self, coroutine: Coroutine[Any, Any, object]) -> None:
        if coroutine not in self._running:
            return
        try:
            coming = coroutine.send(None)
        except StopIteration:
            del self._running[coroutine]
        except BaseException:
            del self._running[coroutine]
            raise
        else:
            coming.then(lambda: self._step(coroutine))

    def _cancel(self, coroutine: Coroutine[Any, Any, object]) -> None:
        if self._running.pop(coroutine, self) is None:
            coroutine.close()
