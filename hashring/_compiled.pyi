from array import array
from collections.abc import Iterable, Sequence
from typing import TypeVar

from hashring.member import NodeId

Item = TypeVar("Item")

def place_shards(
    points: array[int], names: list[NodeId], label_of: dict[NodeId, str]
) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]: ...
def pick(keys: Iterable[bytes], table: Sequence[Item]) -> list[Item]: ...
def mark(table: Sequence[Item], item: Item) -> bytes: ...
def group_by(
    keys: Iterable[bytes], table: Sequence[Item], marked: bytes | bytearray
) -> dict[Item, list[bytes]]: ...
