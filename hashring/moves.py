"""What changes hands between two rings: the shards, from whom and to whom.

What a node does about it (hand over, activate a copy, forward for a while) is the node's business.
"""

from dataclasses import dataclass
from itertools import repeat

from hashring.member import NodeId
from hashring.ring import Ring
from hashring.shards import SHARDS

__all__ = ["Move", "moved"]


@dataclass(frozen=True, slots=True)
class Move:
    """One shard whose owner differs between two rings."""

    shard: int
    old_owner: NodeId | None
    """None when the old ring had no members."""
    new_owner: NodeId | None
    """None when the new ring has no members."""


def moved(old: Ring, new: Ring) -> tuple[Move, ...]:
    """List the shards that change owners from `old` to `new`, by ascending shard.

    A join moves shards to the newcomer only, a departure those of the departed only: about their
    share of the ring. Standbys that change while the owner stays are not listed.
    """
    old_owners = old.owner_by_shard or repeat(None, SHARDS)
    new_owners = new.owner_by_shard or repeat(None, SHARDS)
    return tuple(
        [
            Move(shard, old_owner, new_owner)
            for shard, (old_owner, new_owner) in enumerate(zip(old_owners, new_owners, strict=True))
            if old_owner != new_owner
        ]
    )
