"""Replicas that a standby keeps of its owners' counters."""

import tracemalloc

import pytest

from hashring import NodeId, shard_of
from node.shards.replicas import Replicas
from ringfence.limiter import Limit, PackedSnapshot, Snapshot
from tests.node.shards.transfer_peers import keys_of_shards

OWNER = NodeId("a")
LIMIT = Limit.of_ns(10, 60 * 10**9)
S = 10**9


def snapshot(*rows: tuple[bytes, list[int]]) -> PackedSnapshot:
    keys, states = [row[0] for row in rows], [row[1] for row in rows]
    return PackedSnapshot.of(Snapshot(keys, states, [LIMIT], [0] * len(rows), []))


def kept(copies: Replicas, key: bytes) -> list[tuple[int, list[int]]]:
    return [
        (at, counts.states[counts.keys.index(key)])
        for at, counts in copies.of(shard_of(key))
        if key in counts.keys
    ]


def test_the_latest_state_of_a_key_is_kept_with_its_arrival_time() -> None:
    copies = Replicas(10)
    copies.keep(OWNER, snapshot((b"key-one-", [1, 2, 0])), 5 * S)
    copies.keep(OWNER, snapshot((b"key-one-", [1, 3, 0]), (b"key-two-", [1, 1, 0])), 6 * S)

    assert kept(copies, b"key-one-") == [(6 * S, [1, 3, 0])]
    assert len(copies) == 2


def test_a_key_in_its_initial_state_is_dropped() -> None:
    copies = Replicas(10)
    copies.keep(OWNER, snapshot((b"key-one-", [1, 2, 0])), 5 * S)
    copies.keep(OWNER, snapshot((b"key-one-", [])), 6 * S)

    assert kept(copies, b"key-one-") == []
    assert shard_of(b"key-one-") not in copies
    assert len(copies) == 0


def test_the_number_of_replicas_is_bounded() -> None:
    copies = Replicas(10)
    for number in range(100):
        copies.keep(OWNER, snapshot((b"key-%04d" % number, [1, 2, 0])), number * S)

    assert len(copies) <= 10
    assert kept(copies, b"key-0099") == [(99 * S, [1, 2, 0])]


def test_the_least_recently_updated_replicas_are_dropped_first() -> None:
    copies = Replicas(3)
    keys = [b"key-%04d" % number for number in range(5)]
    assert len({*map(shard_of, keys)}) == len(keys)

    for number in (0, 1, 2, 0, 3, 2, 4):
        copies.keep(OWNER, snapshot((keys[number], [1, 2, 0])), S)

    assert sorted(copies.shards()) == sorted(map(shard_of, keys[2:]))


def test_idle_replicas_are_dropped_in_steps() -> None:
    copies = Replicas(1000)
    for number in range(200):
        copies.keep(OWNER, snapshot((b"key-%04d" % number, [1, 2, 0])), S)
    for _ in range(10):
        copies.expire(100 * S)
    assert len(copies) == 200

    for _ in range(10):
        copies.expire(122 * S)
    assert len(copies) == 0


def test_replicas_are_searched_only_when_one_can_be_unused() -> None:
    copies = Replicas(1000)
    assert copies.next_expiry > 1_000_000 * S
    copies.keep(OWNER, snapshot((b"key-one-", [1, 2, 0])), 5 * S)
    first = copies.next_expiry
    assert 65 * S <= first <= 126 * S
    copies.keep(OWNER, snapshot((b"key-two-", [1, 2, 0])), 15 * S)
    assert copies.next_expiry == first

    copies.expire(first)
    assert len(copies) == 2
    copies.expire(first + 1)
    assert len(copies) == 1
    assert copies.next_expiry == first + 10 * S


def test_a_row_that_arrives_during_a_search_expires_at_its_time() -> None:
    copies = Replicas(10_000)
    for number in range(300):
        copies.keep(OWNER, snapshot((b"key-%04d" % number, [1, 2, 0])), S)
    searched_at = copies.next_expiry + 1
    copies.expire(searched_at)
    assert copies.next_expiry == 0
    copies.keep(OWNER, snapshot((b"key-late", [1, 2, 0])), searched_at)
    while not copies.next_expiry:
        copies.expire(searched_at)

    assert len(copies) == 1
    copies.expire(copies.next_expiry + 1)
    assert len(copies) == 0


def test_replicas_of_held_shards_are_dropped() -> None:
    copies = Replicas(10)
    copies.keep(OWNER, snapshot((b"key-one-", [1, 2, 0]), (b"key-two-", [1, 1, 0])), S)
    copies.drop([shard_of(b"key-one-"), 5])

    assert copies.shards() == [shard_of(b"key-two-")]


def test_counts_of_other_data_centers_stay_with_their_key() -> None:
    copies = Replicas(10)
    counts = snapshot((b"key-one-", [1, 2, 0]), (b"key-two-", [1, 1, 0]))
    counts.remote_counts.extend([{"eu": [1, 5]}, {}])
    copies.keep(OWNER, counts, S)

    [(_, one)] = copies.of(shard_of(b"key-one-"))
    [(_, two)] = copies.of(shard_of(b"key-two-"))
    assert (one.remote_counts, two.remote_counts) == ([{"eu": [1, 5]}], [{}])

    copies.keep(OWNER, snapshot((b"key-one-", [1, 3, 0])), 2 * S)
    [(_, one)] = copies.of(shard_of(b"key-one-"))
    assert one.remote_counts == [{}]


def test_each_key_keeps_the_limit_that_counted_it() -> None:
    copies = Replicas(10)
    other = Limit.of_ns(99, S)
    copies.keep(OWNER, snapshot((b"key-one-", [1, 2, 0]), (b"key-two-", [1, 1, 0])), S)
    counts = Snapshot([b"key-one-"], [[1, 2, 0]], [LIMIT, other], [1], [])
    copies.keep(OWNER, PackedSnapshot.of(counts), S)

    [(_, one)] = copies.of(shard_of(b"key-one-"))
    [(_, two)] = copies.of(shard_of(b"key-two-"))
    assert [one.limits[which] for which in one.which] == [other]
    assert [two.limits[which] for which in two.which] == [LIMIT]


def test_limits_without_replicas_take_no_memory() -> None:
    copies = Replicas(10)

    tracemalloc.start()
    try:
        for number in range(2000):
            limit = Limit.of_ns(10 + number, 60 * 10**9)
            counts = Snapshot([b"key-one-"], [[1, 2, 0]], [limit], [0], [])
            copies.keep(OWNER, PackedSnapshot.of(counts), number)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert used < 100_000


@pytest.mark.parametrize("length", [1, 2, 3, 5000])
def test_states_of_any_length_are_returned_as_they_came(length: int) -> None:
    copies = Replicas(10)
    state = [2**64 - 1, *range(length - 1)]

    copies.keep(OWNER, snapshot((b"key-one-", state)), S)

    assert kept(copies, b"key-one-") == [(S, state)]


def test_a_replica_states_its_size_sender_and_origins() -> None:
    copies = Replicas(10)
    one, two = (shard_of(key) for key in (b"key-one-", b"key-two-"))
    copies.keep(OWNER, snapshot((b"key-one-", [1, 2, 0])), S, [(7, 8)])
    copies.keep(NodeId("b"), snapshot((b"key-two-", [1, 2, 0])), S)

    assert [copies.size_of(shard) for shard in (one, two, 5)] == [1, 1, 0]
    assert [copies.sender_of(shard) for shard in (one, two, 5)] == ["a", "b", None]
    assert [copies.origins_of(shard) for shard in (one, 5)] == [(7, 8), ()]
    assert copies.among([5, two, one]) == [two, one]
    assert copies.sent_by(OWNER, [5, two, one]) == [one]
    assert (one in copies, 5 in copies) == (True, False)
    assert Replicas(10).among([one]) == []


def test_dropped_and_replaced_replicas_free_their_bytes() -> None:
    copies = Replicas(1000, most_bytes=10_000)

    def most_kept(*, has_remote_counts: bool) -> int:
        for number in range(200):
            for state in ([1, 2, 0], [1, 2, 0, 4, 5]):
                counts = snapshot((b"key-%04d" % number, state))
                if has_remote_counts:
                    counts.remote_counts.append({"eu": [1, 5, 2, 6], "us": [1, 5]})
                copies.keep(OWNER, counts, S)
        size = len(copies)
        copies.drop(copies.shards())
        return size

    without, including = (most_kept(has_remote_counts=has) for has in (False, True))

    assert 0 < including < without < 200
    for _ in range(3):
        assert most_kept(has_remote_counts=True) == including
        assert most_kept(has_remote_counts=False) == without


def test_a_replica_that_is_dropped_during_a_search_does_not_end_it() -> None:
    copies = Replicas(1000)
    for number in range(200):
        copies.keep(OWNER, snapshot((b"key-%04d" % number, [1, 2, 0])), S)
    copies.expire(122 * S)

    copies.drop(copies.shards()[::2])
    while not copies.next_expiry:
        copies.expire(122 * S)

    assert len(copies) == 0


def test_keys_of_one_shard_keep_their_limits() -> None:
    [[one, two, three]] = keys_of_shards(1, 3)
    other = Limit.of_ns(99, S)
    copies = Replicas(10)

    snapshots = Snapshot([one, two, three], [[1, 2, 0]] * 3, [LIMIT, other], [0, 1, 0], [])
    copies.keep(OWNER, PackedSnapshot.of(snapshots), S)

    [(_, found)] = copies.of(shard_of(one))
    limits = [found.limits[which] for which in found.which]
    assert dict(zip(found.keys, limits, strict=True)) == {one: LIMIT, two: other, three: LIMIT}
