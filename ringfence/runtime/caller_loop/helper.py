"""Waits of the helper thread, which acts while no thread of the application waits at the socket."""

import time
from enum import Enum, auto
from math import inf

from ringfence.runtime.caller_loop.polling import Waker, new_poll

__all__ = ["HelperWait"]

_TICK = 0.005
"""Seconds between two looks at the socket after calls of other threads."""


class _State(Enum):
    ASLEEP = auto()
    """Until it is woken, because another thread leads."""
    TICKING = auto()
    """For a moment, because other threads have made calls and may make more."""
    WATCHING = auto()
    """At the socket, until the next timer."""
    WOKEN = auto()
    """Not at all."""


class HelperWait:
    """Choice of what the helper thread waits for, so that calls need not wake it.

    Only `wait` may be called without the lock of the loop.
    """

    def __init__(self) -> None:
        self._waker = Waker()
        self._doze = self._watch = new_poll(self._waker.fileno)
        self._state = _State.WOKEN
        self._until = 0.0
        self._leads_seen = 0

    def set_file(self, file: int | None) -> None:
        """Wait at another socket from now on; None for no socket."""
        self._watch = self._doze if file is None else new_poll(file, self._waker.fileno)
        self.wake()

    def wake(self) -> None:
        """End the current wait, or the next one."""
        self._state = _State.WOKEN
        self._waker.wake()

    def wake_by(self, deadline: float, *, is_urgent: bool) -> None:
        """End the wait if it would last beyond `deadline`; a tick only if that is urgent.

        The timers of a connection can wait for the end of a tick.
        """
        match self._state:
            case _State.ASLEEP:
                self.wake()
            case _State.TICKING if is_urgent:
                self.wake()
            case _State.WATCHING if deadline < self._until:
                self.wake()
            case _:
                pass

    def plan(self, deadline: float, leads: int, *, has_leader: bool, is_urgent: bool) -> None:
        """Choose the next wait. `leads` counts how often a thread has become the leader so far."""
        self._waker.clear()
        has_led, self._leads_seen = leads != self._leads_seen, leads
        if has_leader and not has_led:
            self._state, self._until = _State.ASLEEP, inf
        elif has_leader or (has_led and not is_urgent):
            self._state, self._until = _State.TICKING, time.monotonic() + _TICK
        else:
            self._state, self._until = _State.WATCHING, deadline

    def wait(self) -> None:
        """Wait as planned."""
        poll = self._watch if self._state is _State.WATCHING else self._doze
        poll(self._until - time.monotonic())

    def close(self) -> None:
        """Close the files of the wait, after the end of the helper thread."""
        self._waker.close()
