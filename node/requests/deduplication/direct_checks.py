"""Keys and costs of checks that were asked directly, for as long as they may be repeated.

A repeat names the identity of the direct check. When the shard has moved meanwhile, its new holder
must know the outcome, so the checks move with their shard. The outcomes stand in the answers that
`deduplication` remembers, which have no keys. Bounded in rows: the oldest request is forgotten
first.
"""

from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from hashring import shards_of

__all__ = ["DirectChecks"]

_MOST_ROWS = 32_768
_Rows: TypeAlias = Sequence[int] | None
_Request: TypeAlias = tuple[int, int, int, Sequence[bytes], Sequence[int], _Rows]
"""Until when it may be repeated, session, number, keys, costs, and rows or None for all. A plain
tuple: one is made for each request."""


class DirectChecks:
    """Keys and costs of recent requests."""

    def __init__(self) -> None:
        self._requests: deque[_Request] = deque()
        self._size = 0
        self._by_shard: dict[int, list[tuple[_Request, int]]] | None = None
        """Rows by shard, from when shards move until the next request."""

    def __len__(self) -> int:
        return self._size

    def add(
        self,
        session: int,
        seq: int,
        keys: Sequence[bytes],
        costs: Sequence[int],
        rows: _Rows,
        now: int,
        until: int,
    ) -> None:
        """Keep a request that was decided at `now` and may be repeated `until` then."""
        self._by_shard = None
        requests = self._requests
        requests.append((until, session, seq, keys, costs, rows))
        self._size += len(keys)
        while requests and (self._size > _MOST_ROWS or requests[0][0] < now):
            self._size -= len(requests.popleft()[3])

    def of_shard(self, shard: int, now: int) -> list[tuple[tuple[int, int], int, bytes, int]]:
        """List the checks of a shard that may be repeated: request, row, key and cost of each.

        All requests are sorted by shard at the first call after a request was added.
        """
        if self._by_shard is None:
            self._by_shard = self._sorted()
        return [
            ((session, seq), at if rows is None else rows[at], keys[at], costs[at])
            for (until, session, seq, keys, costs, rows), at in self._by_shard.get(shard, ())
            if until >= now
        ]

    def _sorted(self) -> dict[int, list[tuple[_Request, int]]]:
        by_shard: dict[int, list[tuple[_Request, int]]] = {}
        for request in self._requests:
            for at, shard in enumerate(shards_of(request[3])):
                by_shard.setdefault(shard, []).append((request, at))
        return by_shard
