"""Keys and costs of checks that clients sent directly, stored while they may be repeated.

A repeated check has the identity of the direct check. If the shard was transferred meanwhile, its
new owner must know the outcome, so the checks move with their shard. The outcomes are in the
answers that `sent_answers` stores, which have no keys. The number of rows is bounded: the oldest
request is forgotten first.
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
    """Keys and costs of recent direct requests."""

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
        """Store a request that was decided at `now` and may be repeated until `until`."""
        self._by_shard = None
        requests = self._requests
        requests.append((until, session, seq, keys, costs, rows))
        self._size += len(keys)
        while requests and (self._size > _MOST_ROWS or requests[0][0] < now):
            self._size -= len(requests.popleft()[3])

    def of_shard(self, shard: int, now: int) -> list[tuple[tuple[int, int], int, bytes, int]]:
        """Return the checks of a shard that may be repeated: request, row, key and cost of each.

        The first call after a new request sorts all requests by shard.
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
