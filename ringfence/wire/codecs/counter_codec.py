"""Encoding and decoding of counters in messages between nodes. Invalid ones raise `BadMessage`."""

from itertools import chain
from typing import cast

from ringfence.limiter.packed.packed_snapshot import PackedSnapshot, check_rows
from ringfence.wire.bounds import (
    MAX_KEY,
    MAX_MOVED,
    MAX_NUMBERS,
    MAX_U64,
    MAX_WRITERS,
    MIN_KEY,
)
from ringfence.wire.codecs.fields import bad_field, binary, integer, items, text
from ringfence.wire.codecs.limit_codec import read_limit, write_limit
from ringfence.wire.framing import MAX_MESSAGE

__all__ = [
    "checked_integers",
    "read_keys",
    "read_numbers",
    "read_packed",
    "read_pairs",
    "write_packed",
]

_LONG = 16
"""Length above which an array of integers is validated by functions of C."""
_PACKED_FIELDS = 4


def write_packed(counts: PackedSnapshot) -> list[object]:
    """Convert counters in packed rows to wire form."""
    limits = [write_limit(limit) for limit in counts.limits]
    return [counts.rows, counts.count, limits, counts.remote_counts]


def read_packed(wire: object, field: str) -> PackedSnapshot:
    """Validate and return counters in packed rows."""
    fields = items(wire, field, _PACKED_FIELDS)
    if len(fields) != _PACKED_FIELDS:
        raise bad_field(field, f"{_PACKED_FIELDS} columns")
    rows = binary(fields[0], f"{field}.rows", MAX_MESSAGE)
    count = integer(fields[1], f"{field}.count", 0, MAX_MOVED)
    wire_limits = items(fields[2], f"{field}.limits", count)
    try:
        check_rows(rows, count, len(wire_limits), MIN_KEY, MAX_KEY)
    except ValueError as error:
        raise bad_field(f"{field}.rows", f"{count} packed rows") from error
    limits = [read_limit(limit, f"{field}.limits") for limit in wire_limits]
    remote_counts = _read_remote_counts(fields[3], count, f"{field}.remote_counts")
    return PackedSnapshot(rows, count, limits, remote_counts)


def read_keys(wire: object, field: str) -> list[bytes]:
    """Validate and return an array of keys."""
    keys = items(wire, f"{field}.keys", MAX_MOVED)
    for key in keys:
        if type(key) is not bytes or not MIN_KEY <= len(key) <= MAX_KEY:
            raise bad_field(f"{field}.keys", f"byte strings of {MIN_KEY} to {MAX_KEY} bytes")
    return keys  # type: ignore[return-value]  # each was checked


def read_numbers(wire: object, count: int, field: str, most: int = MAX_U64) -> list[int]:
    """Validate and return an array of exactly `count` integers."""
    numbers = items(wire, field, MAX_NUMBERS)
    if len(numbers) != count:
        raise bad_field(field, f"an array of {count} integers")
    return checked_integers(numbers, field, most)


def checked_integers(numbers: list[object], field: str, most: int) -> list[int]:
    """Validate and return integers from 0 to `most`."""
    if len(numbers) > _LONG and set(map(type, numbers)) == {int}:
        integers = cast("list[int]", numbers)
        if min(integers) >= 0 and max(integers) <= most:
            return integers
    for number in numbers:
        if type(number) is not int or not 0 <= number <= most:
            raise bad_field(field, f"integers from 0 to {most}")
    return numbers  # type: ignore[return-value]  # each was checked


def _read_rows(wire: object, count: int, field: str) -> list[list[int]]:
    """Validate and return an array of `count` arrays of integers."""
    rows = items(wire, field, MAX_MOVED)
    if len(rows) != count:
        raise bad_field(field, f"{count} arrays")
    if len(rows) > _LONG and set(map(type, rows)) == {list}:
        arrays = cast("list[list[object]]", rows)
        if max(map(len, arrays)) <= MAX_NUMBERS:
            checked_integers([*chain.from_iterable(arrays)], field, MAX_U64)
            return cast("list[list[int]]", arrays)
    return [checked_integers(items(row, field, MAX_NUMBERS), field, MAX_U64) for row in rows]


def read_pairs(wire: object, count: int, field: str) -> list[list[int]]:
    """Validate and return an array of `count` arrays of pairs of integers."""
    rows = _read_rows(wire, count, field)
    if any(len(row) % 2 for row in rows):
        raise bad_field(field, "arrays of pairs")
    return rows


def _read_remote_counts(wire: object, count: int, field: str) -> list[dict[str, list[int]]]:
    rows = items(wire, field, MAX_MOVED)
    if rows and len(rows) != count:
        raise bad_field(field, f"as many as the keys, {count}, or none")
    remote_counts: list[dict[str, list[int]]] = []
    for row in rows:
        if type(row) is not dict or len(row) > MAX_WRITERS:
            raise bad_field(field, f"maps by data center, at most {MAX_WRITERS}")
        cells = {
            text(name, field): items(numbers, field, MAX_NUMBERS) for name, numbers in row.items()
        }
        if any(len(numbers) % 2 for numbers in cells.values()):
            raise bad_field(field, "arrays of pairs")
        checked = {name: checked_integers(each, field, MAX_U64) for name, each in cells.items()}
        remote_counts.append(checked)
    return remote_counts
