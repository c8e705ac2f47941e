import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashring import SHARDS, shard_of


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
