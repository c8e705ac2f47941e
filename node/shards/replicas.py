"""Replicas that a standby stores: the latest state of each key, as its owner sent it.

This module decides how much is stored and for how long. `ownership` turns replicas into counters.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, repeat
from typing import Any, Protocol

from hashring import SHARDS, NodeId
from node.context.round_timer import NEVER
from node.requests.refunds.refund_ledger import charge_lifetime_ns
from node.shards.ownership.origins import UNKNOWN
from node.shards.replica_rows import Kept
from ringfence.limiter import Limit, PackedSnapshot, Snapshot
from ringfence.limiter.packed.packed_snapshot import rows_in
from ringfence.limiter.rule_tables import BYTES_PER_KEY, MIN_BYTES

__all__ = ["Replicas"]


class _Rows(Protocol):
    """Rows by key in the order of their arrival; a dictionary, or less memory in compiled code."""

    sender: str
    origins: tuple[int, ...]
    updated: int

    def __len__(self) -> int: ...
    def __delitem__(self, key: bytes, /) -> None: ...
    def items(self) -> Iterable[tuple[bytes, bytes]]: ...


_keep_rows: Callable[[list[Any], bytes, list[int], int, str, Sequence[tuple[int, ...]], int], Kept]
try:
    from node.shards._packed_rows import ROW_BYTES, head_of, state_of
    from node.shards._packed_rows import keep_rows as _keep_rows
except ImportError:  # The compiled module exists only where a C compiler was available.
    from node.shards.replica_rows import ROW_BYTES, head_of, state_of
    from node.shards.replica_rows import keep_rows as _keep_rows

_COUNTS_BYTES = 150
"""Estimated bytes of the counts of one data center, without the numbers."""
_NUMBER_BYTES = 40
"""Bytes of an integer in a list."""
_MAX_SCANNED = 64
_MAX_ROWS = 4000
"""Shards and rows that one call of `expire` looks at, in one to two milliseconds."""


class _Limits:
    """Limits of stored rows by number, each with the number of its rows."""

    def __init__(self) -> None:
        self._numbers: dict[Limit, int] = {}
        self._next = 0
        self._rows: dict[int, int] = {}
        self._without_rows: dict[int, None] = {}
        """Limits that had no rows at some time since the last `remove_unused`."""
        self.by_number: dict[int, Limit] = {}
        self.lifetimes: dict[int, int] = {}
        """Time in ns after which a row is unused, by the number of its limit."""

    def number_of(self, limit: Limit) -> int:
        """Return the number of a limit, which is new when no row has the limit."""
        number = self._numbers.get(limit)
        if number is None:
            while self._next in self.by_number:
                self._next = (self._next + 1) % 2**32
            number = self._next
            self._numbers[limit] = number
            self.by_number[number] = limit
            self.lifetimes[number] = charge_lifetime_ns(limit)
            self._rows[number] = 0
            self._without_rows[number] = None
        return number

    def add_rows(self, number: int, count: int) -> None:
        """Count more rows of a limit, or fewer."""
        self._rows[number] += count
        if not self._rows[number]:
            self._without_rows[number] = None

    def drain_ns(self, number: int, row: bytes) -> int:
        """Return the time in ns after which the bucket in a row is empty, at most.

        Charges fill a bucket above its limit, so that it drains for longer than the lifetime of
        other rows.
        """
        limit = self.by_number[number]
        if not limit.is_bucket:
            return 0
        units, *_ = state_of(row)
        return (units + 1) * limit.period_ns // max(limit.amount, 1)

    def remove_unused(self) -> None:
        """Remove the limits that have no rows."""
        for number in self._without_rows:
            if not self._rows[number]:
                del self._rows[number], self._numbers[self.by_number.pop(number)]
                del self.lifetimes[number]
        self._without_rows.clear()


class Replicas:
    """Replicas by shard and key; above the bounds, the least recently updated shard is dropped.

    There are at most `most` keys and `most_bytes` bytes, by default as many as an engine has.
    """

    def __init__(self, most: int, most_bytes: int | None = None) -> None:
        self._most = most
        self._most_bytes = most_bytes or max(MIN_BYTES, BYTES_PER_KEY * most)
        self._bytes = 0
        self._shards: list[_Rows | None] = [None] * SHARDS
        self._updates = 0
        """Number of rows that have arrived."""
        self._by_age: list[tuple[int, int]] = []
        """Last update and number of shards, the least recently updated shard last. Shards that were
        updated since the list was sorted are missing, or have another last update."""
        self._limits = _Limits()
        self._remote_counts: dict[bytes, dict[str, list[int]]] = {}
        """Counts of other data centers by key, where there are any."""
        self._size = 0
        self._to_scan: list[int] = []
        """Shards that the present search for unused rows has not looked at, the last one first."""
        self._first_unused_at = NEVER
        """First instant at which a row can be unused, of the rows outside `_to_scan`."""

    def __len__(self) -> int:
        return self._size

    def __contains__(self, shard: int) -> bool:
        return self._shards[shard] is not None

    def keep(
        self,
        sender: NodeId,
        counts: PackedSnapshot,
        now: int,
        origins: Sequence[tuple[int, ...]] | None = None,
    ) -> None:
        """Store counters that an owner sent; an empty state means that the key is unused.

        `origins` has the origins of each counter, or of all counters, if they are known.
        """
        numbers = [self._limits.number_of(limit) for limit in counts.limits]
        if self._remote_counts or counts.remote_counts:
            self._keep_remote_counts(counts)
        size, size_bytes, added, replaced = _keep_rows(
            *(self._shards, counts.rows, numbers, now, sender, origins or (UNKNOWN,)),
            self._updates,
        )
        self._updates += counts.count
        self._size += size
        self._bytes += size_bytes
        for number, count in replaced.items():
            if count:
                self._limits.add_rows(number, -count)
        for number, count in zip(numbers, added, strict=True):
            if count:
                self._limits.add_rows(number, count)
                unused_at = now + self._limits.lifetimes[number]
                self._first_unused_at = min(self._first_unused_at, unused_at)
        while self._size > self._most or self._bytes > self._most_bytes:
            self._forget(self._least_recently_updated())
        self._limits.remove_unused()

    def _keep_remote_counts(self, counts: PackedSnapshot) -> None:
        arrived: Iterable[dict[str, list[int]]] = counts.remote_counts or repeat({})
        for (key, _, state), remote_counts in zip(rows_in(counts.rows), arrived, strict=False):
            self._bytes -= _size_of(self._remote_counts.pop(key, {}))
            if state and remote_counts:
                self._remote_counts[key] = remote_counts
                self._bytes += _size_of(remote_counts)

    def of(self, shard: int) -> Iterator[tuple[int, Snapshot]]:
        """Return the counters in a shard's replica, grouped by their time of arrival."""
        by_instant: dict[int, Snapshot] = {}
        rows = self._shards[shard]
        for key, row in () if rows is None else rows.items():
            number, arrived_at = head_of(row)
            limit = self._limits.by_number[number]
            counts = by_instant.setdefault(arrived_at, Snapshot([], [], [], [], []))
            counts.keys.append(key)
            counts.states.append(state_of(row))
            if not counts.limits or counts.limits[-1] != limit:
                counts.limits.append(limit)
            counts.which.append(len(counts.limits) - 1)
            counts.remote_counts.append(self._remote_counts.get(key, {}))
        return iter(by_instant.items())

    def size_of(self, shard: int) -> int:
        """Return the number of keys in the replica of a shard."""
        rows = self._shards[shard]
        return 0 if rows is None else len(rows)

    def sender_of(self, shard: int) -> NodeId | None:
        """Return the owner that sent the replica of a shard; None if there is no replica."""
        rows = self._shards[shard]
        return None if rows is None else NodeId(rows.sender)

    def among(self, shards: Sequence[int]) -> list[int]:
        """Return those of `shards` that have a replica."""
        rows = self._shards
        return [shard for shard in shards if rows[shard] is not None] if self._size else []

    def sent_by(self, name: NodeId, shards: Sequence[int]) -> list[int]:
        """Return those of `shards` whose replica `name` has sent."""
        return [shard for shard in self.among(shards) if self.sender_of(shard) == name]

    def origins_of(self, shard: int) -> tuple[int, ...]:
        """Return the origins of the counters in the replica of a shard."""
        rows = self._shards[shard]
        return () if rows is None else rows.origins

    def drop(self, shards: Iterable[int]) -> None:
        """Remove the stored replicas of these shards."""
        for shard in shards:
            self._forget(shard)

    def shards(self) -> list[int]:
        """Return the shards that have a replica."""
        return [*compress(range(SHARDS), self._shards)]  # A shard without rows is None.

    @property
    def next_expiry(self) -> int:
        """Instant from which `expire` has something to do; 0 if it has not looked at all shards."""
        return 0 if self._to_scan else self._first_unused_at

    def expire(self, now: int) -> None:
        """Drop unused keys, if there can be any; each call looks at some of the shards."""
        if not self._to_scan:
            if now <= self._first_unused_at:
                return
            self._to_scan = [*reversed(self.shards())]
            self._first_unused_at = NEVER
        scanned = 0
        for _ in range(min(_MAX_SCANNED, len(self._to_scan))):
            shard = self._to_scan.pop()
            rows = self._shards[shard]
            if rows is None:
                continue
            scanned += len(rows)
            for key, row in self._unused_rows(rows, now):
                self._dropped(key, row)
                del rows[key]
            if not len(rows):
                self._forget(shard)
            if scanned >= _MAX_ROWS:
                break

    def _unused_rows(self, rows: _Rows, now: int) -> list[tuple[bytes, bytes]]:
        lifetimes, unused = self._limits.lifetimes, list[tuple[bytes, bytes]]()
        first = NEVER
        for key, row in rows.items():
            number, arrived_at = head_of(row)
            unused_at = arrived_at + lifetimes[number]
            if now > unused_at:
                unused_at = max(unused_at, arrived_at + self._limits.drain_ns(number, row))
            if now > unused_at:
                unused.append((key, row))
            elif unused_at < first:
                first = unused_at
        self._first_unused_at = min(self._first_unused_at, first)
        return unused

    def _least_recently_updated(self) -> int:
        """Return a shard. All shards are sorted once for many calls."""
        while True:
            if not self._by_age:
                ages = [(each.updated, at) for at, each in enumerate(self._shards) if each]
                self._by_age = sorted(ages, reverse=True)
            updated, shard = self._by_age.pop()
            rows = self._shards[shard]
            if rows is not None and rows.updated == updated:
                return shard

    def _forget(self, shard: int) -> None:
        rows, self._shards[shard] = self._shards[shard], None
        for key, row in () if rows is None else rows.items():
            self._dropped(key, row)

    def _dropped(self, key: bytes, row: bytes) -> None:
        self._size -= 1
        self._bytes -= ROW_BYTES + len(row) + _size_of(self._remote_counts.pop(key, {}))
        self._limits.add_rows(head_of(row)[0], -1)


def _size_of(remote_counts: dict[str, list[int]]) -> int:
    """Estimate the bytes of the counts of other data centers."""
    return sum([_COUNTS_BYTES + _NUMBER_BYTES * len(counts) for counts in remote_counts.values()])
