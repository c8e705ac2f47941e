"""How much of the node's time the operator's port gets, whoever asks for more."""

import trio

__all__ = ["Throttle"]


class Throttle:
    """Lets `rate` steps a second pass, `burst` of them at once; the others wait in their order."""

    def __init__(self, rate: float, burst: int) -> None:
        self._interval = 1 / rate
        self._ahead = (burst - 1) / rate
        self._next = 0.0
        """When the next step would be due if there were no bursts."""
        self._line = trio.Lock()

    async def turn(self) -> None:
        """Wait for a turn."""
        async with self._line:
            self._next = max(self._next, trio.current_time())
            wait = self._next - self._ahead - trio.current_time()
            if wait > 0:
                await trio.sleep(wait)
            self._next += self._interval
