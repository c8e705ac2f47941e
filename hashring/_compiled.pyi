from collections.abc import Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")

def pick(keys: Iterable[bytes], table: Sequence[Item]) -> list[Item]: ...
