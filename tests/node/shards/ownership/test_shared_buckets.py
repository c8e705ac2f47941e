"""Buckets of two members that several data centers share: levels and counts after a merge."""

import pytest

from node.shards.ownership.shared_buckets import joined_buckets
from ringfence.limiter import Algorithm, Limit, Snapshot

LIMIT = Limit.of_ns(10, 1000, algorithm=Algorithm.TOKEN_BUCKET)


def bucket(
    level: int, own: list[int], limit: Limit = LIMIT, ticks: int = 0, **remote: list[int]
) -> Snapshot:
    return Snapshot([b"k"], [[level, ticks, *own]], [limit], [0], [remote])


@pytest.mark.parametrize(
    ("mine", "theirs", "state"),
    [
        # A level has units that are older than the counts.
        (bucket(58, [7, 5]), bucket(1, [7, 1]), [59, 0, 7, 6]),
        (bucket(1, [7, 1]), bucket(58, [7, 5]), [59, 0, 7, 6]),
        # Counts are kept in full, but units that have drained are not in the level.
        (bucket(2, [6, 9]), bucket(3, [7, 4]), [5, 0, 6, 9, 7, 4]),
        (bucket(0, [6, 9]), bucket(3, [7, 3], ticks=5), [3, 5, 6, 9, 7, 3]),
        # The level that is added is rounded up.
        (bucket(0, [6, 9]), bucket(3, [7, 4], ticks=5), [4, 0, 6, 9, 7, 4]),
        # Units of other data centers are in both levels, or only in one.
        (bucket(8, [7, 3], dc2=[7, 5]), bucket(7, [7, 2], dc2=[7, 5]), [10, 0, 7, 5]),
        (bucket(8, [7, 3], dc2=[7, 5]), bucket(2, [7, 2]), [10, 0, 7, 5]),
        (bucket(3, [7, 3]), bucket(4, [7, 2], dc3=[6, 2]), [7, 0, 7, 5]),
        # The state of an unused key is empty.
        (bucket(3, [7, 3]), Snapshot([b"k"], [[]], [LIMIT], [0], []), [3, 0, 7, 3]),
    ],
)
def test_units_of_both_buckets_count(mine: Snapshot, theirs: Snapshot, state: list[int]) -> None:
    assert joined_buckets(mine, theirs, {}, are_shared=False).states == [state]


def test_units_that_both_regained_count_once() -> None:
    mine, theirs = bucket(6, [6, 3, 7, 3]), bucket(5, [6, 5])

    joined = joined_buckets(mine, theirs, {b"k": 4}, are_shared=False)

    assert joined.states == [[7, 0, 6, 4, 7, 3]]


def test_the_larger_numbers_count_for_buckets_with_the_same_origin() -> None:
    mine, theirs = bucket(6, [6, 3, 7, 3]), bucket(8, [6, 5], dc2=[7, 3])

    joined = joined_buckets(mine, theirs, {}, are_shared=True)

    assert joined.states == [[9, 0, 6, 5, 7, 3]]


def test_the_largest_count_of_each_other_data_center_is_kept() -> None:
    mine, theirs = bucket(9, [], dc2=[6, 3, 7, 4]), bucket(9, [], dc2=[7, 5], dc3=[7, 1])

    joined = joined_buckets(mine, theirs, {}, are_shared=False)

    assert joined.remote_counts == [{"dc2": [6, 3, 7, 5], "dc3": [7, 1]}]


@pytest.mark.parametrize(
    "theirs",
    [
        bucket(3, []),
        bucket(3, [7, 3], Limit.of_ns(20, 1000, algorithm=Algorithm.TOKEN_BUCKET)),
        Snapshot([b"other"], [[3, 0, 7, 3]], [LIMIT], [0], []),
    ],
)
def test_other_counters_are_not_joined(theirs: Snapshot) -> None:
    """The other counters have no counts by data center, another limit, or another key."""
    assert not joined_buckets(bucket(3, []), theirs, {}, are_shared=False).keys
