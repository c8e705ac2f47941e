"""Steps in which a node takes over many shards, so that the event loop is never held for long.

All takeovers of a node share the steps: one step runs in each turn of the event loop, however many
requests wait for a takeover.
"""

from collections.abc import Callable, Sequence

from ringfence import runtime

__all__ = ["MAX_COST", "TakeoverSteps", "cost_of"]

MAX_COST = 500
"""Cost of one step, which takes about a millisecond. A step with one shard may cost more."""
_COST_OF_KEY = 2
_COST_OF_REPLICA = 6
"""Cost of a shard with counters, in addition to that of its keys. A shard without costs 1."""


def cost_of(keys: int) -> int:
    """Return the cost of taking over one shard with this number of keys."""
    return _COST_OF_REPLICA + keys * _COST_OF_KEY if keys else 1


class TakeoverSteps:
    """Runs the takeovers of all tasks of a node in steps of bounded cost."""

    def __init__(self) -> None:
        self._is_running = False
        self._ended = runtime.Event()

    async def run(
        self,
        shards: Sequence[int],
        keys_of: Callable[[int], int],
        take: Callable[[Sequence[int]], bool],
    ) -> bool:
        """Call `take` with a part of the shards in each step; stop when it returns False.

        `keys_of` returns the number of keys of a shard. Other tasks run before each step, so `take`
        must check again whether the shards are to be taken over. Returns whether all were.
        """
        start = 0
        while start < len(shards):
            while self._is_running:
                await self._ended.wait()
            self._is_running = True
            try:
                stop = _end_of_step(shards, start, keys_of)
                if not take(shards[start:stop]):
                    return False
                start = stop
                await runtime.checkpoint()
            finally:
                self._is_running = False
                ended, self._ended = self._ended, runtime.Event()
                ended.set()
        return True


def _end_of_step(shards: Sequence[int], start: int, keys_of: Callable[[int], int]) -> int:
    cost = 0
    for stop in range(start, len(shards)):
        cost += cost_of(keys_of(shards[stop]))
        if cost > MAX_COST:
            return max(stop, start + 1)
    return len(shards)
