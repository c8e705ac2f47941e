"""Members that may have the counters of shards that the ring assigns to this node."""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import compress

from hashring import SHARDS, NodeId, Ring, mark

__all__ = ["ShardSources", "has_more", "only_in"]

_NO_MEMBERS = (None,) * SHARDS
_ALL_SHARDS = (*range(SHARDS),)


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
        before, ours = self.ours, mark(new.owner_by_shard or _NO_MEMBERS, self._me)
        self.ours = ours
        for shard in only_in(before, ours):
            self.by_shard.pop(shard, None)
            self.standby_before.discard(shard)
        missing = only_in(ours, held)
        if not missing:
            return
        copied = old.standby_by_shard or _NO_MEMBERS
        self.standby_before.update(
            [s for s in missing if copied[s] == self._me and s not in self.by_shard]
        )
        tables = old.owner_by_shard or _NO_MEMBERS, copied, new.standby_by_shard or _NO_MEMBERS
        known = [self.by_shard.get(shard, ()) for shard in missing]

        @cache  # Thousands of shards have the same few sources.
        def sources(known: tuple[NodeId, ...], *names: NodeId | None) -> tuple[NodeId, ...]:
            others = [name for name in (*names, *known, *leaving) if name and name != self._me]
            return tuple(dict.fromkeys(others))

        columns = [map(table.__getitem__, missing) for table in tables]
        self.by_shard.update(zip(missing, map(sources, known, *columns), strict=True))

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


def only_in(some: bytes | bytearray, others: bytes | bytearray) -> list[int]:
    """Return the shards that are marked in `some` but not in `others`."""
    if some == others:
        return []
    marks = int.from_bytes(some) & ~int.from_bytes(others)
    return [*compress(_ALL_SHARDS, marks.to_bytes(SHARDS))] if marks else []
