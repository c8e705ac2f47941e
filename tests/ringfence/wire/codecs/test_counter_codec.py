"""Columns of counters in messages between nodes: short and long ones have the same bounds."""

import pytest

from ringfence.wire.bounds import MAX_MOVED, MAX_NUMBERS, MAX_U64
from ringfence.wire.codecs.counter_codec import (
    checked_integers,
    read_keys,
    read_numbers,
    read_pairs,
)
from ringfence.wire.errors import BadMessage

LENGTHS = [1, 2, 15, 16, 17, 18, 40]
INVALID: list[object] = [-1, 8, True, 1.0, None, b"1", "1", [1]]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("place", [0, -1])
def test_each_number_of_an_array_is_from_0_to_the_greatest(length: int, place: int) -> None:
    numbers: list[object] = [3] * length
    for value in (0, 7):
        numbers[place] = value
        assert checked_integers(numbers, "Message.field", 7) == numbers
        assert read_numbers(numbers, length, "Message.field", 7) == numbers

    for wrong in INVALID:
        numbers[place] = wrong
        with pytest.raises(BadMessage, match=r"Message\.field must be integers from 0 to 7"):
            checked_integers(numbers, "Message.field", 7)


@pytest.mark.parametrize("length", LENGTHS)
def test_an_array_has_as_many_numbers_as_stated(length: int) -> None:
    for wrong in (length - 1, length + 1):
        with pytest.raises(BadMessage, match=rf"must be an array of {length} integers"):
            read_numbers([1] * wrong, length, "Message.field")


@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("place", [0, -1])
def test_each_row_has_pairs_of_integers(count: int, place: int) -> None:
    rows: list[object] = [[1, 2]] * count
    for row in ([], [0, MAX_U64], [1, 2] * 40, [1] * MAX_NUMBERS):
        rows[place] = row
        assert read_pairs(rows, count, "Message.cells") == rows

    wrong: list[object] = [
        *([1], [1, -1], [1, True], [1, 1.0], [MAX_U64 + 1, 0], [1, 2] * 40 + [1, -1]),
        *([1] * (MAX_NUMBERS + 2), None, {}, b"\1\2", (1, 2)),
    ]
    for row in wrong:
        rows[place] = row
        with pytest.raises(BadMessage, match=r"Message\.cells must be"):
            read_pairs(rows, count, "Message.cells")


@pytest.mark.parametrize("count", LENGTHS)
def test_there_are_as_many_rows_as_stated(count: int) -> None:
    for wrong in (count - 1, count + 1):
        with pytest.raises(BadMessage, match=rf"must be {count} arrays"):
            read_pairs([[1, 2]] * wrong, count, "Message.cells")


def test_keys_are_byte_strings_of_8_to_128_bytes() -> None:
    keys = [bytes(8), bytes(128)]
    assert read_keys(keys, "Message") == keys
    assert len(read_keys([bytes(8)] * MAX_MOVED, "Message")) == MAX_MOVED

    for wrong in ([bytes(7)], [bytes(8), bytes(129)], ["12345678"], [None], None):
        with pytest.raises(BadMessage, match=r"Message\.keys must be"):
            read_keys(wrong, "Message")
