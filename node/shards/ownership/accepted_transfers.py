"""Transfers of shards that a node has accepted, to detect a repeated one."""

from collections.abc import Sequence

from hashring import NodeId

__all__ = ["AcceptedTransfers"]

_REMEMBERED = 4
"""Accepted transfers of a shard that are remembered. Each sender without an acknowledgement offers
its transfer again, also after other members have sent the shard."""


class AcceptedTransfers:
    """Sender and number of the last transfers of each shard."""

    def __init__(self) -> None:
        self._by_shard: dict[int, tuple[tuple[NodeId, int], ...]] = {}
        """The latest transfer of each shard is the first."""

    def has(self, shard: int, sender: NodeId, number: int) -> bool:
        """Return whether a transfer of a shard was accepted before."""
        return (sender, number) in self._by_shard.get(shard, ())

    def add(self, shards: Sequence[int], sender: NodeId, number: int) -> Sequence[int]:
        """Record a transfer of some shards; return the shards for which it is new."""
        transfer, by_shard = (sender, number), self._by_shard
        if by_shard.keys().isdisjoint(shards):  # The usual case for thousands of shards.
            by_shard.update(dict.fromkeys(shards, (transfer,)))
            return shards
        new = [shard for shard in shards if transfer not in by_shard.get(shard, ())]
        for shard in new:
            by_shard[shard] = (transfer, *by_shard.get(shard, ())[: _REMEMBERED - 1])
        return new
