from collections.abc import Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")

def pick(keys: Iterable[bytes], table: Sequence[Item]) -> list[Item]: ...
def mark(table: Sequence[Item], item: Item) -> bytes: ...
def group_by(
    keys: Iterable[bytes], table: Sequence[Item], marked: bytes | bytearray
) -> dict[Item, list[bytes]]: ...
