"""Origins of the counters of each shard, from which a node detects counters without common units.

An origin is the start of a shard without counters, at one node and instant. It has a number, which
moves with the counters in transfers. Counters that were merged have the origins of both sides.
"""

from collections.abc import Iterable, Sequence
from itertools import count

from hashring import SHARDS, pick
from ringfence.wire import MAX_ORIGINS

__all__ = ["UNKNOWN", "ShardOrigins", "merge_origins"]

UNKNOWN = (0,)
"""Origins of counters that may have units of any other ones."""


def merge_origins(one: Iterable[int], other: Iterable[int]) -> tuple[int, ...]:
    """Return the origins of counters that were merged from two sides with the given ones."""
    both = tuple(sorted({*one, *other}))
    return UNKNOWN if 0 in both or len(both) > MAX_ORIGINS else both


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
        self._origins[shard] = merge_origins(self._origins[shard], origins)

    def of_keys(self, keys: Iterable[bytes]) -> list[tuple[int, ...]]:
        """Return the origins of the counters of each key."""
        return pick(keys, self._origins)

    def are_shared(self, shard: int, origins: Sequence[int]) -> bool | None:
        """Return whether arriving counters have units in common with those of a shard; None if that
        is unknown."""
        mine = self._origins[shard]
        if not mine or not origins or 0 in mine or 0 in origins:
            return None
        return not set(mine).isdisjoint(origins)
