"""The ring of one data center: the owner and the standbys of every shard.

All owners are computed when the ring is built, so a question is a table look-up. `moves` compares
two rings. The caller decides when members change.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from hashring.errors import EmptyRing, MixedDatacenters, UnknownShard
from hashring.member import Member, NodeId, by_name
from hashring.placement import (
    Vnode,
    first_vnodes,
    next_distinct,
    points_of,
    shards_that_meet,
    sort_vnodes,
    update_vnodes,
)
from hashring.shards import SHARDS

__all__ = ["Ring"]

_MANY = 4
"""Above this fraction (1 in 4) of changed members, a full sort of the vnodes costs less."""


@dataclass(frozen=True, slots=True)
class Ring:
    """Owners and standbys of the shards of one data center. Build it with `Ring.of`.

    The owner of a shard is the member of the first vnode at or after the shard's start, shard 0
    following the last one. Rings of equal members are equal and answer alike.

    When the owner of a shard leaves, the next distinct member along the ring owns it. While all
    members are in one zone, that is the standby, which holds a copy. With several zones the standby
    is never in the owner's zone, so the next owner may be a neighbour from the old owner's zone
    that has no copy; the standby then stays the standby, and the new owner can ask it. Either way
    the standby of before is among the first two owners of after.
    """

    members: tuple[Member, ...]
    """Sorted by name."""
    owner_by_shard: tuple[NodeId, ...] = field(repr=False, compare=False)
    """The owner at the index of each shard, for loops over many keys; empty without members."""
    standby_by_shard: tuple[NodeId, ...] = field(repr=False, compare=False)
    """The standby at the index of each shard; empty when there are fewer than two members."""
    _points: "array[int]" = field(repr=False, compare=False)
    """Where the vnodes stand, sorted."""
    _name_by_vnode: list[NodeId] = field(repr=False, compare=False)
    _shards_by_owner: dict[NodeId, tuple[int, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def of(cls, members: Iterable[Member], like: "Ring | None" = None) -> Self:
        """Place the members of one data center; their order does not matter, nor do repetitions.

        `like` is a ring of much the same members: this one is then made of it, which changes
        nothing but the cost. Raises `MixedDatacenters`, and `ConflictingMembers` when two members
        share a name but differ otherwise. Cost: a hash per vnode and a sort, from a few
        milliseconds for 3 members to half a second for 1000; with `like`, a hash per vnode of those
        that differ and a copy of the others, some 10 milliseconds for one of 1000.
        """
        roster = by_name(members)
        datacenters = sorted({member.datacenter for member in roster})
        if len(datacenters) > 1:
            raise MixedDatacenters(tuple(datacenters))
        if like is not None and like._labels_as(roster):
            gone, come = _differing(like.members, roster)
            if len(gone) + len(come) <= len(roster) // _MANY:
                return cls._from(like, roster, gone, come)
        points, ranks = sort_vnodes(points_of(member) for member in roster)
        names = [roster[rank].name for rank in ranks]
        blank = [NodeId("")] * SHARDS
        return cls._answering(roster, array("Q", points), names, range(SHARDS), blank, blank.copy())

    @classmethod
    def _from(
        cls,
        like: "Ring",
        roster: tuple[Member, ...],
        gone: Iterable[Member],
        come: Iterable[Member],
    ) -> Self:
        """Change what differs: few shards meet the vnodes of one member."""
        gone_vnodes, come_vnodes = _vnodes_of(gone), _vnodes_of(come)
        points, names = update_vnodes(like._points, like._name_by_vnode, gone_vnodes, come_vnodes)
        changed = [point for point, _ in gone_vnodes + come_vnodes]
        shards = shards_that_meet(points, names, _labels_to_leave(roster), changed)
        owners, standbys = list(like.owner_by_shard), list(like.standby_by_shard)
        return cls._answering(roster, points, names, shards, owners, standbys)

    @classmethod
    def _answering(
        cls,
        roster: tuple[Member, ...],
        points: "array[int]",
        names: list[NodeId],
        shards: Sequence[int],
        owners: list[NodeId],
        standbys: list[NodeId],
    ) -> Self:
        """Complete a ring whose answers are known, except for these shards."""
        if not roster:
            return cls((), (), (), points, names)
        firsts = first_vnodes(points, shards)
        for shard, vnode in zip(shards, firsts, strict=True):
            owners[shard] = names[vnode % len(names)]
        if len(roster) == 1:
            return cls(roster, tuple(owners), (), points, names)
        for shard, vnode in zip(
            shards, next_distinct(names, _labels_to_leave(roster), firsts), strict=True
        ):
            standbys[shard] = names[vnode]
        return cls(roster, tuple(owners), tuple(standbys), points, names)

    def owner(self, shard: int) -> NodeId:
        """Name the member that decides for `shard`. Cost: one look-up.

        Raises `EmptyRing` without members, `UnknownShard` when there is no such shard.
        """
        if not 0 <= shard < SHARDS:
            raise UnknownShard(shard)
        if not self.owner_by_shard:
            raise EmptyRing
        return self.owner_by_shard[shard]

    def standby(self, shard: int) -> NodeId | None:
        """Name the member that keeps a copy of `shard`; None when the owner is alone.

        The same as the second of `owners(shard, 2)`, for one look-up. Raises as `owner` does.
        """
        self.owner(shard)
        return self.standby_by_shard[shard] if self.standby_by_shard else None

    def owners(self, shard: int, count: int) -> tuple[NodeId, ...]:
        """Name the members responsible for `shard`: the owner first, then its standbys.

        The standbys follow the ring onward from the owner: first the foremost member of each other
        zone, then all members left. Returns `count` distinct members, at least 1, or all of a
        smaller ring. Raises as `owner` does.
        Cost: all members, and the vnodes passed until enough of them, and of zones, are met.
        """
        self.owner(shard)
        wanted = min(count, len(self.members))
        zone_of = {member.name: member.zone for member in self.members}
        wanted_zones = min(wanted, len(set(zone_of.values())))
        foremost: dict[str, NodeId] = {}
        others: dict[NodeId, None] = {}
        (vnode,) = first_vnodes(self._points, (shard,))
        while len(foremost) < wanted_zones or len(foremost) + len(others) < wanted:
            name = self._name_by_vnode[vnode % len(self._name_by_vnode)]
            if foremost.setdefault(zone_of[name], name) != name:
                others[name] = None
            vnode += 1
        return (*foremost.values(), *others)[:wanted]

    def _labels_as(self, roster: Sequence[Member]) -> bool:
        """Whether shards choose their standbys here as they do with these members."""
        are_several = len(self.members) > 1 and len(roster) > 1
        return are_several and _is_zoned(self.members) == _is_zoned(roster)

    def shards_of(self, name: NodeId) -> tuple[int, ...]:
        """List the shards that a member owns, ascending; none for an unknown member.

        Cost: all shards for the first question, one look-up afterwards.
        """
        if not self._shards_by_owner:
            by_owner: dict[NodeId, list[int]] = {}
            for shard, owner in enumerate(self.owner_by_shard):
                by_owner.setdefault(owner, []).append(shard)
            self._shards_by_owner.update({owner: tuple(own) for owner, own in by_owner.items()})
        return self._shards_by_owner.get(name, ())

    def owned_count(self, name: NodeId) -> int:
        """Count the shards that a member owns; 0 for an unknown one. Cost: that of `shards_of`."""
        return len(self.shards_of(name))


def _labels_to_leave(roster: Sequence[Member]) -> dict[NodeId, str]:
    """Return, per member, the label that its standby must not share: its zone, or its name."""
    if _is_zoned(roster):
        return {member.name: member.zone for member in roster}
    return {member.name: member.name for member in roster}


def _is_zoned(roster: Sequence[Member]) -> bool:
    return len({member.zone for member in roster}) > 1


def _differing(old: Sequence[Member], new: Sequence[Member]) -> tuple[set[Member], set[Member]]:
    """The members that only the first, and only the second has."""
    before, after = set(old), set(new)
    return before - after, after - before


def _vnodes_of(members: Iterable[Member]) -> list[Vnode]:
    return [(point, member.name) for member in members for point in points_of(member)]
