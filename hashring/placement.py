"""Positions of the virtual nodes (vnodes) on a ring, and the first vnode after the start of each
shard.

A point is a position in the 64-bit space of the ring. The top 14 bits of a point are a shard
number. Each member has a label: its zone, or its name when there is only one zone. An owner and its
standby must have different labels. `ring` chooses the labels.
"""

from array import array
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence

from mmh3 import mmh3_x64_128_utupledigest

from hashring.member import Member, NodeId
from hashring.shards import SHARD_BITS, SHARDS

__all__ = [
    "VNODES_PER_WEIGHT",
    "Vnode",
    "sort_vnodes",
    "next_distinct",
    "points_of",
    "update_vnodes",
    "shards_near",
    "spans_of",
]

Vnode = tuple[int, NodeId]
"""Point of a vnode, and its member."""

VNODES_PER_WEIGHT = 256
"""Number of vnodes per unit of weight.

The member with the most shards then owns about 5 % more than the average of 3 members, and 10 %
more than the average of 10 members.

With more than about a hundred members, the number of shards limits the balance.
"""

_SHARD_WIDTH = 64 - SHARD_BITS
_RANK_BITS = 32


def points_of(member: Member) -> list[int]:
    """Compute the ring positions of one member's virtual nodes: 256 per unit of weight, halves
    rounded to even.

    The position (point) of virtual node (vnode) i is the low 64 bits of a MurmurHash3 x64_128 hash
    with seed 0. The input is the name in UTF-8, followed by i in 4 bytes, big-endian. The fixed
    length of i prevents equal inputs for different names.
    """
    name = member.name.encode()
    count = round(VNODES_PER_WEIGHT * member.weight)
    return [mmh3_x64_128_utupledigest(name + i.to_bytes(4, "big"))[0] for i in range(count)]


def sort_vnodes(points_by_rank: Iterable[Iterable[int]]) -> tuple[list[int], list[int]]:
    """Sort the virtual nodes (vnodes) of all members by ring position; return the positions and the
    members' ranks.

    A rank is the index of a member in the list sorted by name. Vnodes with equal points are all
    kept, the smaller rank first, so every host has the same order.
    """
    # One integer per vnode sorts three times faster than a tuple.
    vnodes = [
        point << _RANK_BITS | rank for rank, points in enumerate(points_by_rank) for point in points
    ]
    vnodes.sort()
    mask = (1 << _RANK_BITS) - 1
    return [vnode >> _RANK_BITS for vnode in vnodes], [vnode & mask for vnode in vnodes]


def update_vnodes(
    points: "array[int]", names: list[NodeId], removed: Iterable[Vnode], added: Iterable[Vnode]
) -> "tuple[array[int], list[NodeId]]":
    """Return the sorted virtual nodes (vnodes) without those in `removed`, and with those in
    `added`.

    `points` and `names` are parallel lists, which are not modified. They must contain every vnode
    in `removed`. Cost: two look-ups for each changed vnode, and a copy of the other vnodes.
    """
    changes = sorted([(*vnode, False) for vnode in removed] + [(*vnode, True) for vnode in added])
    new_points, new_names = array("Q"), list[NodeId]()
    copied = 0
    for point, name, is_new in changes:
        place = bisect_left(points, point, copied)
        while place < len(points) and points[place] == point and names[place] < name:
            place += 1
        new_points += points[copied:place]
        new_names += names[copied:place]
        if is_new:
            new_points.append(point)
            new_names.append(name)
        copied = place if is_new else place + 1
    new_points += points[copied:]
    new_names += names[copied:]
    return new_points, new_names


def spans_of(points: Sequence[int], shards: Iterable[range]) -> list[tuple[int, int, int]]:
    """Return the spans of successive shards with the same first virtual node (vnode): the first
    shard, the end, and the index of the vnode.

    `points` is sorted and not empty. For shards after the last point the index is `len(points)`,
    which stands for vnode 0. Cost: at most one look-up for each span.
    """
    spans: list[tuple[int, int, int]] = []
    for each in shards:
        shard, place = each.start, bisect_left(points, each.start << _SHARD_WIDTH)
        while shard < each.stop:
            end = each.stop
            if place < len(points):
                end = min(end, (points[place] >> _SHARD_WIDTH) + 1)
            spans.append((shard, end, place))
            shard, place = end, place + 1
            if place < len(points) and points[place] < shard << _SHARD_WIDTH:
                place = bisect_left(points, shard << _SHARD_WIDTH, place)
    return spans


def next_distinct(
    names: Sequence[NodeId], label_of: Mapping[NodeId, Hashable], places: Sequence[int]
) -> list[int]:
    """Return, for each index of a circular list of labels, the next index whose label differs.

    The indexes are in ascending order. An index equal to the length stands for index 0. At least
    two different labels must occur. Cost: at most one pass over the list.
    """
    label = label_of[names[0]]
    ahead = len(names)
    other = next(place for place, name in enumerate(names) if label_of[name] != label)
    following: list[int] = []
    for place in reversed(places):
        if place != ahead:
            behind, label = label, label_of[names[place]]
            onward = place + 1
            while onward < ahead and label_of[names[onward]] == label:
                onward += 1
            if onward < ahead or behind != label:
                other = onward % len(names)
            ahead = place
        following.append(other)
    following.reverse()
    return following


def shards_near(
    points: Sequence[int],
    names: Sequence[NodeId],
    label_of: Mapping[NodeId, Hashable],
    changed: Iterable[int],
) -> list[range]:
    """Return the shards whose owner or standby may differ after virtual nodes (vnodes) were removed
    or added.

    `changed` are the points of these vnodes. The ranges are disjoint and in ascending order. A
    change affects a shard only if all vnodes between the shard and the changed point have one
    label. At least two different labels must occur. Cost: a look-up for each changed point, and at
    most one pass over the vnodes.
    """
    found: list[tuple[int, int]] = []
    seen = len(names)  # No index of a vnode, so it matches none.
    for point in sorted(changed):
        end = (point >> _SHARD_WIDTH) + 1
        before = place = bisect_left(points, point) - 1
        label = label_of[names[place]]
        # Shards before the previous changed point were already found.
        while before != seen and label_of[names[before]] == label:
            before -= 1  # Below 0 it counts from the end, once round the circle at most.
        seen = place
        first = (points[before] >> _SHARD_WIDTH) + 1
        found += [(first, end)] if before >= 0 else [(first, SHARDS), (0, end)]
    near: list[range] = []
    done = 0
    for first, end in sorted(found):
        if max(first, done) < end:
            near.append(range(max(first, done), end))
            done = end
    return near
