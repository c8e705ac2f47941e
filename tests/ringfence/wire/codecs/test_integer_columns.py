import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.wire.bounds import MAX_U64
from ringfence.wire.codecs.integer_columns import (
    read_integers,
    read_runs,
    write_integers,
    write_runs,
)
from ringfence.wire.errors import BadMessage

columns = st.integers(1, 20).flatmap(
    lambda count: st.lists(
        st.one_of(st.integers(0, 3), st.integers(0, MAX_U64)), min_size=count, max_size=count
    )
)
runs = st.lists(st.integers(1, 300), min_size=1, max_size=20)


@given(column=columns)
def test_reading_a_written_column_returns_an_equal_column(column):
    wire = write_integers(column, len(column), "field")

    assert read_integers(wire, len(column), "field") == column


@given(value=st.integers(0, MAX_U64), count=st.integers(1, 5000))
def test_equal_values_are_written_as_one_integer(value, count):
    assert write_integers([value] * count, count, "field") == value


@pytest.mark.parametrize(
    ("largest", "width"), [(255, 1), (256, 2), (65_535, 2), (65_536, 4), (2**32, 8), (MAX_U64, 8)]
)
def test_the_width_of_a_column_depends_on_its_largest_value(largest, width):
    assert write_integers([0, largest, 1], 3, "field") == b"".join(
        value.to_bytes(width, "big") for value in (0, largest, 1)
    )


def test_a_column_wider_than_necessary_is_accepted():
    assert read_integers(bytes.fromhex("0000 0001 0000 0002"), 2, "field") == [1, 2]
    assert read_integers(b"\x07\x07", 2, "field") == [7, 7]


@pytest.mark.parametrize(
    "wire",
    [None, True, -1, 4, 1.0, "1", [1, 1], b"", b"\x01", b"\x01\x01\x01", b"\x01\x04", bytes(32)],
)
def test_an_invalid_column_is_rejected(wire):
    with pytest.raises(BadMessage, match="field must be 2 integers from 0 to 3"):
        read_integers(wire, 2, "field", most=3)


@pytest.mark.parametrize("column", [[], [1], [1, 2, 3], [4, 4], [1, 4], [-1, -1], [0, -1]])
def test_an_invalid_column_cannot_be_written(column):
    with pytest.raises(BadMessage, match="field must be"):
        write_integers(column, 2, "field", most=3)


@given(runs=runs)
def test_reading_written_runs_returns_equal_runs(runs):
    wire = write_runs(runs, sum(runs), "field")

    assert read_runs(wire, sum(runs), "field") == runs


@given(length=st.integers(1, 300), count=st.integers(1, 10))
def test_equal_runs_are_written_as_one_integer(length, count):
    assert write_runs([length] * count, length * count, "field") == length


def test_an_empty_list_of_runs_is_written_as_none():
    assert write_runs([], 5, "field") is None
    assert read_runs(None, 5, "field") == []


@pytest.mark.parametrize(
    "wire",
    [True, 0, -1, 3, 6, [2, 2], "", b"", b"\x04", bytes(4), b"\0\4\0\0", b"\0\3\0\2", b"\0\1" * 3],
)
def test_runs_that_do_not_sum_to_the_count_are_refused(wire):
    with pytest.raises(BadMessage, match="field must be run lengths"):
        read_runs(wire, 4, "field")


@pytest.mark.parametrize("runs", [[4, 0], [3], [5, -1], [2, 3]])
def test_invalid_runs_cannot_be_written(runs):
    with pytest.raises(BadMessage, match="field must be run lengths"):
        write_runs(runs, 4, "field")
