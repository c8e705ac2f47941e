"""Positions of the virtual nodes (vnodes) on a ring, and the owners and standbys that follow from
them.

A point is a position in the 64-bit space of the ring. The top 14 bits of a point are a shard
number. Each member has a label: its zone, or its name when there is only one zone. An owner and its
standby must have different labels. `ring` chooses the labels.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from mmh3 import mmh3_x64_128_utupledigest

from hashring.member import Member, NodeId
from hashring.shards import SHARD_BITS, SHARDS

__all__ = [
    "VNODES_PER_WEIGHT",
    "first_vnode",
    "place_shards",
    "points_of",
    "sort_vnodes",
    "update_vnodes",
]

VNODES_PER_WEIGHT = 256
"""Number of vnodes per unit of weight.

The member with the most shards then owns about 5 % more than the average of 3 members, and 10 %
more than the average of 10 members.

With more than about a hundred members, the number of shards limits the balance.
"""

_SHARD_WIDTH = 64 - SHARD_BITS
_RANK_BITS = 32
_RANK_MASK = (1 << _RANK_BITS) - 1


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
    return [vnode >> _RANK_BITS for vnode in vnodes], [vnode & _RANK_MASK for vnode in vnodes]


def update_vnodes(
    points: "array[int]",
    names: list[NodeId],
    removed: Mapping[NodeId, Iterable[int]],
    added: Mapping[NodeId, Iterable[int]],
) -> "tuple[array[int], list[NodeId]]":
    """Return the sorted virtual nodes (vnodes) without those in `removed`, and with those in
    `added`, which are points by member.

    `points` and `names` are parallel lists, which are not modified. They must contain every vnode
    in `removed`. Cost: two look-ups for each changed vnode, and a copy of the other vnodes.
    """
    members = sorted({*removed, *added})
    changes = [
        (point << _RANK_BITS | rank) << 1 | is_new
        for rank, name in enumerate(members)
        for is_new, by_name in enumerate((removed, added))
        for point in by_name.get(name, ())
    ]
    changes.sort()
    new_points, new_names = array("Q"), list[NodeId]()
    copied = 0
    for change in changes:
        vnode, is_new = change >> 1, change & 1
        point, name = vnode >> _RANK_BITS, members[vnode & _RANK_MASK]
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


def first_vnode(points: Sequence[int], shard: int) -> int:
    """Return the index of the first virtual node (vnode) at or after the start of a shard.

    `points` is sorted. After the last point the index is `len(points)`, which stands for vnode 0.
    """
    return bisect_left(points, shard << _SHARD_WIDTH)


def place_shards(
    points: "array[int]", names: list[NodeId], label_of: dict[NodeId, str]
) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
    """Return the owners and the standbys of all shards, each indexed by shard.

    `points` and `names` are the sorted virtual nodes (vnodes); each member in `label_of` has at
    least one. Without vnodes, both results are empty. With a single label, the standbys are empty.
    Cost: a look-up for each vnode that is the first one of any shard. If the compiled module was
    built, `ring` uses its version.
    """
    owners: list[NodeId] = []
    standbys: list[NodeId] = []
    size = len(points)
    has_standbys = len(set(label_of.values())) > 1
    shard = vnode = other = 0
    while size and shard < SHARDS:
        vnode = bisect_left(points, shard << _SHARD_WIDTH, vnode)
        end = SHARDS if vnode == size else (points[vnode] >> _SHARD_WIDTH) + 1
        owners += [names[vnode % size]] * (end - shard)
        if has_standbys:
            if vnode >= other:  # Else all vnodes before `other` have the label of this one.
                label, other = label_of[names[vnode % size]], vnode + 1
                while label_of[names[other % size]] == label:
                    other += 1
            standbys += [names[other % size]] * (end - shard)
        shard = end
    return tuple(owners), tuple(standbys)
