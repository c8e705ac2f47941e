"""How a call that has nothing to wait for stays a good neighbour in its event loop."""

import anyio.lowlevel

__all__ = ["Turns"]

_CALLS_PER_TURN = 32


class Turns:
    """Lets other tasks run at every 32nd call: a checkpoint costs as much as a check in memory."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls = 0

    async def take(self) -> None:
        """Count a call; at times, let others run and be cancelled."""
        if self.are_over():
            await self.give()

    def are_over(self) -> bool:
        """Count a call; whether others must be let run, by `give`, before it ends."""
        self._calls += 1
        return self._calls >= _CALLS_PER_TURN

    async def give(self) -> None:
        """Let others run and be cancelled."""
        self._calls = 0
        await anyio.lowlevel.checkpoint()
