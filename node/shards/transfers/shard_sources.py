"""Members that may have the counters of shards that the ring assigns to this node."""

from collections.abc import Iterable, Sequence

from hashring import SHARDS, NodeId, Ring

__all__ = ["ShardSources", "has_more"]


class ShardSources:
    """Shards that the ring assigns to this node, and the members to ask for each of them."""

    def __init__(self, me: NodeId) -> None:
        self.ours = bytes(SHARDS)
        """1 at the index of each shard that is this node's by the ring, else 0."""
        self.by_shard: dict[int, tuple[NodeId, ...]] = {}
        """Members that may have a shard of this node, the likeliest first."""
        self.standby_before: set[int] = set()
        """Shards that became this node's by the ring while it was their standby."""
        self._me = me

    def on_ring_change(
        self, old: Ring, new: Ring, check_ring: Ring, held: bytes | bytearray
    ) -> None:
        """Apply a change of the ring; `held` marks the shards that this node holds.

        `check_ring` is the ring by which checks are sent. It still contains members that are
        leaving. Such a member may have the only replica if an owner fails at that time.
        """
        leaving: list[NodeId] = []
        if check_ring is not new:
            staying = {member.name for member in new.members}
            leaving = sorted([m.name for m in check_ring.members if m.name not in staying])
        mine, ours = new.shards_of(self._me), bytearray(SHARDS)
        for shard in mine:
            ours[shard] = 1
        self.ours = bytes(ours)
        for shard in [shard for shard in self.by_shard if not self.ours[shard]]:
            del self.by_shard[shard]
            self.standby_before.discard(shard)
        if not has_more(self.ours, held):
            return
        no_owners = (None,) * SHARDS
        before = old.owner_by_shard or no_owners
        copied = old.standby_by_shard or no_owners
        standing_by = new.standby_by_shard or no_owners
        seen: dict[object, tuple[NodeId, ...]] = {}
        for shard in [shard for shard in mine if not held[shard]]:
            known = self.by_shard.get(shard, ())
            if copied[shard] == self._me and shard not in self.by_shard:
                self.standby_before.add(shard)
            sources = before[shard], copied[shard], standing_by[shard], known
            if sources not in seen:  # Thousands of shards have the same few sources.
                names = (*sources[:3], *known, *leaving)
                others = [name for name in names if name and name != self._me]
                seen[sources] = tuple(dict.fromkeys(others))
            self.by_shard[shard] = seen[sources]

    def of(self, shard: int) -> Sequence[NodeId]:
        """Return the members that may have a shard, the most likely first."""
        return self.by_shard.get(shard, ())

    def prefer(self, shards: Iterable[int], name: NodeId) -> None:
        """Make `name` the first member that is asked for some shards of this node."""
        preferred: dict[tuple[NodeId, ...], tuple[NodeId, ...]] = {}
        for shard in shards:
            known = self.by_shard[shard]
            if known not in preferred:
                preferred[known] = (name, *[each for each in known if each != name])
            self.by_shard[shard] = preferred[known]


def has_more(some: bytes | bytearray, others: bytes | bytearray) -> bool:
    """Return whether any shard is marked in `some` but not in `others`.

    Both are usually equal, which is found quickly; otherwise all shards are compared.
    """
    return some != others and bool(int.from_bytes(some) & ~int.from_bytes(others))
