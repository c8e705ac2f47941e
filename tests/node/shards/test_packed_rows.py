"""Compiled dictionary of replicas, compared with a Python dictionary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

packed_rows = pytest.importorskip(
    "node.shards._packed_rows", reason="the compiled modules were not built"
)

KEYS = st.binary(max_size=3) | st.integers(0, 400).map(lambda number: b"key-%d" % number)
ROWS = st.binary(max_size=40) | st.just(bytes(5_000))
STEPS = st.lists(st.tuples(KEYS, st.none() | ROWS), max_size=300)


@given(STEPS)
def test_rows_are_those_of_a_dictionary_after_each_step(
    steps: list[tuple[bytes, bytes | None]],
) -> None:
    rows, expected = packed_rows.PackedRows(), dict[bytes, bytes]()
    for key, row in steps:
        assert rows.get(key) == expected.get(key)
        if row is not None:
            rows[key] = expected[key] = row
        elif key in expected:
            del rows[key], expected[key]
        else:
            with pytest.raises(KeyError):
                del rows[key]

    assert list(rows.items()) == list(expected.items())
    assert len(rows) == len(expected)


def test_updates_of_all_sizes_use_memory_again() -> None:
    rows = packed_rows.PackedRows()
    for size in range(1, 40_000):
        rows[b"key"] = bytes(size % 1_000)
        rows[b"other"] = b"row"

    assert dict(rows.items()) == {b"key": bytes(39_999 % 1_000), b"other": b"row"}
    assert rows.nbytes < 3_000


def test_many_keys_with_equal_hash_bytes_are_told_apart() -> None:
    rows = packed_rows.PackedRows()
    for number in range(2_000):
        rows[b"%d" % number] = b"row-%d" % number

    assert [rows.get(b"%d" % number) for number in range(2_000)] == [
        b"row-%d" % number for number in range(2_000)
    ]
    assert rows.get(b"2000") is None


def test_a_key_that_is_too_long_is_refused() -> None:
    rows = packed_rows.PackedRows()
    rows[bytes(255)] = b"row"

    with pytest.raises(ValueError, match="at most 255 bytes, this one 256"):
        rows[bytes(256)] = b"row"
    assert dict(rows.items()) == {bytes(255): b"row"}
