"""Ring of one data center: the owner and the standbys of each shard.

All owners are computed when the ring is built, so each later call is a table look-up. `moves`
compares two rings. A ring never changes: the caller builds a new one when members change.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from hashring.errors import EmptyRing, MixedDatacenters, UnknownShard
from hashring.member import Member, NodeId, by_name
from hashring.placement import first_vnode, points_of, sort_vnodes, update_vnodes
from hashring.shards import SHARDS

try:
    from hashring._compiled import place_shards
except ImportError:
    from hashring.placement import place_shards

__all__ = ["Ring"]

_MANY = 4
"""Divisor: when more than 1 in 4 members changed, a full sort of the vnodes costs less."""


@dataclass(frozen=True, slots=True)
class Ring:
    """Owners and standbys of the shards of one data center. Build it with `Ring.of`.

    The owner of a shard is the member of the first virtual node (vnode) at or after the start of
    the shard. After the last shard the search continues at shard 0. Rings of equal members are
    equal.

    When the owner of a shard leaves, the next different member along the ring becomes the owner.
    With one zone, this is the standby, which has a copy. With several zones, the standby is always
    in another zone than the owner. The new owner may then be a member of the old owner's zone,
    without a copy. In this case the standby stays the standby, and the new owner can fetch the
    copy. So the old standby is always the new owner or the new standby.
    """

    members: tuple[Member, ...]
    """Members, sorted by name."""
    owner_by_shard: tuple[NodeId, ...] = field(repr=False, compare=False)
    """Owners, indexed by shard number, for loops over many keys; empty without members."""
    standby_by_shard: tuple[NodeId, ...] = field(repr=False, compare=False)
    """Standbys, indexed by shard number; empty when there are fewer than two members."""
    _points: "array[int]" = field(repr=False, compare=False)
    """Sorted points of the vnodes."""
    _name_by_vnode: list[NodeId] = field(repr=False, compare=False)
    _shards_by_owner: dict[NodeId, tuple[int, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def of(cls, members: Iterable[Member], like: "Ring | None" = None) -> Self:
        """Build the ring of one data center from its members. Their order does not matter;
        duplicates are ignored.

        `like` is a ring with similar members. It reduces the cost and does not affect the result.
        Raises `MixedDatacenters`. Raises `ConflictingMembers` when two members share a name but
        differ otherwise.

        Cost without `like`: a hash per vnode and a sort, from 1 millisecond for 3 members to
        300 for 1000. Cost with `like`: a hash per changed vnode and a copy of the other
        vnodes, about 7 milliseconds when 1 of 1000 members changed.
        """
        sorted_members = by_name(members)
        datacenters = sorted({member.datacenter for member in sorted_members})
        if len(datacenters) > 1:
            raise MixedDatacenters(tuple(datacenters))
        before = () if like is None else like.members
        removed, added = _differing(before, sorted_members)
        if like is not None and len(removed) + len(added) <= len(sorted_members) // _MANY:
            points, names = update_vnodes(
                like._points, like._name_by_vnode, _points_by_name(removed), _points_by_name(added)
            )
        else:
            sorted_points, ranks = sort_vnodes(points_of(member) for member in sorted_members)
            points = array("Q", sorted_points)
            names = [sorted_members[rank].name for rank in ranks]
        owners, standbys = place_shards(points, names, _labels_of(sorted_members))
        return cls(sorted_members, owners, standbys, points, names)

    def owner(self, shard: int) -> NodeId:
        """Return the member that decides for `shard`. Cost: one look-up.

        Raises `EmptyRing` for a ring without members, and `UnknownShard` for an invalid shard
        number.
        """
        if not 0 <= shard < SHARDS:
            raise UnknownShard(shard)
        if not self.owner_by_shard:
            raise EmptyRing
        return self.owner_by_shard[shard]

    def standby(self, shard: int) -> NodeId | None:
        """Return the member that keeps a copy of `shard`; None when the owner is the only member.

        Equals the second item of `owners(shard, 2)` at the cost of one look-up. Raises the same
        errors as `owner`.
        """
        self.owner(shard)
        return self.standby_by_shard[shard] if self.standby_by_shard else None

    def owners_of_standby(self, name: NodeId) -> tuple[NodeId, ...]:
        """Return the members that own a shard whose standby is `name`, in the order of the shards.

        Cost: one pass over all shards.
        """
        shards = zip(self.owner_by_shard, self.standby_by_shard, strict=False)
        return tuple(dict.fromkeys([owner for owner, standby in shards if standby == name]))

    def owners(self, shard: int, count: int) -> tuple[NodeId, ...]:
        """Return the members responsible for `shard`: the owner first, then its standbys.

        The standbys are in ring order after the owner: first one member of each other zone, then
        all other members. `count` is at least 1. Returns all members when the ring has fewer than
        `count`. Raises the same errors as `owner`.

        Cost: one pass over the members, and over the vnodes until enough members and zones are
        found.
        """
        self.owner(shard)
        wanted = min(count, len(self.members))
        zone_of = {member.name: member.zone for member in self.members}
        wanted_zones = min(wanted, len(set(zone_of.values())))
        foremost: dict[str, NodeId] = {}
        others: dict[NodeId, None] = {}
        vnode = first_vnode(self._points, shard)
        while len(foremost) < wanted_zones or len(foremost) + len(others) < wanted:
            name = self._name_by_vnode[vnode % len(self._name_by_vnode)]
            if foremost.setdefault(zone_of[name], name) != name:
                others[name] = None
            vnode += 1
        return (*foremost.values(), *others)[:wanted]

    def shards_of(self, name: NodeId) -> tuple[int, ...]:
        """Return the shards that a member owns, in ascending order; empty for an unknown member.

        Cost: one pass over all shards at the first call, one look-up at later calls.
        """
        if not self._shards_by_owner:
            by_owner: dict[NodeId, list[int]] = {}
            for shard, owner in enumerate(self.owner_by_shard):
                by_owner.setdefault(owner, []).append(shard)
            self._shards_by_owner.update({owner: tuple(own) for owner, own in by_owner.items()})
        return self._shards_by_owner.get(name, ())

    def owned_count(self, name: NodeId) -> int:
        """Return the number of shards that a member owns; 0 for an unknown member.

        The cost is that of `shards_of`."""
        return len(self.shards_of(name))


def _labels_of(sorted_members: Sequence[Member]) -> dict[NodeId, str]:
    """Return the label of each member: its zone, or its name when there is only one zone.

    The owner and the standby of a shard must have different labels.
    """
    if len({member.zone for member in sorted_members}) > 1:
        return {member.name: member.zone for member in sorted_members}
    return {member.name: member.name for member in sorted_members}


def _differing(old: Sequence[Member], new: Sequence[Member]) -> tuple[set[Member], set[Member]]:
    """Return the members that occur only in the first argument, and those only in the second."""
    before, after = set(old), set(new)
    return before - after, after - before


def _points_by_name(members: Iterable[Member]) -> dict[NodeId, list[int]]:
    return {member.name: points_of(member) for member in members}
