"""Standbys that may have replicas of a node's counters from before its restart."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from hashring import NodeId, Ring
from ringfence.wire import ShardGroup

__all__ = ["UnaskedStandbys"]

_Name = TypeVar("_Name")


class UnaskedStandbys:
    """Standbys that may have replicas of shards that this node started before it found them.

    A node that restarts starts its shards without counters when no member that it has found has
    any. A member that it finds later may have replicas from before the restart. Until that member
    has answered, this node must send it no replicas, because they would overwrite the earlier ones.
    The same is true of a shard that this node took over without a replica, from a member that then
    answered that it has no counters either.

    A member that took such a shard over does not answer for it. It transfers the shard instead.
    """

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self._started: dict[tuple[NodeId, ...], set[int]] = {}
        """Shards by the members that have answered: thousands of shards by a few members."""
        self._to_ask: dict[NodeId, set[int]] = {}
        self._ring = Ring.of(())

    def add(self, shards: Sequence[int], answered: Mapping[int, tuple[NodeId, ...]]) -> None:
        """Add shards that started without counters; `answered` has the members that had none, by
        shard."""
        self.drop(shards)
        for shard in shards:
            self._started.setdefault(answered.get(shard, ()), set()).add(shard)

    def add_covered(self, shard: int, owner: NodeId) -> None:
        """Add a shard that this node decided without a replica, until its owner answered that it
        has no counters."""
        self.add([shard], {shard: (owner,)})
        self._choose({(owner,): {shard}})

    def on_ring_change(self, ring: Ring) -> None:
        """Choose the members to ask by a new ring: those to which this node replicates its shards.

        This also applies to shards of other owners, which this node has not transferred yet.
        """
        self._to_ask, self._ring = {}, ring
        self._choose(self._started)

    def _choose(self, started: Mapping[tuple[NodeId, ...], Collection[int]]) -> None:
        """Choose the members to ask for some shards, which are given by the members that have
        answered."""
        owners, standbys = self._ring.owner_by_shard, self._ring.standby_by_shard
        for answered, shards in started.items() if standbys else ():
            by_name: defaultdict[NodeId, list[int]] = defaultdict(list)
            for shard in shards:
                name = standbys[shard]
                by_name[owners[shard] if name == self._me else name].append(shard)
            for name in [name for name in by_name if name not in (self._me, *answered)]:
                self._to_ask.setdefault(name, set()).update(by_name[name])

    @property
    def to_ask(self) -> Mapping[NodeId, Collection[int]]:
        """Shards by the standby that must be asked for their replicas."""
        return self._to_ask

    def correct_group(
        self, shard: int, group: ShardGroup, sender: NodeId, *, are_shared: bool | None
    ) -> ShardGroup:
        """Correct whether counters from a standby are from before this node's restart.

        The standby may not have detected the restart yet. While it must still be asked, it has no
        replica of this node's present counters, unless the origins show that it has
        (`are_shared`).
        """
        if are_shared and group.taken_from == self._me:
            return replace(group, is_from_before=False)
        is_earlier = are_shared is None and self.is_to_ask(sender, shard)
        return replace(group, is_from_before=True) if is_earlier else group

    def may_have_replica(self, name: NodeId, shard: int) -> bool:
        """Return whether a member may have a replica of a shard that started here without counters,
        because it was not asked."""
        started = self._started.items()
        return any([shard in shards for answered, shards in started if name not in answered])

    def is_to_ask(self, standby: NodeId, shard: int) -> bool:
        """Return whether a standby must still be asked for its replica of a shard."""
        return shard in self._to_ask.get(standby, ())

    def on_answer(self, standby: NodeId, shards: Iterable[int]) -> set[int]:
        """Record the answer of a standby for some shards; return those for which it was to be
        asked."""
        asked = self._to_ask.get(standby, set()).intersection(shards)
        if asked:
            self._remove(self._to_ask, standby, asked)
        left = asked.copy()
        for answered in [*self._started] if left else ():
            found = self._started[answered] & left
            if found:
                left -= found
                self._remove(self._started, answered, found)
                self._started.setdefault((*answered, standby), set()).update(found)
        return asked

    def drop(self, shards: Sequence[int]) -> None:
        """Forget shards that have counters now, or that this node does not hold any more."""
        for answered in [*self._started]:
            self._remove(self._started, answered, shards)
        for standby in [*self._to_ask]:
            self._remove(self._to_ask, standby, shards)

    @staticmethod
    def _remove(groups: dict[_Name, set[int]], name: _Name, shards: Iterable[int]) -> None:
        """Remove shards from one group, and the group when it is empty."""
        groups[name].difference_update(shards)
        if not groups[name]:
            del groups[name]
