"""Rows of replicas as bytes, where the compiled functions of `_packed_rows` do not exist.

A row is the number of its limit, the instant of its arrival, from which the durations in the state
count, and the numbers of the state, 8 bytes each.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from hashring import shard_of
from node.shards.ownership.origins import merge_origins
from ringfence.limiter.packed.packed_snapshot import rows_in

__all__ = [
    "ROW_BYTES",
    "Kept",
    "PlainRows",
    "head_of",
    "keep_rows",
    "merged",
    "pack_row",
    "state_of",
]

Kept: TypeAlias = tuple[int, int, list[int], "Counter[int]"]
"""Change of the number of rows and of their estimated bytes, number of stored rows by index of
their limit, and number of replaced rows by number of their limit."""

ROW_BYTES = 190
"""Estimated bytes of a row with its key, without the numbers."""
_NUMBERS = "Q"
_HEAD = 16
"""Bytes of the number of the limit and the instant."""


def pack_row(limit: int, arrived_at: int, state: list[int]) -> bytes:
    """Return a row with the number of a limit, the instant of its arrival, and a state."""
    return array(_NUMBERS, (limit, arrived_at, *state)).tobytes()


def head_of(row: bytes) -> tuple[int, int]:
    """Return the number of the limit and the instant of arrival in a row."""
    limit, arrived_at = array(_NUMBERS, row[:_HEAD])
    return limit, arrived_at


def state_of(row: bytes) -> list[int]:
    """Return the state in a row."""
    return array(_NUMBERS, row[_HEAD:]).tolist()


class PlainRows(dict[bytes, bytes]):
    """Rows of the replica of one shard, by key."""

    __slots__ = ("origins", "sender", "updated")

    def __init__(self) -> None:
        self.sender = ""
        """Owner that sent the rows."""
        self.origins: tuple[int, ...] = ()
        """Origins of the counters in the rows."""
        self.updated = 0
        """Number of the last update; it grows with each update of any shard."""


def keep_rows(
    shards: list[PlainRows | None],
    packed: bytes,
    numbers: list[int],
    arrived_at: int,
    sender: str,
    origins: Sequence[tuple[int, ...]],
    first_update: int,
) -> Kept:
    """Store packed rows by shard; the updates are numbered from `first_update`.

    `shards` has an item for each shard, which is None when there are no rows. `numbers` has the
    number of each limit, and `origins` the origins of each row, or of all rows. A row with an empty
    state removes its key.
    """
    size, nbytes, added, dropped = 0, 0, [0] * len(numbers), Counter[int]()
    for place, (key, limit, state) in enumerate(rows_in(packed)):
        shard = shard_of(key)
        rows = shards[shard]
        if rows is None:
            rows = shards[shard] = PlainRows()
        rows.sender, rows.updated = sender, first_update + place
        of_row = origins[min(place, len(origins) - 1)]
        if rows.origins != of_row:
            rows.origins = merged(rows.origins, of_row)
        old = rows.pop(key, None) if not state else rows.get(key)
        if old is not None:
            size -= 1
            nbytes -= ROW_BYTES + len(old)
            dropped[head_of(old)[0]] += 1
        if state:
            if limit >= len(numbers):
                raise ValueError("packed rows must have known limits")
            rows[key] = row = pack_row(numbers[limit], arrived_at, state)
            size += 1
            nbytes += ROW_BYTES + len(row)
            added[limit] += 1
        elif not rows:
            shards[shard] = None
    return size, nbytes, added, dropped


def merged(mine: tuple[int, ...], arriving: tuple[int, ...]) -> tuple[int, ...]:
    """Return `merge_origins`, as the same object if nothing is added to the arriving origins."""
    both = merge_origins(mine, arriving)
    return arriving if both == arriving else both
