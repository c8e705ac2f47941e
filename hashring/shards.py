"""The shard of a key: one of 16384 equal parts of the 32-bit key space.

A shard is the unit of ownership, handoff and standby. Who owns it is the ring's business.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from mmh3 import mmh3_32_uintdigest

__all__ = ["SHARDS", "SHARD_BITS", "pick", "shard_of", "shards_of"]

Item = TypeVar("Item")

SHARD_BITS = 14
SHARDS = 1 << SHARD_BITS
_SHIFT = 32 - SHARD_BITS


def shard_of(key: bytes) -> int:
    """Place a key: the top 14 bits of its MurmurHash3 x86_32, seed 0.

    The hash is public on purpose, since clients compute it too. It places a key and must not
    identify it: keys that collide here are easy to craft.
    """
    return mmh3_32_uintdigest(key) >> _SHIFT


def shards_of(keys: Iterable[bytes]) -> list[int]:
    """Place many keys, each as `shard_of` does, in half the time."""
    return [digest >> _SHIFT for digest in map(mmh3_32_uintdigest, keys)]


def pick(keys: Iterable[bytes], table: Sequence[Item]) -> list[Item]:
    """Pick from a table of `SHARDS` items that of each key's shard.

    `hashring.pick` is the compiled one, which takes a tenth of the time, where that was built.
    """
    return [table[digest >> _SHIFT] for digest in map(mmh3_32_uintdigest, keys)]
