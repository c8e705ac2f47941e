"""Messages between nodes: membership, shard transfers, replicas and window counts."""

from enum import IntEnum

from msgspec import Struct, field

from ringfence.limiter.packed.packed_snapshot import PackedSnapshot
from ringfence.wire.messages.cluster_messages import Plain
from ringfence.wire.messages.request_messages import DecidedCheck

__all__ = [
    "AskLeave",
    "AskPeers",
    "AskTakenOver",
    "WindowCounts",
    "Copy",
    "DigestMismatch",
    "Digest",
    "Done",
    "Exchange",
    "Exchanged",
    "Holding",
    "ReplicaRequest",
    "TransferAck",
    "TransferOffer",
    "Peers",
    "Pull",
    "Pulled",
    "RecoverCounts",
    "RecoverCountsReply",
    "ShardGroup",
    "TakenOver",
]


class Exchange(Struct, frozen=True):
    """Anti-entropy request: the sender's full membership records; the receiver answers with its
    records."""

    seq: int
    packed: bytes
    """Records as `gossip` packs them; opaque here."""


class Exchanged(Struct, frozen=True):
    """Answer to `Exchange`: the membership records of the answering node."""

    seq: int
    packed: bytes


class Holding(IntEnum):
    """Kind of data that a node has for a requested shard: nothing, a replica, or the original
    counters."""

    NOTHING = 0
    COPY = 1
    """Replica, at most one replication interval old. The sender keeps it as well."""
    HELD = 2
    """Original counters: the node that receives them decides from now on."""


class ReplicaRequest(IntEnum):
    """Which replicas a node requests together with the counters of shards."""

    IF_NOT_HELD = 0
    """Replicas of the requested shards that the answering node does not hold."""
    ONLY = 1
    """Only replicas of the requesting node's earlier counters, and no transfers."""
    NONE = 2
    """No replicas: the requesting node was the standby of these shards, so its own are newer."""


class Pull(Struct, frozen=True):
    """Request of a node for the counters of shards that it owns by its member list."""

    seq: int
    shards: list[int]
    """Requested shards in ascending order; at least one."""
    part: int
    """Number of the part, from 0. Later parts are requested for one shard at a time."""
    transfer_id: int = 0
    """Transfer (`ShardGroup.transfer_id`) to which a later part belongs; 0 for part 0."""
    replicas: ReplicaRequest = ReplicaRequest.IF_NOT_HELD


class ShardGroup(Struct, frozen=True):
    """Shards in a `Pulled` message with the same transfer id, kind of data and previous owner."""

    shards: list[int]
    """Shards of the group in ascending order; at least one."""
    sizes: list[int]
    """Number of keys of each shard. The keys of the message are in the order of the shards."""
    hold: Holding
    parts: int
    """Number of parts of each shard, at least 1."""
    moved_to: str
    """Member that has the counters, by the information of the sender, when `hold` is less than
    `HELD`; else empty."""
    replica_at: str
    """Member that may have a replica of the counters, when `hold` is `HELD` and they were taken
    over without any replica; else empty."""
    taken_from: str
    """Previous owner of counters that the sender took over, or owner of a replica when `hold` is
    `COPY`; else empty."""
    transfer_id: int
    """Number of the transfer; a repeated number means the same counters again. 0 for a replica in
    one part, and when nothing is sent."""
    is_from_before: bool = False
    """Whether the counters were taken over before the last start of `taken_from`."""
    origins: tuple[int, ...] = ()
    """Numbers of the starts without counters from which the counters or the replica come, and of
    marks in their history; 0 is an unknown one. Empty for a shard without counters."""
    marks: tuple[int, ...] = ()
    """Mark of this transfer, then the mark of the start of the fallback counts, if there are any,
    and marks and origins of their parts from other members."""


class Pulled(Struct, frozen=True):
    """Answer to `Pull`: counters of some of the requested shards. The others must be requested
    again."""

    seq: int
    groups: list[ShardGroup]
    counts: PackedSnapshot
    fallback_counts: list[list[int]]
    """Admissions of each key since its shard was taken over: alternating ages in ns and units. Each
    slot that changed follows: its number and 0. Empty when no shard was taken over."""
    decided: list[DecidedCheck] = field(default_factory=list)
    """Recent decisions on these shards, whose checks may arrive again on another path."""


class Copy(Struct, frozen=True):
    """Replication message: changed counters, from the node that owns them to its standby node."""

    seq: int
    counts: PackedSnapshot
    origins: list[tuple[int, ...]] = field(default_factory=list)
    """Different origins of the counters, each as in `ShardGroup.origins`; empty when they are
    unknown."""
    which_origins: list[int] = field(default_factory=list)
    """Index into `origins` for each key. Empty when `origins` has at most one item."""


class TransferOffer(Struct, frozen=True):
    """Offer to transfer shards to the receiver, which owns them by the sender's member list."""

    seq: int
    shards: list[int]


class AskTakenOver(Struct, frozen=True):
    """Request for the list of shards in which the receiver has decided in place of the sender."""

    seq: int


class TakenOver(Struct, frozen=True):
    """Answer to `AskTakenOver`: shards in which the answering node has decided in place of the
    asking node."""

    seq: int
    shards: list[int]


class TransferAck(Struct, frozen=True):
    """Acknowledgement of a shard transfer: the sender has received all counters, so the receiver
    may delete them."""

    seq: int
    shards: list[int]
    transfer_id: int
    """Number of the acknowledged transfer (`ShardGroup.transfer_id`); other transfers are not
    acknowledged."""


class WindowCounts(Struct, frozen=True):
    """Counts of one data center in numbered windows, for rules of global scope."""

    seq: int
    writer: str
    """The sender's data center."""
    keys: list[bytes]
    cells: list[list[int]]
    """Alternating window numbers and counts for each key."""


class Digest(Struct, frozen=True):
    """Checksums, per shard, of the window counts that the sender has already sent to the
    receiver."""

    seq: int
    writer: str
    shards: list[int]
    sums: list[int]


class DigestMismatch(Struct, frozen=True):
    """Answer to `Digest`: shards whose checksums differ, so that their counts must be sent
    again."""

    seq: int
    shards: list[int]


class RecoverCounts(Struct, frozen=True):
    """Request of a node without counters for the counts that its data center sent to others
    earlier."""

    seq: int
    shards: list[int]
    """Requested shards in ascending order; at least one."""


class RecoverCountsReply(Struct, frozen=True):
    """Answer to `RecoverCounts`: window counts of the asking node's data center."""

    seq: int
    shards: list[int]
    """Shards that are complete in this answer; the others must be requested again."""
    keys: list[bytes]
    cells: list[list[int]]
    """Alternating window numbers and counts for each key."""


class AskPeers(Struct, frozen=True):
    """Request of an operator for all data that a node has about other members of the cluster."""

    seq: int


class Peers(Struct, frozen=True):
    """Answer to `AskPeers`: one map for each member."""

    seq: int
    plain: Plain


class AskLeave(Struct, frozen=True):
    """Request to a node: transfer all shards, leave the cluster and stop."""

    seq: int


class Done(Struct, frozen=True):
    """Acknowledgement that a requested action is done or has started."""

    seq: int
