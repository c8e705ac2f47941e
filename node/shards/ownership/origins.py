"""Origins and marks of the counters of each shard, which show what counters of two members have in
common.

An origin is the start of a shard without counters, at one node and instant. No two starts of a
shard have the same number, but starts of different shards at one node may. A mark is a later
instant in the history of counters: the start of a fallback log, or the transfer of one. Both have
numbers, which move with the counters. Counters that were merged have the numbers of both sides.
"""

from collections.abc import Container, Iterable, Sequence
from itertools import count

from hashring import SHARDS, pick
from node.context.round_timer import NEVER
from ringfence.wire import MAX_ORIGINS

__all__ = ["UNKNOWN", "ShardOrigins", "are_all_known", "is_blind_start", "merge_origins"]

_MARKS_KEPT_NS = 120_000_000_000
"""Time for which marks are kept: longer than members keep unacknowledged transfers."""
UNKNOWN = (0,)
"""Origins of counters that may have units of any other ones."""


def merge_origins(one: Iterable[int], other: Iterable[int]) -> tuple[int, ...]:
    """Return the origins of counters that were merged from two sides with the given ones.

    If there are too many, the oldest marks are dropped. Origins that do not fit are unknown.
    """
    both = [*dict.fromkeys([*one, *other])]
    excess = len(both) - MAX_ORIGINS
    if excess <= 0:
        return tuple(both)
    old_marks = [number for number in both if number % 2][:excess]
    return UNKNOWN if len(old_marks) < excess else tuple([n for n in both if n not in old_marks])


def are_all_known(origins: Sequence[int]) -> bool:
    """Return whether no mark was dropped from the origins of counters."""
    return 0 < len(origins) < MAX_ORIGINS and UNKNOWN[0] not in origins


def is_blind_start(number: int) -> bool:
    """Return whether an origin is a start in place of an owner that may have counters."""
    return number % 4 == 2


class ShardOrigins:
    """Origins of the shards that one node holds.

    Two members that hold counters of one shard usually have a part of them in common: the counters
    with which the second member started. Merging counts this part once. Counters whose origins
    differ have no common part, so all units of both sides count. A mark of one side in the numbers
    of the other shows that the other side has counters from after the mark.
    """

    def __init__(self, first: int) -> None:
        """Origins are numbered from `first`, which differs between nodes and between their runs."""
        self._origins: list[tuple[int, ...]] = [()] * SHARDS
        self._numbers = count(first)
        self._newest: tuple[int, ...] = ()
        """Origin of the last start, and the shards that have got it in `_got_newest`."""
        self._got_newest = bytearray(SHARDS)
        self._marked_at: dict[int, int] = {}
        """Last instant of a change of each shard with marks, in this order."""

    def start(self, shards: Sequence[int], *, is_blind: bool = False) -> None:
        """Set the origin of shards that start without counters; its number is even.

        Later starts of other shards share it, so that replication frames have few origins. A shard
        that starts again has a new one. `is_blind` means that the owner may have counters.
        """
        is_like = any([is_blind_start(newest) == is_blind for newest in self._newest])
        if not is_like or any([self._got_newest[shard] for shard in shards]):
            number = next(each for each in self._numbers if each % 2 == is_blind)
            self._newest, self._got_newest = (2 * number,), bytearray(SHARDS)
        for shard in shards:
            self._got_newest[shard] = 1
        self.set(shards, self._newest)

    def new_mark(self) -> int:
        """Return the number of a new mark, which is odd."""
        return 2 * next(self._numbers) + 1

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

    def touch(self, shard: int, now: int) -> None:
        """Record that a shard with marks has changed, so that its marks are still needed."""
        if any([number % 2 for number in self._origins[shard]]):
            self._marked_at.pop(shard, None)
            self._marked_at[shard] = now

    @property
    def next_expiry(self) -> int:
        """First instant at which a shard may have marks that are not needed."""
        return next(iter(self._marked_at.values()), NEVER - _MARKS_KEPT_NS) + _MARKS_KEPT_NS

    def expire(self, now: int, kept: Container[int]) -> None:
        """Remove the marks of shards that have not changed for a time, except `kept` ones."""
        while now > self.next_expiry:
            shard = next(iter(self._marked_at))
            del self._marked_at[shard]
            if shard in kept:
                self._marked_at[shard] = now
            else:
                starts = [number for number in self._origins[shard] if not number % 2]
                self._origins[shard] = tuple(starts)

    def of_keys(self, keys: Iterable[bytes]) -> list[tuple[int, ...]]:
        """Return the origins of the counters of each key."""
        return pick(keys, self._origins)

    def are_shared(self, shard: int, origins: Sequence[int]) -> bool | None:
        """Return whether arriving counters have units in common with those of a shard; None if that
        is unknown."""
        mine = self._origins[shard]
        if not {*mine}.isdisjoint({*origins} - {*UNKNOWN}):
            return True
        return None if not mine or not origins or 0 in mine or 0 in origins else False

    def have_all(self, shard: int, origins: Sequence[int]) -> bool:
        """Return whether counters with the given origins have no units that a shard lacks."""
        return bool(origins) and 0 not in origins and {*origins} <= {*self._origins[shard]}
