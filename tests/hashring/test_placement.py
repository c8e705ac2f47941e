from array import array
from bisect import bisect_left

import mmh3
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hashring import SHARDS, Member, NodeId, placement, ring
from hashring.placement import (
    first_vnode,
    points_of,
    sort_vnodes,
    update_vnodes,
)

SHARD_WIDTH = 2**64 // SHARDS

few_points = st.integers(0, 5)
few_vnodes = st.lists(st.tuples(few_points, st.sampled_from("abc")), max_size=12)
points_near_shard_starts = st.builds(
    lambda shard, offset: min(max(shard * SHARD_WIDTH + offset, 0), 2**64 - 1),
    st.integers(0, SHARDS),
    st.integers(-1, 1),
)
points_anywhere = points_near_shard_starts | st.integers(0, 2**64 - 1)
names = st.sampled_from("abcd").map(NodeId)


def circle_of(vnodes):
    """Return the positions and names of some vnodes, sorted."""
    vnodes = sorted(vnodes)
    return array("Q", [point for point, _ in vnodes]), [name for _, name in vnodes]


def points_by_name(vnodes):
    """Return the positions of each member's vnodes, in any order."""
    return {name: [point for point, each in vnodes if each == name] for _, name in vnodes}


def two_labels_met(vnodes, label_of, shard):
    """Return the labels of the first vnode after a shard's start, and of the next distinct one."""
    vnodes = sorted(vnodes)
    first = bisect_left(vnodes, (shard * SHARD_WIDTH, ""))
    walk = [name for _, name in vnodes[first:] + vnodes[:first]]
    return walk[0], next(name for name in walk if label_of[name] != label_of[walk[0]])


@pytest.mark.parametrize(
    ("weight", "vnodes"), [(0.25, 64), (1.0, 256), (1.001, 256), (1.003, 257), (4.0, 1024)]
)
def test_a_member_has_256_vnodes_per_unit_weight(weight, vnodes):
    assert len(points_of(Member(NodeId("a"), weight=weight))) == vnodes


def test_a_vnodes_position_is_the_low_64_bits_of_its_hash():
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
def test_vnodes_at_one_position_are_all_kept_in_order_of_names(points_by_rank):
    points, ranks = sort_vnodes(points_by_rank)

    assert list(zip(points, ranks, strict=True)) == sorted(
        (point, rank) for rank, points in enumerate(points_by_rank) for point in points
    )


@given(st.lists(st.lists(few_points, max_size=6), min_size=2, max_size=5), st.data())
def test_a_leaving_member_removes_no_vnodes_of_others_at_its_positions(points_by_rank, data):
    leaver = data.draw(st.integers(0, len(points_by_rank) - 1))
    points, ranks = sort_vnodes(points_by_rank)

    rest = sort_vnodes(
        [] if rank == leaver else points for rank, points in enumerate(points_by_rank)
    )

    kept = [(point, rank) for point, rank in zip(points, ranks, strict=True) if rank != leaver]
    assert list(zip(*rest, strict=True)) == kept


def test_the_first_member_by_name_owns_a_shared_position():
    point = 7 * SHARD_WIDTH + 1

    _, ranks = sort_vnodes([[point], [point, point]])

    assert ranks == [0, 1, 1]
    assert [first_vnode([point] * 3, shard) for shard in (0, 7, 8, SHARDS - 1)] == [0, 0, 3, 3]


@given(stay=few_vnodes, removed=few_vnodes, added=few_vnodes)
def test_adding_and_removing_vnodes_keeps_the_full_sort_order(stay, removed, added):
    points, names = circle_of(stay + removed)

    changes = points_by_name(removed), points_by_name(added)

    assert update_vnodes(points, names, *changes) == circle_of(stay + added)
    assert (points, names) == circle_of(stay + removed)


@settings(max_examples=40, deadline=None)
@given(st.lists(points_anywhere, min_size=1, max_size=20), st.lists(st.integers(0, SHARDS - 1)))
def test_a_shard_maps_to_the_first_vnode_at_or_after_its_start(points, shards):
    points.sort()

    firsts = [first_vnode(points, shard) for shard in shards]

    assert firsts == [bisect_left(points, shard * SHARD_WIDTH) for shard in shards]


PLACE_SHARDS = pytest.mark.parametrize(
    "place_shards", [placement.place_shards, ring.place_shards], ids=["plain", "compiled"]
)


@PLACE_SHARDS
@settings(max_examples=200, deadline=None)
@given(
    vnodes=st.lists(st.tuples(points_anywhere, names), min_size=1, max_size=12),
    labels=st.sampled_from(["abcd", "xxxd", "xxdd"]),
)
def test_a_shard_belongs_to_its_first_two_labels(place_shards, vnodes, labels):
    label_of = dict(zip("abcd", labels, strict=True))
    label_of = {name: label_of[name] for _, name in vnodes}
    assume(len(set(label_of.values())) > 1)

    owners, standbys = place_shards(*circle_of(vnodes), label_of)

    assert len(owners) == len(standbys) == SHARDS
    near_points = {point // SHARD_WIDTH + step for point, _ in vnodes for step in (-1, 0, 1, 2)}
    for shard in (near_points | {0, SHARDS - 1}) & set(range(SHARDS)):
        assert (owners[shard], standbys[shard]) == two_labels_met(vnodes, label_of, shard)


@PLACE_SHARDS
def test_shards_without_vnodes_or_with_one_label_lack_owners_or_standbys(place_shards):
    assert place_shards(array("Q"), [], {}) == ((), ())
    assert place_shards(array("Q", [5, 7]), ["a", "a"], {"a": "x"}) == (("a",) * SHARDS, ())


@PLACE_SHARDS
def test_each_of_many_vnodes_owns_few_shards(place_shards):
    names = [NodeId("a"), NodeId("b"), NodeId("b")] * SHARDS
    points = array("Q", [place * SHARD_WIDTH // 3 for place in range(3 * SHARDS)])

    owners, standbys = place_shards(points, names, {"a": "a", "b": "b"})

    assert set(owners) == {"a"}
    assert set(standbys) == {"b"}
