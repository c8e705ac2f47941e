"""Where the vnodes of a ring stand, and which of them each shard meets first.

A point is a place in the ring's 64-bit space, whose top 14 bits are a shard number. What a standby
must not share with the owner, its zone or only its name, is here a label that each name has; which
of the two is the ring's business.
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
    "first_vnodes",
    "next_distinct",
    "points_of",
    "update_vnodes",
    "shards_that_meet",
]

Vnode = tuple[int, NodeId]
"""The point of a vnode, and whose it is."""

VNODES_PER_WEIGHT = 256
"""The busiest of three members of weight 1 then owns about 5 % more than the average, of ten 10 %.

Beyond some hundred members the number of shards limits the balance, not the number of vnodes.
"""

_SHARD_WIDTH = 64 - SHARD_BITS
_RANK_BITS = 32


def points_of(member: Member) -> list[int]:
    """Place the vnodes of one member: 256 per unit weight, halves rounded to even.

    Vnode i stands at the low 64 bits of MurmurHash3 x64_128, seed 0, of the name in UTF-8 followed
    by i in 4 bytes, big-endian; the fixed length of the end keeps names that end alike apart.
    """
    name = member.name.encode()
    count = round(VNODES_PER_WEIGHT * member.weight)
    return [mmh3_x64_128_utupledigest(name + i.to_bytes(4, "big"))[0] for i in range(count)]


def sort_vnodes(points_by_rank: Iterable[Iterable[int]]) -> tuple[list[int], list[int]]:
    """Sort the vnodes of all members along the ring; return their points and their ranks.

    A rank is the index of a member in the order of names. Vnodes that fall on one point stay side
    by side, the smaller rank first, so a collision takes no vnode away and every host orders it
    alike.
    """
    # One integer per vnode sorts three times faster than a tuple.
    vnodes = [
        point << _RANK_BITS | rank for rank, points in enumerate(points_by_rank) for point in points
    ]
    vnodes.sort()
    mask = (1 << _RANK_BITS) - 1
    return [vnode >> _RANK_BITS for vnode in vnodes], [vnode & mask for vnode in vnodes]


def update_vnodes(
    points: "array[int]", names: list[NodeId], gone: Iterable[Vnode], come: Iterable[Vnode]
) -> "tuple[array[int], list[NodeId]]":
    """Return sorted vnodes without those `gone` and with those that `come`.

    `points` and `names` are parallel and stay unchanged; they contain all that are `gone`. Cost:
    two look-ups for each vnode that changes, and a copy of the rest.
    """
    changes = sorted([(*vnode, False) for vnode in gone] + [(*vnode, True) for vnode in come])
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


def first_vnodes(points: Sequence[int], shards: Iterable[int]) -> list[int]:
    """Find, for each of some ascending shards, the first vnode at or after the shard's start.

    `points` is sorted and not empty; a shard after the last point has its end, which is vnode 0.
    """
    firsts: list[int] = []
    place, end = 0, len(points)
    last = points[0] >> _SHARD_WIDTH
    for shard in shards:
        if shard > last:  # Among few members, many shards in a row meet the same vnode.
            place = bisect_left(points, shard << _SHARD_WIDTH, place)
            last = points[place] >> _SHARD_WIDTH if place < end else SHARDS
        firsts.append(place)
    return firsts


def next_distinct(
    names: Sequence[NodeId], label_of: Mapping[NodeId, Hashable], places: Sequence[int]
) -> list[int]:
    """Find, for each of some ascending places of a circle, the next place with another label.

    The names bear at least two labels; a place may be the circle's end, which is place 0. Cost: at
    most one pass, however long the runs of one label.
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


def shards_that_meet(
    points: Sequence[int],
    names: Sequence[NodeId],
    label_of: Mapping[NodeId, Hashable],
    changed: Iterable[int],
) -> list[int]:
    """Find, ascending, the shards for which the two first labels may differ since a change.

    Vnodes have gone from, or come to, the points `changed`. A shard meets the first of them that
    is ahead only if all vnodes on the way to it bear one label: of at least two, on this circle.
    Cost: a look-up for each point and at most one pass, however long the runs of one label.
    """
    found: set[int] = set()
    seen = len(names)  # No place.
    for point in sorted(changed):
        last = point >> _SHARD_WIDTH
        before = place = bisect_left(points, point) - 1
        label = label_of[names[place]]
        # The shards further back are already found where the point before has been.
        while before != seen and label_of[names[before]] == label:
            before -= 1  # Below 0 it counts from the end, once round the circle at most.
        seen = place
        first = (points[before] >> _SHARD_WIDTH) + 1
        if before >= 0:
            found.update(range(first, last + 1))
        else:
            found.update(range(first, SHARDS), range(last + 1))
    return sorted(found)
