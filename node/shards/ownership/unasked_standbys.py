"""Standbys that may have replicas of a node's counters from before its restart."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from hashring import NodeId, Ring
from ringfence.wire import ShardGroup

__all__ = ["UnaskedStandbys"]


class UnaskedStandbys:
    """Standbys that may have replicas of shards that this node started before it found them.

    A node that restarts starts its shards without counters when no member that it has found has
    any. A member that it finds later may have replicas from before the restart. Until that member
    has answered, this node must send it no replicas, because they would overwrite the earlier ones.

    A member that took such a shard over does not answer for it. It transfers the shard instead.
    """

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self._started: dict[int, tuple[NodeId, ...]] = {}
        """Members that have answered, by shard."""
        self._to_ask: dict[NodeId, dict[int, None]] = {}

    def add(self, shards: Iterable[int], answered: Callable[[int], Sequence[NodeId]]) -> None:
        """Add shards that started without counters; `answered` returns the members that had none of
        a shard."""
        for shard in shards:
            self._started[shard] = tuple(answered(shard))

    def on_ring_change(self, ring: Ring) -> None:
        """Choose the members to ask by a new ring: those to which this node replicates its shards.

        This also applies to shards of other owners, which this node has not transferred yet.
        """
        self._to_ask = {}
        for shard, answered in self._started.items() if ring.members else ():
            standby = ring.standby(shard)
            if standby == self._me:
                standby = ring.owner(shard)
            if standby is not None and standby not in (self._me, *answered):
                self._to_ask.setdefault(standby, {})[shard] = None

    @property
    def to_ask(self) -> Mapping[NodeId, Iterable[int]]:
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

    def is_to_ask(self, standby: NodeId, shard: int) -> bool:
        """Return whether a standby must still be asked for its replica of a shard."""
        return shard in self._to_ask.get(standby, ())

    def on_answer(self, standby: NodeId, shard: int) -> bool:
        """Record the answer of a standby; return False when the standby was not to be asked."""
        if not self.is_to_ask(standby, shard):
            return False
        self._forget(standby, shard)
        self._started[shard] += (standby,)
        return True

    def drop(self, shards: Iterable[int]) -> None:
        """Forget shards that have counters now, or that this node does not hold any more."""
        for shard in shards if self._started else ():
            if self._started.pop(shard, None) is not None:
                for standby in [each for each in self._to_ask if shard in self._to_ask[each]]:
                    self._forget(standby, shard)

    def _forget(self, standby: NodeId, shard: int) -> None:
        del self._to_ask[standby][shard]
        if not self._to_ask[standby]:
            del self._to_ask[standby]
