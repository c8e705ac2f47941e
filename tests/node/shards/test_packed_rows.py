"""Compiled dictionary of replicas, compared with a Python dictionary."""

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashring import SHARDS
from node.shards import replica_rows
from ringfence.limiter.packed.packed_snapshot import pack_rows

packed_rows = pytest.importorskip(
    "node.shards._packed_rows", reason="the compiled modules were not built"
)

FORMS = [packed_rows, replica_rows]
NUMBERS = st.integers(0, 2**64 - 1) | st.integers(0, 300)


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
