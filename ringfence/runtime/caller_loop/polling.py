"""Waits of a thread for a socket, which another thread can end."""

import select
import socket
from collections.abc import Callable, Collection
from typing import TypeAlias

from ringfence.runtime.caller_loop.interrupts import suppress_system_errors

__all__ = ["Poll", "Waker", "new_poll"]

_LONGEST = 86_400.0
"""Longest wait in seconds; `poll` counts milliseconds in 32 bits."""

Poll: TypeAlias = Callable[[float], Collection[int]]
"""Waits at most the given seconds; returns the file numbers that are readable or have an error."""


class Waker:
    """File that one thread makes readable, to end the wait of another thread."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)
        self.fileno = self._reader.fileno()

    def wake(self) -> None:
        """End the current wait, or the next one."""
        with suppress_system_errors():  # It is full, so the other thread will wake in any case.
            self._writer.send(b"\0")

    def clear(self) -> None:
        """Forget the wakes so far."""
        with suppress_system_errors():
            self._reader.recv(4096)

    def close(self) -> None:
        """Close the file."""
        self._reader.close()
        self._writer.close()


def new_poll(*files: int) -> Poll:
    """Return a function that waits for files; only one thread at a time may call it."""
    if not hasattr(select, "poll"):

        def wait_by_select(seconds: float) -> Collection[int]:
            return select.select(files, (), (), max(0.0, min(seconds, _LONGEST)))[0]

        return wait_by_select
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)

    def wait_by_poll(seconds: float) -> Collection[int]:
        return [file for file, _ in poll.poll(max(0.0, min(seconds, _LONGEST)) * 1000)]

    return wait_by_poll
