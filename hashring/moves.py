"""Shards whose owner differs between two rings, with the old and the new owner.

This module only compares the rings. The node then transfers these shards.
"""

from itertools import repeat

from msgspec import Struct

from hashring.member import NodeId
from hashring.ring import Ring
from hashring.shards import SHARDS

__all__ = ["Move", "moved"]


class Move(Struct, frozen=True):
    """Change of the owner of one shard from one ring to the next."""

    shard: int
    old_owner: NodeId | None
    """Old owner; None when the old ring had no members."""
    new_owner: NodeId | None
    """New owner; None when the new ring has no members."""


def moved(old: Ring, new: Ring) -> tuple[Move, ...]:
    """Return the shards whose owner differs between the rings `old` and `new`, in ascending order.

    When a member joins, shards move only to that member. When a member leaves, only its own shards
    move. A shard whose standby changes while its owner stays is not listed.
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
