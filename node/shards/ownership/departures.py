"""Members that have left the ring, which affects who owns the counters of a replica."""

from gossip import Record, Status
from hashring import NodeId

__all__ = ["Departures"]


class Departures:
    """Members that leave the ring: they transfer their shards, or have done so."""

    def __init__(self) -> None:
        self._left: set[NodeId] = set()
        self._stopped: set[NodeId] = set()
        """Members that have stopped after all their transfers were acknowledged."""

    def has_stopped(self, name: str) -> bool:
        """Return whether a member has stopped, and has no counters any more.

        A member that left the ring and runs still, such as a damped one, may have counters.
        """
        return name in self._stopped

    def update(self, record: Record) -> None:
        """Apply the new membership record of another member."""
        name = NodeId(record.name)
        if record.is_placed:
            self._left.discard(name)
        elif record.status is not Status.DEAD:
            self._left.add(name)
        (self._stopped.add if record.status is Status.LEFT else self._stopped.discard)(name)

    def owners_of_replica(
        self, base_of: str, in_ring: NodeId, me: NodeId
    ) -> tuple[NodeId, NodeId | None]:
        """Return the owner of a shard that `me` takes over from a replica, and the member to ask if
        that owner has no counters of the shard.

        `base_of` is the member whose counters the replica has, empty if unknown. It is the owner,
        even if the ring names another member: that one may have joined a moment ago without
        counters. A member that leaves the ring transfers the shard, so the member in the ring is
        asked first. The transfer may not have arrived there.
        """
        base = NodeId(base_of)
        if base in ("", me, in_ring) or base in self._stopped:
            return in_ring, None
        if base in self._left:
            return in_ring, base
        return base, None if in_ring == me else in_ring
