"""Which member decides a key, as this node sees it: the ring, its own shards, and transfers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hashring import NodeId, Ring, pick, shard_of, shards_of
from node.shards.ownership.ownership import ShardOwnership
from ringfence.peering.routing import Routes
from ringfence.wire import Batch

__all__ = ["NodeRoutes", "ShardPlacement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoutes(Routes):
    """Routes of a node: with the shards that it counts, and those that are being transferred."""

    me: NodeId
    is_here: Callable[[int], bool]
    """Whether a shard is counted here, or should be."""
    holder_of: Callable[[int], NodeId | None]

    def owner(self, key: bytes) -> NodeId | None:
        """Name the member that decides a key."""
        if key[:8] in self.elsewhere:
            return Routes.owner(self, key)
        shard = shard_of(key)
        owner = self.me if self.is_here(shard) else Routes.owner(self, key)
        return (self.holder_of(shard) or owner) if owner == self.me else owner

    def owners(self, keys: Sequence[bytes]) -> list[NodeId | None]:
        """Name the member that decides each key."""
        return [self.owner(key) for key in keys]


class ShardPlacement:
    """The shards of one node by the ring, and by what it counts."""

    def __init__(self, me: NodeId, ownership: ShardOwnership, now: Callable[[], int]) -> None:
        self.ring = Ring.of(())
        """Where the counters of this data center should be."""
        self._me = me
        self._ownership = ownership
        self._held = ownership.held
        self._now = now

    def is_here(self, shard: int) -> bool:
        """Whether a shard is counted here, or should be."""
        return bool(self._held[shard]) or self.is_ours(shard)

    def holder_of(self, shard: int) -> NodeId | None:
        """Name the other member that has a shard which is not here; None when it is or should be.

        A member that joins has some of this node's shards before it is alive. The shards of a
        member that leaves are at other members while it is still in the ring.
        """
        if self._held[shard]:
            return None
        receiver = self._ownership.transfers.moved_to(shard, self._now())
        if receiver is None and self.ring.owner_by_shard and not self.is_ours(shard):
            receiver = self.ring.owner(shard)
        return receiver

    def holds(self, keys: Sequence[bytes]) -> bool:
        """Whether the shards of all these keys are counted here."""
        return all(pick(keys, self._held))

    def may_lend(self, key: bytes) -> bool:
        """Whether this node owns a key, and does not count it in another owner's place."""
        shard = shard_of(key)
        ownership = self._ownership
        is_whole = bool(ownership.held[shard]) and ownership.covers.get(shard) is None
        return is_whole and self.is_ours(shard)

    def missing(self, batch: Batch) -> list[int]:
        """Return the shards of a batch that are not counted here."""
        held = self._held
        shards = dict.fromkeys(shards_of(batch.keys))
        return [shard for shard in shards if not held[shard]]

    def may_decide(self, batch: Batch) -> bool:
        """Whether this node owns all shards of a batch that are not counted here yet."""
        return all([self.is_ours(shard) for shard in self.missing(batch)])

    def is_ours(self, shard: int) -> bool:
        """Whether the ring names this node as the owner of a shard."""
        owners = self.ring.owner_by_shard
        return bool(owners) and owners[shard] == self._me

    def is_foreign(self, batch: Batch) -> bool:
        """Whether the ring names another owner for any key of a batch."""
        owners = self.ring.owner_by_shard
        return any([not owners or owners[shard_of(key)] != self._me for key in batch.keys])
