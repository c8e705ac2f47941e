import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hashring
from hashring import SHARDS, shard_of, shards, shards_of


def test_there_are_16384_shards():
    assert SHARDS == 16384


@pytest.mark.parametrize(
    ("key", "published_hash"),
    [
        (b"", 0x00000000),
        (b"test", 0xBA6BD213),
        (b"Hello, world!", 0xC0363E43),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_a_shard_is_the_top_14_bits_of_the_published_murmur3_vectors(key, published_hash):
    assert shard_of(key) == published_hash >> 18


@given(st.binary())
def test_every_key_has_a_shard_in_range_made_of_the_unsigned_hash(key):
    shard = shard_of(key)

    assert 0 <= shard < SHARDS
    assert shard == (mmh3.hash(key) % 2**32) * SHARDS // 2**32


def test_keys_spread_over_the_shards():
    per_eighth = [0] * 8
    for number in range(40_000):
        per_eighth[shard_of(b"user:%d" % number) * 8 // SHARDS] += 1

    # Binomial: 5000 expected, sigma 66.
    assert all(4_650 < count < 5_350 for count in per_eighth)


@pytest.mark.parametrize("pick", [hashring.pick, shards.pick])
@given(keys=st.lists(st.binary(max_size=70)))
def test_the_items_of_keys_are_those_of_their_shards(pick, keys):
    table = tuple(range(SHARDS))

    assert pick(keys, table) == shards_of(keys) == [shard_of(key) for key in keys]


@pytest.mark.parametrize("pick", [hashring.pick, shards.pick])
def test_items_are_picked_for_any_key_sequence_and_table(pick):
    keys = (b"one", b"two")
    table = bytearray(SHARDS)
    table[shard_of(b"two")] = 1

    assert pick(keys, table) == [0, 1]
    assert pick([], table) == []


@pytest.mark.parametrize("pick", [hashring.pick, shards.pick])
def test_invalid_keys_and_short_tables_are_rejected(pick):
    with pytest.raises(TypeError):
        pick([b"key", 5], bytes(SHARDS))
    with pytest.raises(IndexError):
        pick([b"key"], b"")


GROUP_BY = pytest.mark.parametrize("group_by", [hashring.group_by, shards.group_by])


@GROUP_BY
@given(keys=st.lists(st.binary(max_size=70)), every=st.integers(1, 4))
def test_keys_are_grouped_by_the_items_of_their_marked_shards(group_by, keys, every):
    marked = bytes([shard % every for shard in range(SHARDS)])
    table = [shard % 3 + 1000 for shard in range(SHARDS)]
    groups: dict[int, list[bytes]] = {}
    for key in keys:
        if marked[shard_of(key)]:
            groups.setdefault(table[shard_of(key)], []).append(key)

    assert [*group_by(keys, table, marked).items()] == [*groups.items()]
    assert group_by(tuple(keys), table, bytearray(SHARDS)) == {}


@GROUP_BY
def test_grouping_rejects_invalid_keys_and_short_tables(group_by):
    with pytest.raises(TypeError):
        group_by([b"key", 5], bytes(SHARDS), bytes(SHARDS))
    with pytest.raises(IndexError):
        group_by([b"key"], b"", b"\1" * SHARDS)
    with pytest.raises(IndexError):
        group_by([b"key"], bytes(SHARDS), b"")


@pytest.mark.parametrize("mark", [hashring.mark, shards.mark])
@given(st.lists(st.sampled_from(["a", "node", None])), st.sampled_from(["node", "b"]))
def test_the_items_of_a_table_that_equal_an_item_are_marked(mark, table, item):
    other = "".join(item)  # An equal item need not be the same object.

    assert mark(table, other) == mark(tuple(table), item) == bytes(each == item for each in table)
