"""How a call that has nothing to wait for stays a good neighbour in its event loop."""

from math import inf

from ringfence import runtime

__all__ = ["Checkpoints"]

_CALLS_PER_TURN = 32


class Checkpoints:
    """Lets other tasks run at every 32nd call: a checkpoint costs as much as a check in memory."""

    __slots__ = ("_calls",)

    def __init__(self, *, in_loop: bool = True) -> None:
        """Outside of an event loop there are no other tasks, and no turn is ever over."""
        self._calls: float = 0 if in_loop else -inf

    async def take(self) -> None:
        """Count a call; at times, let others run and be cancelled."""
        if self.is_over():
            await runtime.checkpoint()

    def is_over(self) -> bool:
        """Count a call; whether others must run now. For who cannot wait for a coroutine to say."""
        self._calls += 1
        if self._calls < _CALLS_PER_TURN:
            return False
        self._calls = 0
        return True
