"""Tasks of this process that wait for a slot, by ticket; whoever frees a slot wakes them."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import trio

from ringfence import runtime

__all__ = ["SlotWait", "SlotWaits"]


class SlotWait:
    """One task that waits; any thread may wake it."""

    def __init__(self) -> None:
        self._event = runtime.Event()
        self._thread = threading.get_ident()
        self._soon = runtime.thread_safe_caller()

    def reset(self) -> None:
        """Forget what has woken the task so far: it is about to ask."""
        self._event = runtime.Event()

    async def wait(self) -> None:
        """Wait until woken; returns at once when that was since the last `reset`."""
        await self._event.wait()

    def wake(self) -> None:
        """Have the task ask again."""
        if threading.get_ident() == self._thread:
            self._event.set()
            return
        with suppress(RuntimeError, trio.RunFinishedError):  # Its event loop has ended.
            self._soon(self._wake_here)

    def _wake_here(self) -> None:
        self._event.set()


class SlotWaits:
    """All tasks that wait."""

    def __init__(self) -> None:
        self._waits: dict[int, SlotWait] = {}

    @contextmanager
    def open(self, ticket: int) -> Iterator[SlotWait]:
        """Let the running task be woken by its ticket while the block lasts."""
        wait = self._waits[ticket] = SlotWait()
        try:
            yield wait
        finally:
            del self._waits[ticket]

    def wake(self, tickets: Iterable[int]) -> None:
        """Wake the tasks with these tickets; others are passed over."""
        for ticket in tickets:
            wait = self._waits.get(ticket)
            if wait is not None:
                wait.wake()

    def wake_all(self) -> None:
        """Wake every task: another member may decide by now."""
        for wait in list(self._waits.values()):
            wait.wake()
