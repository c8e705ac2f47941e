"""Origins of the counters of each shard, from which a node detects counters without common units.

An origin is the start of a shard without counters, at one node and instant. It has a number, which
moves with the counters in transfers. Counters that were merged have the origins of both sides.
"""

from collections.abc import Iterable, Sequence
from itertools import count

from hashring import SHARDS
from ringfence.wire import MAX_ORIGINS

__all__ = ["UNKNOWN", "ShardOrigins"]

UNKNOWN = (0,)
"""Origins of counters that may have units of any other ones, such as those of a replica."""


class ShardOrigins:
    """Origins of the shards that one node holds.

    Two members that hold counters of one shard usually have a part of them in common: the counters
    with which the second member started. Merging counts this part once. Counters whose origins
    differ have no common part, so all units of both sides count.
    """

    def __init__(self, first: int) -> None:
        """Origins are numbered from `first`, which differs between nodes and between their runs."""
        self._origins: list[tuple[int, ...]] = [()] * SHARDS
        self._numbers = count(first)

    def new(self) -> tuple[int, ...]:
        """Return a new origin, for shards that start without counters."""
        return (next(self._numbers),)

    def of(self, shard: int) -> tuple[int, ...]:
        """Return the origins of a shard's counters."""
        return self._origins[shard]

    def set(self, shards: Iterable[int], origins: tuple[int, ...]) -> None:
        """Set the origins of shards that this node holds from now on."""
        for shard in shards:
            self._origins[shard] = origins

    def add(self, shard: int, origins: Sequence[int]) -> None:
        """Add the origins of counters that were merged into those of a shard."""
        both = tuple(sorted({*self._origins[shard], *origins}))
        is_known = 0 not in both and len(both) <= MAX_ORIGINS
        self._origins[shard] = both if is_known else UNKNOWN

    def are_unrelated(self, shard: int, origins: Sequence[int]) -> bool:
        """Return whether arriving counters have no unit in common with those of a shard."""
        mine = self._origins[shard]
        is_known = mine and origins and 0 not in mine and 0 not in origins
        return bool(is_known) and set(mine).isdisjoint(origins)
