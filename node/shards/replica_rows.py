"""Rows of replicas as bytes, where the compiled functions of `_packed_rows` do not exist.

A row is the number of its limit, the instant of its arrival, from which the durations in the state
count, and the numbers of the state, 8 bytes each.
"""

from array import array
from functools import lru_cache
from struct import Struct

__all__ = ["head_of", "pack_row", "state_of"]

_HEAD = Struct("=IQ")
_NUMBERS = "Q"


@lru_cache(maxsize=64)
def _row_of(numbers: int) -> Struct:
    """Return the layout of a row whose state has so many numbers."""
    return Struct(f"{_HEAD.format}{numbers}{_NUMBERS}")


def pack_row(limit: int, arrived_at: int, state: list[int]) -> bytes:
    """Return a row with the number of a limit, the instant of its arrival, and a state."""
    return _row_of(len(state)).pack(limit, arrived_at, *state)


def head_of(row: bytes) -> tuple[int, int]:
    """Return the number of the limit and the instant of arrival in a row."""
    limit, arrived_at = _HEAD.unpack_from(row)
    return limit, arrived_at


def state_of(row: bytes) -> list[int]:
    """Return the state in a row."""
    return array(_NUMBERS, row[_HEAD.size :]).tolist()
