"""Which member owns which key: shards, the consistent-hash ring, and the view it is made from.

Everything here is a pure function of the members it is given: equal members give equal rings on
every host, so nodes and clients agree on owners without exchanging anything but the member list.
Who is a member, and when, is decided elsewhere (a static list of peers, or gossip).
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
    from hashring._compiled import pick
except ImportError:  # It is built where there is a C compiler.
    from hashring.shards import pick

__all__ = [
    "SHARDS",
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
