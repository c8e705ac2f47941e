"""Dictionaries in packed memory, compared with Python dictionaries."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

packed_dict = pytest.importorskip(
    "ringfence.limiter.packed._packed_dict", reason="the compiled modules were not built"
)

KEYS = (
    st.binary(max_size=3)
    | st.integers(0, 400).map(lambda number: b"key-%d" % number)
    | st.integers(0, 40).map(lambda number: b"rule-%03dkey-%d" % (number % 4, number))
)
ROWS = st.binary(max_size=40) | st.just(bytes(5_000)) | st.integers(253, 257).map(bytes)
STEPS = st.lists(st.tuples(KEYS, st.none() | ROWS), max_size=300)


@given(STEPS)
def test_rows_are_those_of_a_dictionary_after_each_step(
    steps: list[tuple[bytes, bytes | None]],
) -> None:
    rows, expected = packed_dict.PackedDict(), dict[bytes, bytes]()
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
    rows = packed_dict.PackedDict()
    for size in range(1, 40_000):
        rows[b"key"] = bytes(size % 1_000)
        rows[b"other"] = b"row"

    assert dict(rows.items()) == {b"key": bytes(39_999 % 1_000), b"other": b"row"}
    assert rows.nbytes < 3_000


def test_many_keys_with_equal_hash_bytes_are_distinguished() -> None:
    rows = packed_dict.PackedDict()
    for number in range(2_000):
        rows[b"%d" % number] = b"row-%d" % number

    assert [rows.get(b"%d" % number) for number in range(2_000)] == [
        b"row-%d" % number for number in range(2_000)
    ]
    assert rows.get(b"2000") is None


def test_a_key_that_is_too_long_is_refused() -> None:
    rows = packed_dict.PackedDict()
    rows[bytes(255)] = b"row"

    with pytest.raises(ValueError, match="at most 255 bytes, this one 256"):
        rows[bytes(256)] = b"row"
    assert dict(rows.items()) == {bytes(255): b"row"}


def test_keys_of_more_rules_than_have_numbers_are_found() -> None:
    rows = packed_dict.PackedDict()
    expected = {b"%08d" % (number % 300) + b"%d" % number: b"%d" % number for number in range(900)}
    for key, row in expected.items():
        rows[key] = row
    for number in range(0, 300, 7):
        del rows[b"%08d" % number + b"%d" % number]
        del expected[b"%08d" % number + b"%d" % number]

    assert dict(rows.items()) == expected
    assert all(rows.get(key) == row for key, row in expected.items())
    assert rows.get(b"00000299") is None


def test_the_id_of_a_rule_is_stored_once_for_its_keys() -> None:
    rows, others = packed_dict.PackedDict(), packed_dict.PackedDict()
    for number in range(200):
        rows[b"rule-one" + b"%08d" % number] = bytes(17)
        others[b"%08d" % number + b"%08d" % number] = bytes(17)

    assert rows.nbytes <= 1.15 * 200 * (8 + 17 + 3 + 5)
    assert others.nbytes > rows.nbytes + 7 * 200


@pytest.mark.parametrize("spread", [1, 40])
@given(steps=STEPS)
def test_a_map_has_the_rows_of_a_dictionary_after_each_step(
    spread: int, steps: list[tuple[bytes, bytes | None]]
) -> None:
    rows, expected = packed_dict.PackedMap(), dict[bytes, bytes]()
    for key, row in steps:
        for each in [key, *[key + b"-%d" % number for number in range(spread - 1)]]:
            assert rows.get(each) == expected.get(each)
            assert (each in rows) is (each in expected)
            if row is None:
                assert rows.pop(each) == expected.pop(each, None)
            else:
                rows[each] = expected[each] = row
        assert len(rows) == len(expected)

    assert dict(all_rows(rows)) == expected
    assert rows.bytes_in_use >= sum(map(len, expected.values()))
    for key in expected:
        rows.pop(key)
    assert (len(rows), rows.bytes_in_use, rows.next_row()) == (0, 0, None)


def all_rows(rows: Any) -> list[tuple[bytes, bytes]]:
    """Return all rows, after a comparison of the ways to list them."""
    listed, place = list[bytes](), 0
    while True:
        keys, place = rows.keys_from(place, 10)
        listed += keys
        if not place:
            break
    found = [rows.next_row() for _ in range(len(rows))]
    assert sorted(key for key, _ in found) == sorted(listed)
    return found


def test_a_map_of_many_keys_uses_little_memory_and_lists_each_key_once() -> None:
    rows = packed_dict.PackedMap()
    keys = [b"rule-one" + b"%08d" % number for number in range(20_000)]
    for key in keys:
        rows[key] = bytes(10)

    assert sorted(key for key, _ in all_rows(rows)) == keys
    assert 20_000 * (8 + 10) < rows.bytes_in_use < 20_000 * 35
    assert len(rows.keys_from(0, 100)[0]) < 400


def test_a_map_releases_the_memory_of_removed_rows() -> None:
    rows = packed_dict.PackedMap()
    keys = [b"rule-one" + b"%08d" % number for number in range(20_000)]
    for key in keys:
        rows[key] = bytes(30)
    full = rows.nbytes

    for key in keys[:8_000]:
        rows.pop(key)

    assert rows.nbytes < 0.85 * full
    assert {key for key, _ in all_rows(rows)} == {*keys[8_000:]}


def test_all_rows_are_examined_in_turn_while_rows_are_removed() -> None:
    rows = packed_dict.PackedMap()
    for number in range(1000):
        rows[b"%d" % number] = b"row"
    order = [rows.next_row()[0] for _ in range(1000)]

    seen = list[bytes]()
    while len(rows):
        key, _ = rows.next_row()
        seen.append(key)
        rows.pop(key)

    assert seen == order


def test_a_map_with_few_remaining_rows_releases_their_memory() -> None:
    rows = packed_dict.PackedMap()
    for number in range(20_000):
        rows[b"%d" % number] = bytes(20)
    full = rows.nbytes
    for number in range(20_000):
        if number % 10:
            rows.pop(b"%d" % number)

    assert rows.nbytes < full / 3
    assert all(rows.get(b"%d" % number) == bytes(20) for number in range(0, 20_000, 10))


def test_a_search_for_the_next_row_ends_after_some_empty_blocks() -> None:
    rows = packed_dict.PackedMap()
    for number in range(20_000):
        rows[b"%d" % number] = b"row"
    for number in range(1, 20_000):
        rows.pop(b"%d" % number)

    found = [rows.next_row(64) for _ in range(20_000 // 64 // 64 + 2)]

    assert (b"0", b"row") in found
    assert None in found
    assert rows.next_row() == (b"0", b"row")


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 300), max_size=60))
def test_packed_numbers_are_read_back(numbers: list[int]) -> None:
    assert packed_dict.unpack_numbers(packed_dict.pack_numbers(numbers)) == numbers


@pytest.mark.parametrize("number", [-1, 2**64])
def test_numbers_outside_64_bits_are_not_packed(number: int) -> None:
    with pytest.raises(OverflowError):
        packed_dict.pack_numbers([1, number])


def test_bytes_that_end_within_a_number_are_refused() -> None:
    with pytest.raises(ValueError, match="a row must consist of packed numbers"):
        packed_dict.unpack_numbers(packed_dict.pack_numbers([300])[:-1])
