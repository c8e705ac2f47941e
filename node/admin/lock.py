"""Mutual exclusion for tasks of any runtime; waiting tasks take turns in FIFO order."""

from collections import deque
from types import TracebackType

from ringfence import runtime

__all__ = ["Lock"]


class Lock:
    """Lock that at most one task holds at a time: `async with lock`."""

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: deque[runtime.Event] = deque()
        """Events of the tasks that wait; each is set when its task receives the lock."""

    async def __aenter__(self) -> None:
        await runtime.checkpoint()  # Other tasks get their turns before this one takes the next.
        if not self._is_held:
            self._is_held = True
            return
        received = runtime.Event()
        self._waiting.append(received)
        try:
            await received.wait()
        except BaseException:
            if received.is_set():
                self._pass_on()
            else:
                self._waiting.remove(received)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        """Give the lock to the next waiting task, or release it."""
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self._is_held = False
