"""Encoding and decoding of columns of integers.

A column of equal values is one integer. Any other column is a byte string of big-endian integers of
one width: 1, 2, 4 or 8 bytes, as the largest value requires. The message contains the number of
rows once, so a column is valid when its size fits. Decoding costs a copy instead of one test per
value.
"""

import struct

from ringfence.limiter.outcome import LONGEST_NS
from ringfence.wire.bounds import MAX_U64
from ringfence.wire.codecs.fields import bad_field
from ringfence.wire.errors import BadMessage

__all__ = ["read_integers", "read_runs", "write_durations", "write_integers", "write_runs"]

_FORMATS = {1: "B", 2: "H", 4: "I", 8: "Q"}
"""Format characters of `struct` by width in bytes."""
_RUN_WIDTH = 2


def write_integers(column: list[int], count: int, field: str, most: int = MAX_U64) -> int | bytes:
    """Encode a column of `count` integers from 0 to `most`."""
    if len(column) != count:
        raise _bad_column(field, count, most)
    first = column[0]
    # Most columns of different values differ at their ends, which avoids the count.
    if count == 1 or (first == column[-1] and column.count(first) == count):
        if 0 <= first <= most:
            return first
        raise _bad_column(field, count, most)
    largest = max(column)
    if largest > most:
        raise _bad_column(field, count, most)
    try:
        return struct.pack(f">{count}{_FORMATS[_width_of(largest)]}", *column)
    except struct.error as error:  # A value is below 0.
        raise _bad_column(field, count, most) from error


def write_durations(column: list[int], count: int, field: str) -> int | bytes:
    """Encode a column of `count` durations; longer ones become `LONGEST_NS`."""
    if column and max(column) > LONGEST_NS:
        column = [min(duration_ns, LONGEST_NS) for duration_ns in column]
    return write_integers(column, count, field)


def read_integers(wire: object, count: int, field: str, most: int = MAX_U64) -> list[int]:
    """Decode a column of `count` integers from 0 to `most`."""
    if type(wire) is int:
        if 0 <= wire <= most:
            return [wire] * count
    elif type(wire) is bytes:
        width, excess = divmod(len(wire), count)
        if excess == 0 and width in _FORMATS:
            column = list(struct.unpack(f">{count}{_FORMATS[width]}", wire))
            if most == MAX_U64 or max(column) <= most:
                return column
    raise _bad_column(field, count, most)


def write_runs(runs: list[int], count: int, field: str) -> int | bytes | None:
    """Encode the lengths of runs (groups of rows), whose sum is `count`, below 65 536; None for no
    runs.

    The decoder does not know the number of runs, so each is always 2 bytes wide.
    """
    if not runs:
        return None
    if min(runs) < 1 or sum(runs) != count:
        raise _bad_runs(field, count)
    first = runs[0]
    if runs.count(first) == len(runs):
        return first
    return struct.pack(f">{len(runs)}{_FORMATS[_RUN_WIDTH]}", *runs)


def read_runs(wire: object, count: int, field: str) -> list[int]:
    """Decode the lengths of runs (groups of rows): each at least 1, with the sum `count`."""
    if wire is None:
        return []
    if type(wire) is int:
        if 0 < wire <= count and count % wire == 0:
            return [wire] * (count // wire)
    elif type(wire) is bytes:
        many, excess = divmod(len(wire), _RUN_WIDTH)
        if excess == 0 and 0 < many <= count:
            runs = list(struct.unpack(f">{many}{_FORMATS[_RUN_WIDTH]}", wire))
            if min(runs) >= 1 and sum(runs) == count:
                return runs
    raise _bad_runs(field, count)


def _width_of(largest: int) -> int:
    if largest < 1 << 16:
        return 1 if largest < 1 << 8 else 2
    return 4 if largest < 1 << 32 else 8


def _bad_column(field: str, count: int, most: int) -> BadMessage:
    return bad_field(field, f"{count} integers from 0 to {most}, or one for all")


def _bad_runs(field: str, count: int) -> BadMessage:
    return bad_field(field, f"run lengths of at least 1 that sum to {count}, or one for all")
