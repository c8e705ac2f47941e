"""Replicas that a standby stores: the latest state of each key, as its owner sent it.

This module decides how much is stored and for how long. `ownership` turns replicas into counters.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from hashring import NodeId, shard_of
from node.requests.refund_ledger import charge_lifetime_ns
from ringfence.limiter import Limit, Snapshot
from ringfence.limiter.rule_tables import BYTES_PER_KEY, MIN_BYTES

__all__ = ["Replicas"]

_ROW_BYTES = 300
_NUMBER_BYTES = 40
"""Bytes of an integer in a list."""
_MAX_SCANNED = 64
"""Shards that one call of `expire` looks at."""
_NO_REMOTE_COUNTS: dict[str, list[int]] = {}
"""Shared by the rows without remote counts: an empty dictionary of their own takes 64 bytes."""


@dataclass(frozen=True, slots=True)
class _Row:
    state: list[int]
    limit: Limit
    remote_counts: dict[str, list[int]]
    at: int
    """Instant of its arrival: the durations in `state` count from it."""

    @property
    def size(self) -> int:
        """Estimated memory in bytes of one replicated counter and its key."""
        numbers = len(self.state) + sum(map(len, self.remote_counts.values()))
        return _ROW_BYTES + _NUMBER_BYTES * numbers


class Replicas:
    """Replicas by shard and key; above the bounds, the least recently updated shard is dropped.

    There are at most `most` keys and `most_bytes` bytes, by default as many as an engine has.
    """

    def __init__(self, most: int, most_bytes: int | None = None) -> None:
        self._most = most
        self._most_bytes = most_bytes or max(MIN_BYTES, BYTES_PER_KEY * most)
        self._bytes = 0
        self._shards: OrderedDict[int, dict[bytes, _Row]] = OrderedDict()
        self._senders: dict[int, NodeId] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, shard: int) -> bool:
        return shard in self._shards

    def keep(self, sender: NodeId, counts: Snapshot, now: int) -> None:
        """Store counters that an owner sent; an empty state means that the key is unused."""
        for at, key in enumerate(counts.keys):
            shard = shard_of(key)
            self._senders[shard] = sender
            rows = self._shards.setdefault(shard, {})
            self._shards.move_to_end(shard)
            self._dropped(rows.pop(key, None))
            if counts.states[at]:
                remote_counts = counts.remote_counts[at] if counts.remote_counts else None
                limit = counts.limits[counts.which[at]]
                row = _Row(counts.states[at], limit, remote_counts or _NO_REMOTE_COUNTS, now)
                rows[key] = row
                self._size += 1
                self._bytes += row.size
            elif not rows:
                self._forget(shard)
        while self._size > self._most or self._bytes > self._most_bytes:
            self._forget(next(iter(self._shards)))

    def of(self, shard: int) -> Iterator[tuple[int, Snapshot]]:
        """Return the counters in a shard's replica, grouped by their time of arrival."""
        by_instant: dict[int, Snapshot] = {}
        for key, row in self._shards.get(shard, {}).items():
            counts = by_instant.setdefault(row.at, Snapshot([], [], [], [], []))
            counts.keys.append(key)
            counts.states.append(row.state)
            if not counts.limits or counts.limits[-1] != row.limit:
                counts.limits.append(row.limit)
            counts.which.append(len(counts.limits) - 1)
            counts.remote_counts.append(row.remote_counts)
        return iter(by_instant.items())

    def sender_of(self, shard: int) -> NodeId | None:
        """Return the owner that sent the replica of a shard; None if there is no replica."""
        return self._senders.get(shard)

    def drop(self, shards: Iterable[int]) -> None:
        """Remove the stored replicas of these shards."""
        for shard in shards:
            self._forget(shard)

    def shards(self) -> list[int]:
        """Return the shards that have a replica."""
        return list(self._shards)

    def expire(self, now: int) -> None:
        """Drop unused keys from the shards that were updated least recently."""
        for shard in list(islice(self._shards, _MAX_SCANNED)):
            rows = self._shards[shard]
            for key in [
                key for key, row in rows.items() if now - row.at > charge_lifetime_ns(row.limit)
            ]:
                self._dropped(rows.pop(key))
            if rows:
                self._shards.move_to_end(shard)
            else:
                self._forget(shard)

    def _forget(self, shard: int) -> None:
        for row in self._shards.pop(shard, {}).values():
            self._dropped(row)
        self._senders.pop(shard, None)

    def _dropped(self, row: _Row | None) -> None:
        if row is not None:
            self._size -= 1
            self._bytes -= row.size
