"""Cooperative checkpoints of calls that have nothing to wait for."""

from math import inf

from ringfence import runtime

__all__ = ["Checkpoints"]

_CALLS_PER_CHECKPOINT = 32
"""A checkpoint of trio takes as long as a check in memory, so not every call has one."""


class Checkpoints:
    """Lets other tasks of the event loop run at every 32nd call."""

    __slots__ = ("_calls",)

    def __init__(self, *, in_loop: bool = True) -> None:
        """`in_loop=False`: there is no event loop and no other task, so no call is a checkpoint."""
        self._calls: float = 0 if in_loop else -inf

    async def take(self) -> None:
        """Count a call; at every 32nd, let other tasks run."""
        if self.is_due():
            await runtime.checkpoint()

    def is_due(self) -> bool:
        """Count a call; return whether other tasks must run now."""
        self._calls += 1
        if self._calls < _CALLS_PER_CHECKPOINT:
            return False
        self._calls = 0
        return True
