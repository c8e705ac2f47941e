"""Buckets that several data centers share, when the counters of two members are merged.

The level of such a bucket has units of all data centers, and units that are older than the counts
of its two periods. So it cannot be computed from the counts alone.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from ringfence.limiter import Snapshot

__all__ = ["joined_buckets"]

_LEVEL = 2
"""Numbers of the level: whole units and ticks. Alternating period numbers and units of this data
center follow."""


def joined_buckets(
    mine: Snapshot, theirs: Snapshot, regained: Mapping[bytes, int], *, are_shared: bool
) -> Snapshot:
    """Return the shared buckets of two snapshots with the units of both.

    `regained` has the units of this data center that both sides have, by key. With `are_shared`,
    both began with the same units, and only the larger numbers count.
    """
    rows = dict(zip(mine.keys, range(len(mine.keys)), strict=True))
    joined = Snapshot([], [], theirs.limits, [], [])
    for at, key in enumerate(theirs.keys):
        row, limit = rows.get(key), theirs.limits[theirs.which[at]]
        if row is None or not limit.is_bucket or mine.limits[mine.which[row]] != limit:
            continue
        one, other = _Bucket(mine, row), _Bucket(theirs, at)
        if one.is_shared or other.is_shared:
            joined.keys.append(key)
            joined.which.append(theirs.which[at])
            state = one.larger(other) if are_shared else one.added(other, regained.get(key, 0))
            joined.states.append(state)
            joined.remote_counts.append(one.remote_with(other))
    return joined


class _Bucket:
    """Bucket of one key in a snapshot."""

    def __init__(self, counts: Snapshot, at: int) -> None:
        state = counts.states[at]
        self.units, self.ticks = (*state[:_LEVEL], 0, 0)[:_LEVEL]  # A peer may send anything.
        self.own = _pairs(state[_LEVEL:])
        """Units of this data center by period number."""
        remote = counts.remote_counts[at] if counts.remote_counts else {}
        self.remote = {writer: _pairs(cells) for writer, cells in remote.items()}
        self.is_shared = bool(self.own or self.remote)

    def larger(self, other: "_Bucket") -> list[int]:
        """Return a state with the larger numbers of two buckets."""
        levels = [
            (bucket.units + bucket._lacks(more), bucket.ticks)
            for bucket, more in ((self, other), (other, self))
        ]
        return [*max(levels), *_flat(self.own | other.own)]

    def added(self, other: "_Bucket", common: int) -> list[int]:
        """Return a state with the units of two buckets. Only `common` units of this data center,
        and those of other data centers, are in both."""
        levels = [
            (bucket.units + bucket._lacks(more) + max(0, more._undrained - common), bucket.ticks)
            for bucket, more in ((self, other), (other, self))
        ]
        own = self.own + other.own
        for number in sorted(own):
            taken = min(common, own[number])
            own[number] -= taken
            common -= taken
        return [*max(levels), *_flat(own)]

    def remote_with(self, other: "_Bucket") -> dict[str, list[int]]:
        """Return the counts of other data centers that are known to either bucket."""
        writers = dict.fromkeys([*self.remote, *other.remote])
        none = Counter[int]()
        return {
            writer: [*_flat(self.remote.get(writer, none) | other.remote.get(writer, none))]
            for writer in writers
        }

    @property
    def _undrained(self) -> int:
        """Most units of this data center in the level that are in its counts."""
        return min(self.own.total(), self.units + bool(self.ticks))

    def _lacks(self, other: "_Bucket") -> int:
        """Return the units of other data centers that only the other bucket has."""
        none = Counter[int]()
        return sum(
            [
                (cells - self.remote.get(writer, none)).total()
                for writer, cells in other.remote.items()
            ]
        )


def _pairs(numbers: Sequence[int]) -> "Counter[int]":
    return Counter(dict(zip(numbers[::2], numbers[1::2], strict=False)))


def _flat(cells: "Counter[int]") -> Iterator[int]:
    return chain.from_iterable(
        [(number, cells[number]) for number in sorted(cells) if cells[number]]
    )
