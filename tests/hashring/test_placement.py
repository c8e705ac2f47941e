from bisect import bisect_left
from itertools import cycle, islice

import mmh3
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashring import SHARDS, Member, NodeId
from hashring.placement import arrange, first_vnodes, next_other, points_of

SHARD_WIDTH = 2**64 // SHARDS

few_points = st.integers(0, 5)
points_near_shard_starts = st.builds(
    lambda shard, offset: min(max(shard * SHARD_WIDTH + offset, 0), 2**64 - 1),
    st.integers(0, SHARDS),
    st.integers(-1, 1),
)


@pytest.mark.parametrize(
    ("weight", "vnodes"), [(0.25, 64), (1.0, 256), (1.001, 256), (1.003, 257), (4.0, 1024)]
)
def test_a_member_has_256_vnodes_per_unit_weight(weight, vnodes):
    assert len(points_of(Member(NodeId("a"), weight=weight))) == vnodes


def test_a_vnode_stands_at_the_low_64_bits_of_the_hash_of_name_and_number():
    points = points_of(Member(NodeId("é")))

    assert points == [mmh3.hash128("é".encode() + bytes([0, 0, 0, i])) % 2**64 for i in range(256)]
    assert max(points) >= 2**63  # Unsigned: half of the points lie in the upper half.


def test_names_that_end_in_digits_or_zero_bytes_share_no_vnode():
    names = ["n", "n1", "n11", "n\0", "n\0\0", "n\0\0\0\0", "n\0\0\0\1"]

    points = [point for name in names for point in points_of(Member(NodeId(name)))]

    assert len(set(points)) == len(points)


def test_more_weight_adds_vnodes_and_moves_none():
    light, heavy = (points_of(Member(NodeId("a"), weight=weight)) for weight in (1.0, 2.5))

    assert heavy[: len(light)] == light


@given(st.lists(st.lists(few_points, max_size=6), max_size=5))
def test_vnodes_on_one_point_are_all_kept_and_stand_in_the_order_of_names(points_by_rank):
    points, ranks = arrange(points_by_rank)

    assert list(zip(points, ranks, strict=True)) == sorted(
        (point, rank) for rank, points in enumerate(points_by_rank) for point in points
    )


@given(st.lists(st.lists(few_points, max_size=6), min_size=2, max_size=5), st.data())
def test_a_member_that_leaves_takes_no_vnode_of_others_on_its_points_away(points_by_rank, data):
    leaver = data.draw(st.integers(0, len(points_by_rank) - 1))
    points, ranks = arrange(points_by_rank)

    rest = arrange([] if rank == leaver else points for rank, points in enumerate(points_by_rank))

    kept = [(point, rank) for point, rank in zip(points, ranks, strict=True) if rank != leaver]
    assert list(zip(*rest, strict=True)) == kept


def test_of_members_on_one_point_the_first_by_name_owns_and_then_the_next():
    point = 7 * SHARD_WIDTH + 1

    _, ranks = arrange([[point], [point, point]])

    assert ranks == [0, 1, 1]
    assert set(first_vnodes([point] * 3)) == {0}


@settings(max_examples=40, deadline=None)
@given(st.lists(points_near_shard_starts | st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_a_shard_meets_the_first_vnode_at_or_after_its_start_or_wraps(points):
    points.sort()

    firsts = first_vnodes(points)

    assert list(firsts) == [
        bisect_left(points, shard * SHARD_WIDTH) % len(points) for shard in range(SHARDS)
    ]


@given(
    st.lists(st.sampled_from("abc"), min_size=2, max_size=12).filter(lambda it: len(set(it)) > 1)
)
def test_the_next_other_place_is_the_first_round_the_circle_with_another_label(labels):
    size = len(labels)

    def walk(index):
        circle = islice(cycle(range(size)), index, index + size)
        return next(place for place in circle if labels[place] != labels[index])

    assert list(next_other(labels)) == [walk(index) for index in range(size)]
