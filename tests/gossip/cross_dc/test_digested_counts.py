"""Counts of keys with the digests that data centers compare."""

import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.cross_dc.digested_counts import DigestedCounts, Rows, cells_sum
from hashring import shard_of

FORMS: list[Callable[[], Rows]] = [dict]
with suppress(ImportError):
    from ringfence.limiter.packed._packed_dict import PackedDict

    FORMS.append(PackedDict)

KEYS = st.sampled_from([b"key-%d" % number for number in range(6)])
CELLS = st.lists(st.integers(0, 2**53), min_size=2, max_size=2)
CHANGES = st.lists(st.tuples(KEYS, CELLS | st.none() | st.just("shard")), max_size=30)


@pytest.mark.parametrize("new_rows", FORMS)
@given(changes=CHANGES)
def test_the_digest_of_a_shard_is_the_sum_of_its_keys(
    new_rows: Callable[[], Rows], changes: list[tuple[bytes, list[int] | str | None]]
) -> None:
    counts, known = DigestedCounts(shard_of, new_rows), dict[bytes, tuple[int, ...]]()
    for key, cells in changes:
        if cells == "shard":
            for gone, _ in counts.pop_shard(shard_of(key)).items():
                del known[gone]
        elif isinstance(cells, list):
            counts.put(key, cells)
            known[key] = tuple(cells)
        else:
            counts.pop(key)
            known.pop(key, None)

    sums: dict[int, int] = {}
    for key, row in known.items():
        shard = shard_of(key)
        sums[shard] = (sums.get(shard, 0) + cells_sum(key, row)) % 2**64
    assert counts.sums == sums
    assert len(counts) == len(known)
    assert {key: counts.get(key) for key in known} == known
    assert {key for shard in sums for key in counts.keys_of(shard)} == known.keys()


@pytest.mark.parametrize("new_rows", FORMS)
def test_expired_windows_are_forgotten_in_steps(new_rows: Callable[[], Rows]) -> None:
    counts = DigestedCounts(shard_of, new_rows)
    for number in range(1000):
        counts.put(b"old%d" % number, [6, 1])
    counts.put(b"new", [6, 1, 7, 1])

    steps = sum(1 for _ in counts.forget(lambda key, number: number < 7))

    assert steps in (3, 4)
    assert list(counts.sums) == [shard_of(b"new")]
    assert len(counts) == 1


@pytest.mark.parametrize("new_rows", FORMS)
def test_above_the_bound_the_key_that_was_put_first_is_removed(
    new_rows: Callable[[], Rows],
) -> None:
    counts = DigestedCounts(shard_of, new_rows, most_keys=2)
    for key in (b"a", b"b", b"a", b"c"):
        counts.put(key, [7, 1])

    assert [counts.get(key) for key in (b"a", b"b", b"c")] == [(7, 1), (), (7, 1)]
    assert (len(counts), set(counts.sums)) == (2, {shard_of(b"a"), shard_of(b"c")})


def test_a_count_that_cannot_be_stored_changes_nothing() -> None:
    counts = DigestedCounts(shard_of)
    counts.put(b"key", [7, 1])
    with pytest.raises(struct.error):
        counts.put(b"key", [7, 2**64])

    assert counts.get(b"key") == (7, 1)
    assert [*counts.keys_of(shard_of(b"key"))] == [b"key"]


def test_sums_are_the_same_in_every_release() -> None:
    """During an upgrade, data centers of two releases compare them."""
    assert f"{cells_sum(b'12345678k', [5, 20]):016x}" == "b3c46eead873d45d"


@given(st.dictionaries(st.binary(min_size=8, max_size=20), st.integers(0, 2**53), max_size=8))
def test_sums_do_not_depend_on_order_and_differ_for_different_counts(
    counts: dict[bytes, int],
) -> None:
    def total(items: list[tuple[bytes, int]]) -> int:
        return sum(cells_sum(key, [7, count]) for key, count in items) % 2**64

    items = list(counts.items())
    assert total(items) == total(items[::-1])
    if items:
        changed = [(items[0][0], items[0][1] + 1), *items[1:]]
        assert total(changed) != total(items)
