"""Steps in which a node takes over, sends and receives many shards, so that checks never wait long
for the event loop.

All steps of a node share the event loop: one step runs in each of its turns, however many tasks
have steps to run.
"""

from collections.abc import Callable, Sequence

from ringfence import runtime

__all__ = ["FEW_SHARDS", "MAX_COST", "SHARDS_PER_ANSWER", "ShardSteps", "cost_of"]

MAX_COST = 350
"""Cost of a step of a takeover. A step with one shard may cost more."""
_PART_COST = 50
"""Cost of a part of a step, after which the time of the step is compared with `_MAX_NS`."""
_MAX_NS = 700_000
"""Processor time after which a step ends, on a processor that needs more for the same cost. The
answer to a request for shards must still be sent."""
FEW_SHARDS = 4
"""Most shards that are sent or received without a step: checks wait for them."""
SHARDS_PER_ANSWER = 16
"""Shards with counters above which no further shard is added to an answer."""
_COST_OF_KEY = 2
_COST_OF_REPLICA = 6
"""Cost of a shard with counters, in addition to that of its keys. A shard without costs 1."""


def cost_of(keys: int) -> int:
    """Return the cost of taking over one shard with this number of keys."""
    return _COST_OF_REPLICA + keys * _COST_OF_KEY if keys else 1


class ShardSteps:
    """Order of the steps of all tasks of a node that move shards."""

    def __init__(self, stopwatch: Callable[[], int] | None = None) -> None:
        """`stopwatch` returns the processor time in ns. None is a simulation, whose steps take no
        time."""
        self.stopwatch = stopwatch or _no_time
        self._last: runtime.Event | None = None
        """Set when the last step that was asked for may run; None when no step waits."""
        self._began = 0

    async def turn(self) -> None:
        """Wait for a turn of the event loop in which no other step runs.

        The caller must run its step before it waits for anything else. Steps run in the order in
        which they were asked for.
        """
        before, mine = self._last, runtime.Event()
        self._last = mine
        try:
            if before is None:
                await runtime.checkpoint()
            else:
                await before.wait()  # Tasks that this event resumes run in the next turn.
        finally:
            mine.set()
            if self._last is mine:
                self._last = None
        self.start()

    def start(self) -> None:
        """Start to measure the processor time of a step."""
        self._began = self.stopwatch()

    @property
    def is_long(self) -> bool:
        """Whether the present step has taken so long that it should end."""
        return self.stopwatch() - self._began > _MAX_NS

    async def run(
        self,
        shards: Sequence[int],
        keys_of: Callable[[int], int],
        take: Callable[[Sequence[int]], bool],
    ) -> bool:
        """Call `take` with a few of the shards, several times in each step; stop when it returns
        False.

        `keys_of` returns the number of keys of a shard. Other tasks run before each step, so `take`
        must check again whether the shards are to be taken over. Returns whether all were.
        """
        start, left = 0, 0
        while start < len(shards):
            stop, cost = _next_part(shards, start, keys_of)
            if cost > left or self.is_long:
                await self.turn()
                left = MAX_COST
            if not take(shards[start:stop]):
                return False
            start = stop
            left -= cost
        return True


def _no_time() -> int:
    return 0


def _next_part(shards: Sequence[int], start: int, keys_of: Callable[[int], int]) -> tuple[int, int]:
    """Return the end of the next part of a step, and its cost."""
    cost = cost_of(keys_of(shards[start]))
    for stop in range(start + 1, len(shards)):
        more = cost_of(keys_of(shards[stop]))
        if cost + more > _PART_COST:
            return stop, cost
        cost += more
    return len(shards), cost
