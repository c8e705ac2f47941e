"""Replicas that a standby keeps of its owners' counters."""

import tracemalloc
from bisect import bisect_left
from dataclasses import replace

import pytest

from hashring import NodeId, shard_of
from node.shards.replicas import Replicas
from ringfence.limiter import Algorithm, Limit, PackedSnapshot, Snapshot
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


def test_each_search_looks_at_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.shards.replicas._MAX_ROWS", 3)
    copies = Replicas(10)
    for number in range(8):
        copies.keep(OWNER, snapshot((b"key-%04d" % number, [1, 2, 0])), S)
    assert len(copies.shards()) == 8

    left = []
    for _ in range(3):
        copies.expire(1000 * S)
        left.append(len(copies))

    assert left == [5, 2, 0]


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


# -- bounds in bytes -------------------------------------------------------------------------------


def number_kept(copies: Replicas, remote_counts: dict[str, list[int]], rows: int = 50) -> int:
    """Store rows with a state of three numbers one by one; return how many are kept."""
    for number in range(rows):
        counts = snapshot((b"key-%04d" % number, [1, 2, 0]))
        if remote_counts:
            counts.remote_counts.append(remote_counts)
        copies.keep(OWNER, counts, S)
    return len(copies)


def bytes_of(remote_counts: dict[str, list[int]]) -> int:
    """Return the bytes of a row; they are different for the compiled rows."""
    bounds = range(1, 10_000)
    return bounds[
        bisect_left(bounds, 1, key=lambda most: number_kept(Replicas(9, most), remote_counts, 1))
    ]


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize(
    ("remote_counts", "more_bytes"),
    [
        ({}, 0),
        ({"eu": [1, 5]}, 150 + 2 * 40),
        ({"eu": [1, 5], "us": [1, 5, 2, 6]}, 2 * 150 + 6 * 40),
    ],
)
def test_rows_and_their_counts_of_other_data_centers_fill_the_bound_in_bytes(
    remote_counts: dict[str, list[int]], more_bytes: int, rows: int
) -> None:
    row_bytes = bytes_of(remote_counts)

    assert row_bytes == bytes_of({}) + more_bytes
    assert number_kept(Replicas(1000, rows * row_bytes), remote_counts) == rows
    assert number_kept(Replicas(1000, rows * row_bytes - 1), remote_counts) == rows - 1


@pytest.mark.parametrize(
    ("most_keys", "most_bytes"), [(100, 64 << 20), (131_072, 64 << 20), (200_000, 512 * 200_000)]
)
def test_by_default_replicas_use_512_bytes_per_key_and_at_least_64_mib(
    most_keys: int, most_bytes: int
) -> None:
    numbers = [0] * 100_000
    row_bytes = bytes_of({}) + 150 + len(numbers) * 40

    kept = number_kept(Replicas(most_keys), {"eu": numbers})

    assert kept == most_bytes // row_bytes


def test_counts_of_other_data_centers_free_their_bytes_when_they_end() -> None:
    remote_counts = {"eu": [1, 5]}
    most_bytes = 10 * bytes_of(remote_counts)
    copies = Replicas(1000, most_bytes)
    assert number_kept(copies, remote_counts, 10) == 10

    assert number_kept(copies, {}, 10) == 10  # The same keys.
    assert number_kept(copies, {}, 200) == most_bytes // bytes_of({})


# -- search for unused rows ------------------------------------------------------------------------


def test_a_call_looks_at_64_shards_for_unused_rows() -> None:
    copies = Replicas(1000)
    keys = [b"key-%04d" % number for number in range(400)]
    first_of_shards = list({shard_of(key): key for key in keys}.values())[:130]
    for key in first_of_shards:
        copies.keep(OWNER, snapshot((key, [1, 2, 0])), S)
    lifetime = copies.next_expiry - S

    left, next_expiry = [], []
    for _ in range(4):
        copies.expire(S + lifetime + 1)
        left.append(len(copies))
        next_expiry.append(copies.next_expiry)

    assert left == [66, 2, 0, 0]
    assert next_expiry[:2] == [0, 0]
    assert min(next_expiry[2:]) > 1_000_000 * S


def test_a_row_expires_after_the_lifetime_of_its_own_limit() -> None:
    copies = Replicas(10)
    day = Limit.of_ns(10, 86_400 * S)
    [[one, two, three]] = keys_of_shards(1, 3)
    states = [[1, 2, 0]] * 2
    copies.keep(OWNER, PackedSnapshot.of(Snapshot([one, two], states, [day, LIMIT], [0, 1], [])), S)
    copies.keep(OWNER, snapshot((three, [1, 2, 0])), 11 * S)

    instants = []
    while len(copies):
        instants.append(copies.next_expiry)
        copies.expire(instants[-1])
        before = len(copies)
        copies.expire(instants[-1] + 1)
        assert len(copies) == before - 1

    assert instants == [S + 120 * S, 11 * S + 120 * S, S + 2 * 86_400 * S]


@pytest.mark.parametrize("counts", [[], [7, 500]], ids=["own", "of several data centers"])
def test_a_row_of_an_overdrawn_bucket_expires_when_the_bucket_is_empty(counts: list[int]) -> None:
    copies = Replicas(10)
    bucket = replace(LIMIT, algorithm=Algorithm.LEAKY_BUCKET)
    empty_at = S + 501 * bucket.period_ns // bucket.amount
    row = Snapshot([b"key-one-"], [[500, 3, *counts]], [bucket], [0], [])
    copies.keep(OWNER, PackedSnapshot.of(row), S)

    copies.expire(copies.next_expiry + 1)
    assert copies.next_expiry == empty_at
    copies.expire(empty_at)
    assert len(copies) == 1
    copies.expire(empty_at + 1)
    assert len(copies) == 0


def test_a_row_that_replaces_another_begins_its_lifetime_again() -> None:
    copies = Replicas(10)
    copies.keep(OWNER, snapshot((b"key-one-", [1, 2, 0])), S)
    copies.keep(OWNER, snapshot((b"key-one-", [1, 3, 0])), 50 * S)

    copies.expire(S + 120 * S + 1)
    assert len(copies) == 1
    copies.expire(50 * S + 120 * S + 1)
    assert len(copies) == 0


def test_all_counters_of_one_arrival_are_returned_together() -> None:
    [[one, two, three]] = keys_of_shards(1, 3)
    copies = Replicas(10)
    copies.keep(OWNER, snapshot((one, [1, 2, 0]), (two, [1, 1, 0])), S)
    copies.keep(OWNER, snapshot((three, [1, 1, 0])), 2 * S)

    found = dict(copies.of(shard_of(one)))

    assert {at: sorted(counts.keys) for at, counts in found.items()} == {
        S: sorted([one, two]),
        2 * S: [three],
    }
    assert [counts.limits for counts in found.values()] == [[LIMIT], [LIMIT]]
    assert list(copies.of(shard_of(one) + 1)) == []
