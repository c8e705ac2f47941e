"""Counts of keys by shard, with a digest of each shard.

Two data centers compare digests to find the shards whose counts were lost. A digest changes with
each count, so that no comparison reads all counts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b

__all__ = ["DigestedCounts", "cells_sum"]

_MAX_KEYS = 1_000_000
_EXAMINED = 300
"""Keys that one step of `forget` looks at."""
_MODULUS = 1 << 64


class DigestedCounts:
    """Latest counts of each key, by shard: alternating window numbers and counts.

    Above `most_keys`, the key that was put first is removed, of the shard that was not changed for
    longest.
    """

    def __init__(self, shard_of: Callable[[bytes], int], most_keys: int = _MAX_KEYS) -> None:
        """`shard_of` returns the shard of a key."""
        self._shard_of = shard_of
        self._most_keys = most_keys
        self.by_shard: dict[int, dict[bytes, tuple[int, ...]]] = {}
        self.sums: dict[int, int] = {}
        """Digest of each shard with keys: the sum of `cells_sum` of its keys, modulo 2 ** 64."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def get(self, key: bytes) -> tuple[int, ...]:
        """Return the counts of a key; empty if there are none."""
        return self.by_shard.get(self._shard_of(key), {}).get(key, ())

    def put(self, key: bytes, cells: Sequence[int]) -> None:
        """Replace the counts of a key, which becomes the last one of its shard, and its shard the
        last one of all."""
        shard = self._shard_of(key)
        rows = self.by_shard.pop(shard, {})
        old = rows.pop(key, ())
        added = cells_sum(key, cells) - (cells_sum(key, old) if old else 0)
        rows[key] = tuple(cells)
        self.by_shard[shard] = rows
        self.sums[shard] = (self.sums.get(shard, 0) + added) % _MODULUS
        self._size += not old
        if self._size > self._most_keys:
            rows = self.by_shard[next(iter(self.by_shard))]
            self.pop(next(iter(rows)))

    def pop(self, key: bytes) -> None:
        """Remove a key, if it has counts."""
        shard = self._shard_of(key)
        rows = self.by_shard.get(shard, {})
        cells = rows.pop(key, ())
        if cells:
            self._size -= 1
            self.sums[shard] = (self.sums[shard] - cells_sum(key, cells)) % _MODULUS
            if not rows:
                del self.by_shard[shard], self.sums[shard]

    def pop_shard(self, shard: int) -> Mapping[bytes, tuple[int, ...]]:
        """Remove all keys of a shard; return their counts."""
        rows = self.by_shard.pop(shard, {})
        self.sums.pop(shard, None)
        self._size -= len(rows)
        return rows

    def forget(self, is_over: Callable[[bytes, int], bool]) -> Iterator[None]:
        """Remove the counts of expired windows, some at each step; `is_over` takes key and number
        of the last window."""
        examined = 0
        for shard in [*self.by_shard]:
            rows = self.by_shard.get(shard, {})
            examined += len(rows)
            for key in [key for key, cells in rows.items() if is_over(key, cells[-2])]:
                self.pop(key)
            if examined >= _EXAMINED:
                examined = 0
                yield


def cells_sum(key: bytes, cells: Sequence[int]) -> int:
    """Return a 64-bit hash of the counts of one key. The digest of several keys is the sum of their
    hashes."""
    text = key + b"".join([number.to_bytes(8, "big") for number in cells])
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
