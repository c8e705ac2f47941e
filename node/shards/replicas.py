"""Replicas that a standby stores: the latest state of each key, as its owner sent it.

This module decides how much is stored and for how long. `ownership` turns replicas into counters.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Protocol

from hashring import NodeId, shards_of
from node.context.round_timer import NEVER
from node.requests.refund_ledger import charge_lifetime_ns
from node.shards.ownership.origins import UNKNOWN, merge_origins
from ringfence.limiter import Limit, Snapshot
from ringfence.limiter.rule_tables import BYTES_PER_KEY, MIN_BYTES

__all__ = ["Replicas"]


class _Rows(Protocol):
    """Rows by key in the order of their arrival; a dictionary, or less memory in compiled code."""

    def __len__(self) -> int: ...
    def __setitem__(self, key: bytes, row: bytes, /) -> None: ...
    def __delitem__(self, key: bytes, /) -> None: ...
    def get(self, key: bytes, /) -> bytes | None: ...
    def items(self) -> Iterable[tuple[bytes, bytes]]: ...


_new_rows: Callable[[], _Rows]
try:
    from node.shards._packed_rows import PackedRows, head_of, pack_row, state_of

    _new_rows, _ROW_BYTES = PackedRows, 40
except ImportError:  # The compiled module exists only where a C compiler was available.
    from node.shards.replica_rows import head_of, pack_row, state_of

    _new_rows, _ROW_BYTES = dict[bytes, bytes], 190
# `_ROW_BYTES` are the estimated bytes of a row with its key, without the numbers.

_COUNTS_BYTES = 150
"""Estimated bytes of the counts of one data center, without the numbers."""
_NUMBER_BYTES = 40
"""Bytes of an integer in a list."""
_MAX_SCANNED = 64
"""Shards that one call of `expire` looks at."""


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
        self._shards: OrderedDict[int, _Rows] = OrderedDict()
        self._limits = _Limits()
        self._remote_counts: dict[bytes, dict[str, list[int]]] = {}
        """Counts of other data centers by key, where there are any."""
        self._senders: dict[int, NodeId] = {}
        self._origins: dict[int, tuple[int, ...]] = {}
        self._size = 0
        self._to_scan: list[int] = []
        """Shards that the present search for unused rows has not looked at, the last one first."""
        self._first_unused_at = NEVER
        """First instant at which a row can be unused, of the rows outside `_to_scan`."""

    def __len__(self) -> int:
        return self._size

    def __contains__(self, shard: int) -> bool:
        return shard in self._shards

    def keep(
        self,
        sender: NodeId,
        counts: Snapshot,
        now: int,
        origins: Iterable[tuple[int, ...]] | None = None,
    ) -> None:
        """Store counters that an owner sent; an empty state means that the key is unused.

        `origins` has the origins of each counter, if they are known.
        """
        numbers = [self._limits.number_of(limit) for limit in counts.limits]
        added = [0] * len(numbers)
        """New rows by index into `counts.limits`."""
        remote = counts.remote_counts or repeat(None)
        columns = counts.keys, shards_of(counts.keys), counts.states, counts.which, remote
        by_key = repeat(UNKNOWN) if origins is None else origins
        for key, shard, state, which, remote_counts, of_key in zip(*columns, by_key, strict=False):
            self._senders[shard] = sender
            known = self._origins.get(shard, ())
            if known != of_key:
                self._origins[shard] = merge_origins(known, of_key)
            rows = self._shards.get(shard)
            if rows is None:
                rows = self._shards[shard] = _new_rows()
            self._shards.move_to_end(shard)
            old = rows.get(key)
            if old is not None:
                self._dropped(key, old)
            if state:
                rows[key] = row = pack_row(numbers[which], now, state)
                added[which] += 1
                self._size += 1
                self._bytes += _ROW_BYTES + len(row)
                if remote_counts:
                    self._add_remote_counts(key, remote_counts)
                continue
            if old is not None:
                del rows[key]
            if not len(rows):
                self._forget(shard)
        for number, count in zip(numbers, added, strict=True):
            self._limits.add_rows(number, count)
            if count:
                unused_at = now + self._limits.lifetimes[number]
                self._first_unused_at = min(self._first_unused_at, unused_at)
        while self._size > self._most or self._bytes > self._most_bytes:
            self._forget(next(iter(self._shards)))
        self._limits.remove_unused()

    def of(self, shard: int) -> Iterator[tuple[int, Snapshot]]:
        """Return the counters in a shard's replica, grouped by their time of arrival."""
        by_instant: dict[int, Snapshot] = {}
        rows = self._shards.get(shard)
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

    def sender_of(self, shard: int) -> NodeId | None:
        """Return the owner that sent the replica of a shard; None if there is no replica."""
        return self._senders.get(shard)

    def among(self, shards: Sequence[int]) -> list[int]:
        """Return those of `shards` that have a replica."""
        return [shard for shard in shards if shard in self._shards] if self._shards else []

    def sent_by(self, name: NodeId, shards: Sequence[int]) -> list[int]:
        """Return those of `shards` whose replica `name` has sent."""
        senders = self._senders
        return [shard for shard in shards if senders.get(shard) == name] if senders else []

    def origins_of(self, shard: int) -> tuple[int, ...]:
        """Return the origins of the counters in the replica of a shard."""
        return self._origins.get(shard, ())

    def drop(self, shards: Iterable[int]) -> None:
        """Remove the stored replicas of these shards."""
        for shard in shards:
            self._forget(shard)

    def shards(self) -> list[int]:
        """Return the shards that have a replica."""
        return list(self._shards)

    @property
    def next_expiry(self) -> int:
        """Instant from which `expire` has something to do; 0 if it has not looked at all shards."""
        return 0 if self._to_scan else self._first_unused_at

    def expire(self, now: int) -> None:
        """Drop unused keys, if there can be any; each call looks at some of the shards."""
        if not self._to_scan:
            if now <= self._first_unused_at:
                return
            self._to_scan = [*reversed(self._shards)]
            self._first_unused_at = NEVER
        for shard in self._to_scan[-_MAX_SCANNED:]:
            rows = self._shards.get(shard)
            if rows is None:
                continue
            for key, row in self._unused_rows(rows, now):
                self._dropped(key, row)
                del rows[key]
            if not len(rows):
                self._forget(shard)
        del self._to_scan[-_MAX_SCANNED:]

    def _unused_rows(self, rows: _Rows, now: int) -> list[tuple[bytes, bytes]]:
        lifetimes, unused = self._limits.lifetimes, list[tuple[bytes, bytes]]()
        first = NEVER
        for key, row in rows.items():
            number, arrived_at = head_of(row)
            unused_at = arrived_at + lifetimes[number]
            if now > unused_at:
                unused.append((key, row))
            elif unused_at < first:
                first = unused_at
        self._first_unused_at = min(self._first_unused_at, first)
        return unused

    def _add_remote_counts(self, key: bytes, counts: dict[str, list[int]]) -> None:
        self._remote_counts[key] = counts
        self._bytes += _size_of(counts)

    def _forget(self, shard: int) -> None:
        rows = self._shards.pop(shard, None)
        for key, row in () if rows is None else rows.items():
            self._dropped(key, row)
        self._senders.pop(shard, None)
        self._origins.pop(shard, None)

    def _dropped(self, key: bytes, row: bytes) -> None:
        self._size -= 1
        self._bytes -= _ROW_BYTES + len(row) + _size_of(self._remote_counts.pop(key, {}))
        self._limits.add_rows(head_of(row)[0], -1)


def _size_of(remote_counts: dict[str, list[int]]) -> int:
    """Estimate the bytes of the counts of other data centers."""
    return sum([_COUNTS_BYTES + _NUMBER_BYTES * len(counts) for counts in remote_counts.values()])
