"""Compiled dictionary of replicas, compared with a Python dictionary."""

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashring import SHARDS
from node.shards import replica_rows
from ringfence.limiter.packed_snapshot import pack_rows

packed_rows = pytest.importorskip(
    "node.shards._packed_rows", reason="the compiled modules were not built"
)

FORMS = [packed_rows, replica_rows]
KEYS = (
    st.binary(max_size=3)
    | st.integers(0, 400).map(lambda number: b"key-%d" % number)
    | st.integers(0, 40).map(lambda number: b"rule-%03dkey-%d" % (number % 4, number))
)
ROWS = st.binary(max_size=40) | st.just(bytes(5_000)) | st.integers(253, 257).map(bytes)
NUMBERS = st.integers(0, 2**64 - 1) | st.integers(0, 300)
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


def test_keys_of_more_rules_than_have_numbers_are_found() -> None:
    rows = packed_rows.PackedRows()
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
    rows, others = packed_rows.PackedRows(), packed_rows.PackedRows()
    for number in range(200):
        rows[b"rule-one" + b"%08d" % number] = bytes(17)
        others[b"%08d" % number + b"%08d" % number] = bytes(17)

    assert rows.nbytes <= 1.15 * 200 * (8 + 17 + 3 + 5)
    assert others.nbytes > rows.nbytes + 7 * 200


@given(NUMBERS, NUMBERS, st.lists(NUMBERS, max_size=40))
def test_compiled_rows_have_the_contents_of_plain_ones(
    limit: int, arrived_at: int, state: list[int]
) -> None:
    row = packed_rows.pack_row(limit, arrived_at, state)
    plain = replica_rows.pack_row(limit, arrived_at, state)

    assert packed_rows.head_of(row) == replica_rows.head_of(plain) == (limit, arrived_at)
    assert packed_rows.state_of(row) == replica_rows.state_of(plain) == state


def test_a_row_of_a_short_state_is_short() -> None:
    assert len(packed_rows.pack_row(3, 1_700_000_000 * 10**9, [1, 5_000, 0])) <= 13


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", [-1, 2**64])
def test_numbers_outside_64_bits_are_refused(form: ModuleType, number: int) -> None:
    with pytest.raises(OverflowError):
        form.pack_row(1, 1, [number])


@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_ends_too_soon_is_refused(form: ModuleType) -> None:
    row = form.pack_row(300, 1, [300])

    with pytest.raises(ValueError, match=r"row must|multiple of item size"):
        form.head_of(row[:7])
    with pytest.raises(ValueError, match=r"row must|multiple of item size"):
        form.state_of(row[:-1])


rows_of_frames = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from([b"rule-one", b"rule-two", b""]),
            st.integers(0, 8).map(lambda number: b"key-%d" % number),
            st.integers(0, 1),
            st.lists(st.integers(0, 2**64 - 1), max_size=3),
            st.sampled_from([(0,), (1,), (2,), (1, 2)]),
        ),
        max_size=80,
    ),
    max_size=6,
)


@given(rows_of_frames, st.booleans())
def test_compiled_code_keeps_the_same_replicas(
    frames: list[list[tuple[bytes, bytes, int, list[int], tuple[int, ...]]]], one_origin: bool
) -> None:
    compiled: list[packed_rows.PackedRows | None] = [None] * SHARDS
    plain: list[replica_rows.PlainRows | None] = [None] * SHARDS
    total = 0
    for instant, frame in enumerate(frames):
        packed = pack_rows([(rule + key, limit, state) for rule, key, limit, state, _ in frame])
        origins = [row[4] for row in frame][: 1 if one_origin else None] or [(0,)]
        about = packed, [7, 300], instant, f"n{instant}", origins, 100 * instant

        size, row_bytes, added, dropped = packed_rows.keep_rows(compiled, *about)
        expected = replica_rows.keep_rows(plain, *about)
        total += row_bytes

        assert (size, added, +dropped) == (expected[0], expected[2], +expected[3])
        for found, rows in zip(compiled, plain, strict=True):
            assert (found is None) == (rows is None)
            if found is None or rows is None:
                continue
            assert (found.sender, found.origins) == (rows.sender, rows.origins)
            assert found.updated == rows.updated
            assert [
                (key, packed_rows.head_of(row), packed_rows.state_of(row))
                for key, row in found.items()
            ] == [
                (key, replica_rows.head_of(row), replica_rows.state_of(row))
                for key, row in rows.items()
            ]
    stored = [row for rows in compiled if rows for _, row in rows.items()]
    assert total == sum([packed_rows.ROW_BYTES + len(row) for row in stored])


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_are_not_packed_rows_are_refused(form: ModuleType) -> None:
    packed = pack_rows([(b"rule-onekey-1", 1, [5])])
    for rows, numbers in ((packed, [1]), (packed[:-1], [1, 2]), (b"\1" + packed[1:], [1, 2])):
        with pytest.raises(ValueError, match="packed row"):
            form.keep_rows([None] * SHARDS, rows, numbers, 1, "a", [(0,)], 1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("origins", [[], ()])
def test_rows_without_origins_are_refused(
    form: ModuleType, origins: list[tuple[int, ...]] | tuple[()]
) -> None:
    packed = pack_rows([(b"rule-onekey-1", 0, [5])])
    with pytest.raises(IndexError):
        form.keep_rows([None] * SHARDS, packed, [1], 1, "a", origins, 1)


def test_only_packed_rows_can_be_the_rows_of_a_shard() -> None:
    packed = pack_rows([(b"rule-onekey-1", 0, [5])])
    with pytest.raises(TypeError):
        packed_rows.keep_rows([5] * SHARDS, packed, [1], 1, "a", [(0,)], 1)
