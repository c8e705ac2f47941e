from array import array
from bisect import bisect_left
from itertools import cycle, islice

import mmh3
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hashring import SHARDS, Member, NodeId
from hashring.placement import (
    next_distinct,
    points_of,
    shards_near,
    sort_vnodes,
    spans_of,
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
    assert spans_of([point] * 3, [range(SHARDS)]) == [(0, 8, 0), (8, SHARDS, 3)]


@given(stay=few_vnodes, removed=few_vnodes, added=few_vnodes)
def test_adding_and_removing_vnodes_keeps_the_full_sort_order(stay, removed, added):
    points, names = circle_of(stay + removed)

    assert update_vnodes(points, names, removed, added) == circle_of(stay + added)
    assert (points, names) == circle_of(stay + removed)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(points_anywhere, min_size=1, max_size=20),
    st.lists(st.integers(0, SHARDS), max_size=6, unique=True),
)
def test_a_shard_maps_to_the_first_vnode_at_or_after_its_start(points, borders):
    points.sort()
    borders.sort()
    ranges = [range(*pair) for pair in zip(borders[::2], borders[1::2], strict=False)]

    spans = spans_of(points, [*ranges, range(SHARDS)])

    assert [(shard, place) for first, end, place in spans for shard in range(first, end)] == [
        (shard, bisect_left(points, shard * SHARD_WIDTH))
        for shards in [*ranges, range(SHARDS)]
        for shard in shards
    ]
    assert all(first < end for first, end, _ in spans)


@given(
    st.lists(st.sampled_from("abcd"), min_size=2, max_size=12).filter(
        lambda it: set(it) & set("ab") and set(it) & set("cd")
    ),
    st.data(),
)
def test_next_distinct_finds_the_first_vnode_with_another_label(names, data):
    label_of = {"a": "x", "b": "x", "c": "y", "d": "y"}
    size = len(names)
    places = sorted(data.draw(st.lists(st.integers(0, size))))

    def walk(index):
        circle = islice(cycle(range(size)), index, index + size)
        here = label_of[names[index % size]]
        return next(place for place in circle if label_of[names[place]] != here)

    assert next_distinct(names, label_of, places) == [walk(place) for place in places]


@settings(max_examples=200, deadline=None)
@given(
    stay=st.lists(st.tuples(points_anywhere, names), max_size=8),
    removed=st.lists(st.tuples(points_anywhere, names), max_size=3),
    added=st.lists(st.tuples(points_anywhere, names), max_size=3),
    label_of=st.sampled_from(
        [dict(zip("abcd", "abcd", strict=True)), {**dict.fromkeys("abc", "x"), "d": "y"}]
    ),
)
def test_shards_without_a_change_keep_their_first_two_labels(stay, removed, added, label_of):
    before, after = stay + removed, stay + added
    for vnodes in (before, after):
        assume(len({label_of[name] for _, name in vnodes}) > 1)
    changed = [point for point, _ in removed + added]

    ranges = shards_near(*circle_of(after), label_of, changed)

    shards = [shard for each in ranges for shard in each]
    assert shards == sorted(set(shards))
    near_points = {
        point // SHARD_WIDTH + step for point, _ in before + after for step in (-1, 0, 1, 2)
    }
    for shard in sorted((near_points | {0, SHARDS - 1}) & set(range(SHARDS)) - set(shards)):
        assert two_labels_met(before, label_of, shard) == two_labels_met(after, label_of, shard)


def test_each_of_many_vnodes_owns_few_shards():
    names = [NodeId("a"), NodeId("b")] * SHARDS
    points = array("Q", [place * SHARD_WIDTH // 2 for place in range(2 * SHARDS)])
    label_of = {name: name for name in names}

    assert shards_near(points, names, label_of, [points[100]]) == [range(50, 51)]
    assert shards_near(points, names, label_of, [points[0]]) == [range(1)]
