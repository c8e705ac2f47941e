"""Tasks of this process that wait for a slot, by ticket, and their wake-up."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from ringfence import runtime

__all__ = ["SlotWait", "SlotWaits"]


class SlotWait:
    """Task that waits for a slot of a concurrency limit; any thread may wake it."""

    def __init__(self) -> None:
        self._event = runtime.Event()
        self._thread = threading.get_ident()
        self._call_in_loop = runtime.thread_safe_caller()

    def reset(self) -> None:
        """Forget earlier wake-ups, because the task is about to check again."""
        self._event = runtime.Event()

    async def wait(self) -> None:
        """Wait for a wake-up; return immediately if one came since the last `reset`."""
        await self._event.wait()

    def wake(self) -> None:
        """Wake the task, so that it checks again."""
        if threading.get_ident() == self._thread:
            self._event.set()
            return
        with suppress(RuntimeError):  # Its event loop has ended.
            self._call_in_loop(self._set_event)

    def _set_event(self) -> None:
        self._event.set()


class SlotWaits:
    """All tasks of this process that wait for slots."""

    def __init__(self) -> None:
        self._waits: dict[int, SlotWait] = {}

    @contextmanager
    def open(self, ticket: int) -> Iterator[SlotWait]:
        """Register the running task under its ticket, a number, while the block lasts, so that
        `wake` can find it."""
        wait = self._waits[ticket] = SlotWait()
        try:
            yield wait
        finally:
            del self._waits[ticket]

    def wake(self, tickets: Iterable[int]) -> None:
        """Wake the waiting tasks that the given tickets identify; unknown tickets are ignored."""
        for ticket in tickets:
            wait = self._waits.get(ticket)
            if wait is not None:
                wait.wake()

    def wake_all(self) -> None:
        """Wake every waiting task, because another node may now decide about the slots."""
        for wait in list(self._waits.values()):
            wait.wake()
