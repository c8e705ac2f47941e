"""The ring of one data center: the owner and the standbys of every shard.

Building it decides everything, so asking is a table look-up. How shards change hands between two
rings is `moves`; when members change is for others to say.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from hashring.errors import EmptyRing, MixedDatacenters, UnknownShard
from hashring.member import Member, NodeId, by_name
from hashring.placement import arrange, first_vnodes, next_other, points_of
from hashring.shards import SHARDS

__all__ = ["Ring"]


@dataclass(frozen=True, slots=True)
class Ring:
    """Who answers for each shard of one data center. Build it with `Ring.of`.

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
    _vnode_by_shard: Sequence[int] = field(repr=False, compare=False)
    _rank_by_vnode: Sequence[int] = field(repr=False, compare=False)

    @classmethod
    def of(cls, members: Iterable[Member]) -> Self:
        """Place the members of one data center; their order does not matter, nor do repetitions.

        Raises `MixedDatacenters`, and `ConflictingMembers` when two members share a name but
        differ otherwise. Cost: a hash per vnode and a sort, from a few milliseconds for 3 members
        to half a second for 1000.
        """
        roster = by_name(members)
        datacenters = sorted({member.datacenter for member in roster})
        if len(datacenters) > 1:
            raise MixedDatacenters(tuple(datacenters))
        if not roster:
            return cls((), (), (), (), ())
        points, ranks = arrange(points_of(member) for member in roster)
        firsts = first_vnodes(points)
        names = [member.name for member in roster]
        owners = tuple([names[ranks[vnode]] for vnode in firsts])
        if len(roster) == 1:
            return cls(roster, owners, (), firsts, ranks)
        nexts = next_other(_labels_to_leave(roster, ranks))
        standbys = tuple([names[ranks[nexts[vnode]]] for vnode in firsts])
        return cls(roster, owners, standbys, firsts, ranks)

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
        Cost: the vnodes passed until enough members, and enough zones, are met.
        """
        self.owner(shard)
        wanted = min(count, len(self.members))
        wanted_zones = min(wanted, len({member.zone for member in self.members}))
        foremost: dict[str, NodeId] = {}
        others: dict[NodeId, None] = {}
        vnode = self._vnode_by_shard[shard]
        while len(foremost) < wanted_zones or len(foremost) + len(others) < wanted:
            member = self.members[self._rank_by_vnode[vnode]]
            if foremost.setdefault(member.zone, member.name) != member.name:
                others[member.name] = None
            vnode = (vnode + 1) % len(self._rank_by_vnode)
        return (*foremost.values(), *others)[:wanted]

    def shards_of(self, name: NodeId) -> tuple[int, ...]:
        """List the shards that a member owns, ascending; none for a stranger. Cost: all shards."""
        return tuple([shard for shard, owner in enumerate(self.owner_by_shard) if owner == name])

    def owned_count(self, name: NodeId) -> int:
        """Count the shards that a member owns; 0 for a stranger. Cost: all shards."""
        return self.owner_by_shard.count(name)


def _labels_to_leave(roster: Sequence[Member], ranks: Sequence[int]) -> Sequence[str | int]:
    """Name, for each vnode, what its standby must not share: its zone, or its member."""
    zones = [member.zone for member in roster]
    if len(set(zones)) == 1:
        return ranks
    return [zones[rank] for rank in ranks]
