"""Pauses between the rounds of a periodic task, which sleeps until there is work."""

from math import inf

from ringfence import runtime

__all__ = ["NEVER", "RoundTimer"]

NEVER = 1 << 63
"""Instant in ns after all others."""


class RoundTimer:
    """Timer of one task that works in rounds. Without work, the task does not wake."""

    def __init__(self) -> None:
        self._signal = runtime.Signal()
        self._has_work = False
        self._is_urgent = False

    def add_work(self) -> None:
        """Let a round follow at the end of the pause after the last round."""
        if not self._has_work:
            self._has_work = True
            self._signal.set()

    def start_now(self) -> None:
        """Let a round follow immediately."""
        self._is_urgent = True
        self._signal.set()

    async def wait(self, pause: float, idle_pause: float = inf) -> None:
        """Wait for the next round: for `pause` seconds if there is work, else until there is.

        A round without work follows after `idle_pause` seconds. Work that is added during a round
        is for the round after it.
        """
        started_at = runtime.current_time()
        while not self._is_urgent:
            waits = pause if self._has_work else max(pause, idle_pause)
            left = started_at + waits - runtime.current_time()
            if left <= 0:
                break
            await self._signal.wait(left)
        self._has_work = self._is_urgent = False
