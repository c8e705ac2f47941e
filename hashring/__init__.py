"""Mapping from keys to their owners: shards, the consistent-hash ring, and the view of members.

All functions depend only on their arguments. Equal members give equal rings on every host, so nodes
and clients only need the same member list to agree on owners. The caller supplies the members, from
a static list of peers or from gossip.
"""

from hashring.errors import (
    ConflictingMembers,
    EmptyRing,
    InvalidMember,
    MixedDatacenters,
    RingError,
    UnknownShard,
)
from hashring.member import Member, NodeId
from hashring.moves import Move, moved
from hashring.ring import Ring
from hashring.shards import SHARDS, shard_of, shards_of
from hashring.view import View

try:
    from hashring._compiled import group_by, mark, pick
except ImportError:  # The compiled module exists only where a C compiler was available.
    from hashring.shards import group_by, mark, pick

__all__ = [
    "SHARDS",
    "group_by",
    "mark",
    "pick",
    "shard_of",
    "shards_of",
    "NodeId",
    "Member",
    "Ring",
    "Move",
    "moved",
    "View",
    "RingError",
    "InvalidMember",
    "ConflictingMembers",
    "MixedDatacenters",
    "EmptyRing",
    "UnknownShard",
]
