"""Counts of keys by shard, with a digest of each shard.

Two data centers compare digests to find the shards whose counts were lost. A digest changes with
each count, so that no comparison reads all counts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from struct import pack, unpack
from typing import Protocol

__all__ = ["DigestedCounts", "Rows", "cells_sum"]

_MAX_KEYS = 1_000_000
_EXAMINED = 300
"""Keys that one step of `forget` looks at."""
_MODULUS = 1 << 64


class Rows(Protocol):
    """Bytes by key in the order of their addition; a dictionary, or less memory in compiled
    code."""

    def __len__(self) -> int: ...
    def __setitem__(self, key: bytes, row: bytes, /) -> None: ...
    def __delitem__(self, key: bytes, /) -> None: ...

    def get(self, key: bytes, /) -> bytes | None:
        """Return the row of a key; None if it has none."""

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        """Return all keys with their rows."""


class DigestedCounts:
    """Latest counts of each key, by shard: alternating window numbers and counts.

    Above `most_keys`, the key that was put first is removed, of the shard that was not changed for
    longest.
    """

    def __init__(
        self,
        shard_of: Callable[[bytes], int],
        new_rows: Callable[[], Rows] = dict,
        most_keys: int = _MAX_KEYS,
    ) -> None:
        """`shard_of` returns the shard of a key, `new_rows` an empty dictionary for one shard."""
        self._shard_of = shard_of
        self._new_rows = new_rows
        self._most_keys = most_keys
        self._by_shard: dict[int, Rows] = {}
        """Counts by shard and key, 8 bytes for each number."""
        self.sums: dict[int, int] = {}
        """Digest of each shard with keys: the sum of `cells_sum` of its keys, modulo 2 ** 64."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def get(self, key: bytes) -> tuple[int, ...]:
        """Return the counts of a key; empty if there are none."""
        rows = self._by_shard.get(self._shard_of(key))
        row = None if rows is None else rows.get(key)
        return () if row is None else unpack(f">{len(row) // 8}Q", row)

    def keys_of(self, shard: int) -> Iterator[bytes]:
        """Yield the keys of a shard; it must not change meanwhile."""
        rows = self._by_shard.get(shard)
        return iter(()) if rows is None else (key for key, _ in rows.items())

    def put(self, key: bytes, cells: Sequence[int]) -> None:
        """Replace the counts of a key, which becomes the last one of its shard, and its shard the
        last one of all."""
        shard, row = self._shard_of(key), pack(f">{len(cells)}Q", *cells)
        rows = self._by_shard.pop(shard, None)
        if rows is None:
            rows = self._new_rows()
        old = rows.get(key)
        added = _sum_of(key, row)
        if old is None:
            self._size += 1
        else:
            added -= _sum_of(key, old)
            del rows[key]
        rows[key] = row
        self._by_shard[shard] = rows
        self.sums[shard] = (self.sums.get(shard, 0) + added) % _MODULUS
        if self._size > self._most_keys:
            rows = next(iter(self._by_shard.values()))
            self.pop(next(iter(rows.items()))[0])

    def pop(self, key: bytes) -> None:
        """Remove a key, if it has counts."""
        shard = self._shard_of(key)
        rows = self._by_shard.get(shard)
        row = None if rows is None else rows.get(key)
        if rows is not None and row is not None:
            del rows[key]
            self._size -= 1
            self.sums[shard] = (self.sums[shard] - _sum_of(key, row)) % _MODULUS
            if not len(rows):
                del self._by_shard[shard], self.sums[shard]

    def pop_shard(self, shard: int) -> Rows:
        """Remove all keys of a shard; return them as the keys of the result."""
        rows = self._by_shard.pop(shard, None)
        if rows is None:
            return self._new_rows()
        del self.sums[shard]
        self._size -= len(rows)
        return rows

    def forget(self, is_over: Callable[[bytes, int], bool]) -> Iterator[None]:
        """Remove the counts of expired windows, some at each step; `is_over` takes key and number
        of the last window."""
        examined = 0
        for shard in [*self._by_shard]:
            rows = [*self._by_shard[shard].items()] if shard in self._by_shard else []
            examined += len(rows)
            for key, row in rows:
                if is_over(key, int.from_bytes(row[-16:-8], "big")):
                    self.pop(key)
            if examined >= _EXAMINED:
                examined = 0
                yield


def cells_sum(key: bytes, cells: Sequence[int]) -> int:
    """Return a 64-bit hash of the counts of one key. The digest of several keys is the sum of their
    hashes."""
    return _sum_of(key, pack(f">{len(cells)}Q", *cells))


def _sum_of(key: bytes, row: bytes) -> int:
    return int.from_bytes(blake2b(key + row, digest_size=8).digest(), "big")
