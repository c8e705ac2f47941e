"""Shard of a key: one of 16384 equal parts of the 32-bit hash space.

A shard is the unit of ownership, transfer and standby copies. `ring` computes its owner.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import eq
from typing import TypeVar

from mmh3 import mmh3_32_uintdigest

__all__ = ["SHARDS", "SHARD_BITS", "group_by", "mark", "pick", "shard_of", "shards_of"]

Item = TypeVar("Item")

SHARD_BITS = 14
SHARDS = 1 << SHARD_BITS
_SHIFT = 32 - SHARD_BITS


def shard_of(key: bytes) -> int:
    """Return the shard of a key: the top 14 bits of its MurmurHash3 x86_32 hash with seed 0.

    Clients compute the same hash, so it has no secret. It must not identify a key, because an
    attacker can easily find keys with equal hashes.
    """
    return mmh3_32_uintdigest(key) >> _SHIFT


def shards_of(keys: Iterable[bytes]) -> list[int]:
    """Return the shard of each key; takes half the time of calling `shard_of` for each key."""
    return [digest >> _SHIFT for digest in map(mmh3_32_uintdigest, keys)]


def pick(keys: Iterable[bytes], table: Sequence[Item]) -> list[Item]:
    """Return, for each key, the item of `table` that belongs to the key's shard.

    The table has one item per shard. If the compiled module was built, `hashring.pick` is its
    version, which takes a tenth of the time.
    """
    return [table[digest >> _SHIFT] for digest in map(mmh3_32_uintdigest, keys)]


def group_by(
    keys: Iterable[bytes], table: Sequence[Item], marked: bytes | bytearray
) -> dict[Item, list[bytes]]:
    """Return the keys of marked shards by the item of `table` that belongs to their shard.

    Tables have one item per shard, and `marked` one byte, which is 0 for shards to leave out. If
    the compiled module was built, `hashring.group_by` is its version.
    """
    groups: dict[Item, list[bytes]] = {}
    for key in keys:
        shard = shard_of(key)
        if marked[shard]:
            groups.setdefault(table[shard], []).append(key)
    return groups


def mark(table: Sequence[Item], item: Item) -> bytes:
    """Return one byte per item of `table`: 1 where it equals `item`, else 0.

    If the compiled module was built, `hashring.mark` is its version.
    """
    return bytes(map(eq, table, repeat(item)))
