"""Which member decides a key, as this node sees it.

The answer depends on the ring, the shards that this node holds, and recent transfers.
"""

from collections.abc import Callable, Sequence

from hashring import NodeId, Ring, pick, shard_of, shards_of
from node.shards.ownership.ownership import ShardOwnership
from ringfence.peering.routing import Routes
from ringfence.wire import Batch

__all__ = ["NodeRoutes", "ShardPlacement"]


class NodeRoutes(Routes, frozen=True, kw_only=True):
    """Mapping of a key to the member that decides it, by ring, shards held at this node, and recent
    transfers."""

    me: NodeId
    is_here: Callable[[int], bool]
    """Whether a shard is counted here, or should be."""
    holder_of: Callable[[int], NodeId | None]

    def owner(self, key: bytes) -> NodeId | None:
        """Return the name of the member that decides a key."""
        if key[:8] in self.elsewhere:
            return Routes.owner(self, key)
        shard = shard_of(key)
        owner = self.me if self.is_here(shard) else Routes.owner(self, key)
        return (self.holder_of(shard) or owner) if owner == self.me else owner

    def owners(self, keys: Sequence[bytes]) -> list[NodeId | None]:
        """Return the name of the member that decides each key."""
        return [self.owner(key) for key in keys]


class ShardPlacement:
    """Location of each shard as one node sees it: by the ring, and by the shards that the node
    holds."""

    def __init__(self, me: NodeId, ownership: ShardOwnership, now: Callable[[], int]) -> None:
        self.ring = Ring.of(())
        """Where the counters of this data center should be."""
        self._me = me
        self._ownership = ownership
        self._held = ownership.held
        self._now = now

    def is_here(self, shard: int) -> bool:
        """Whether this node holds a shard, or should hold it by the ring."""
        return bool(self._held[shard]) or self.is_ours(shard)

    def holder_of(self, shard: int) -> NodeId | None:
        """Return the other member that has a shard; None when this node has it or should have it.

        A joining member has some of this node's shards before it is alive. The shards of a leaving
        member are at other members while it is still in the ring.
        """
        if self._held[shard]:
            return None
        receiver = self._ownership.transfers.moved_to(shard, self._now())
        if receiver is None and self.ring.owner_by_shard and not self.is_ours(shard):
            receiver = self.ring.owner(shard)
        return receiver

    def holds(self, keys: Sequence[bytes]) -> bool:
        """Whether this node holds the shards of all these keys, and so decides the keys."""
        return all(pick(keys, self._held))

    def may_lend(self, key: bytes) -> bool:
        """Whether this node owns a key by the ring and holds its shard, and all members that may
        have a replica of it have answered."""
        shard = shard_of(key)
        cover = self._ownership.covers.get(shard)
        is_whole = bool(self._ownership.held[shard]) and (cover is None or not cover.to_ask)
        return is_whole and self.is_ours(shard)

    def missing(self, batch: Batch) -> list[int]:
        """Return the shards of a batch that this node does not hold."""
        held = self._held
        shards = dict.fromkeys(shards_of(batch.keys))
        return [shard for shard in shards if not held[shard]]

    def may_decide(self, batch: Batch) -> bool:
        """Whether the ring assigns to this node all shards of a batch that it does not hold yet."""
        return all([self.is_ours(shard) for shard in self.missing(batch)])

    def is_ours(self, shard: int) -> bool:
        """Whether the ring names this node as the owner of a shard."""
        owners = self.ring.owner_by_shard
        return bool(owners) and owners[shard] == self._me

    def is_foreign(self, batch: Batch) -> bool:
        """Whether the ring names another owner for any key of a batch."""
        owners = self.ring.owner_by_shard
        return any([not owners or owners[shard_of(key)] != self._me for key in batch.keys])
