"""The messages by which nodes keep each other's members and counters, and operators ask for them.

Values only, as in `messages`, which names them all; `peer_codec` turns these into bytes and back.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from ringfence.limiter.limit import Limit
from ringfence.wire.messages.cluster_messages import Plain
from ringfence.wire.messages.request_messages import DecidedCheck

__all__ = [
    "AskLeave",
    "AskPeers",
    "AskTakenOver",
    "WindowCounts",
    "Copy",
    "Counts",
    "DigestMismatch",
    "Digest",
    "Done",
    "Exchange",
    "Exchanged",
    "Holding",
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


@dataclass(frozen=True, slots=True)
class Exchange:
    """A member's whole list of members, asking for the other's: anti-entropy between nodes."""

    seq: int
    packed: bytes
    """As `gossip` packs records; opaque here, so that clients need not know them."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The answer to `Exchange`, in kind."""

    seq: int
    packed: bytes


@dataclass(frozen=True, slots=True)
class Counts:
    """The state of counters, column by column: what moves and is copied between nodes."""

    keys: list[bytes]
    states: list[list[int]]
    """Per key, what `Engine.snapshot` says of it: durations, window numbers and counts."""
    limits: list[Limit]
    """The limits that the keys were counted by."""
    which: list[int]
    """Per key, an index into `limits`."""
    remote_counts: list[dict[str, list[int]]]
    """Per key, the cells of other data centers; empty when no key has any."""


class Holding(IntEnum):
    """What a node has of a shard that it was asked for."""

    NOTHING = 0
    COPY = 1
    """A standby's copy, at most one interval old; the answer changes nothing."""
    HELD = 2
    """The counters themselves: the asker decides from now on."""


@dataclass(frozen=True, slots=True)
class Pull:
    """The sender owns these shards in its view, and asks for their counters."""

    seq: int
    shards: list[int]
    """Ascending; at least one."""
    part: int
    """0 at first; the parts after it are asked for one shard at a time."""
    gift: int = 0
    """The transfer that a later part belongs to, as `ShardGroup.gift` names it; 0 for part 0."""


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """Shards of a `Pulled` of which the same is true."""

    shards: list[int]
    """Ascending; at least one."""
    sizes: list[int]
    """How many of the message's keys are of each shard; they stand in this order."""
    hold: Holding
    parts: int
    """How many parts the counters of each of them come in, at least 1."""
    moved_to: str
    """Member that has the counters, as far as the sender has seen, when `hold` is less than
    `HELD`; else empty."""
    replica_at: str
    """Member that may have a replica of the counters, when `hold` is `HELD` and they were taken
    over without any replica; else empty."""
    taken_from: str
    """Whose counters these were when they were taken over without its doing, or are when `hold` is
    `COPY`; else empty."""
    gift: int
    """Number of the transfer: the same number again is the same counters again, not more of them.
    0 for a copy in one part, and where nothing is sent."""
    is_from_before: bool = False
    """Whether they were taken over before `taken_from` was started the last time."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """Counters of some of the shards asked for; the rest must be asked again."""

    seq: int
    groups: list[ShardGroup]
    counts: Counts
    tallies: list[list[int]]
    """Per key, what was admitted since its shard was taken over: age in ns and units in turns.
    Empty when no shard was."""
    decided: list[DecidedCheck] = field(default_factory=list)
    """Checks of these shards that were decided lately and may be asked again by another path."""


@dataclass(frozen=True, slots=True)
class Copy:
    """State that has changed at the owner, for its standby."""

    seq: int
    counts: Counts


@dataclass(frozen=True, slots=True)
class TransferOffer:
    """The sender has counters of shards that the receiver owns in its view: pull them."""

    seq: int
    shards: list[int]


@dataclass(frozen=True, slots=True)
class AskTakenOver:
    """Ask which shards of the sender the receiver has taken over."""

    seq: int


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Shards that the sender counts in the place of the member that asked."""

    seq: int
    shards: list[int]


@dataclass(frozen=True, slots=True)
class TransferAck:
    """The sender has all parts of these shards, which the receiver gave it and may forget now."""

    seq: int
    shards: list[int]
    gift: int
    """The transfer that is acknowledged, as `ShardGroup.gift` names it; it covers no other one."""


@dataclass(frozen=True, slots=True)
class WindowCounts:
    """What one data center has admitted by rules of global scope."""

    seq: int
    writer: str
    """The sender's data center."""
    keys: list[bytes]
    cells: list[list[int]]
    """Per key: window number and count in turns."""


@dataclass(frozen=True, slots=True)
class Digest:
    """Sums over the cells that the sender believes the receiver has, shard by shard."""

    seq: int
    writer: str
    shards: list[int]
    sums: list[int]


@dataclass(frozen=True, slots=True)
class DigestMismatch:
    """The shards of a `Digest` whose sums were other ones here: send their cells again."""

    seq: int
    shards: list[int]


@dataclass(frozen=True, slots=True)
class RecoverCounts:
    """The sender counts these shards from nothing: what has its data center told the receiver?"""

    seq: int
    shards: list[int]
    """Ascending; at least one."""


@dataclass(frozen=True, slots=True)
class RecoverCountsReply:
    """What the receiver of a `RecoverCounts` remembers of the asker's data center."""

    seq: int
    shards: list[int]
    """Shards of which this is all; the others must be asked for again."""
    keys: list[bytes]
    cells: list[list[int]]
    """Per key: window number and count in turns."""


@dataclass(frozen=True, slots=True)
class AskPeers:
    """Ask for all that a node knows of its fellow members, for people."""

    seq: int


@dataclass(frozen=True, slots=True)
class Peers:
    """One map per member."""

    seq: int
    plain: Plain


@dataclass(frozen=True, slots=True)
class AskLeave:
    """Ask the node to hand over what it owns, leave the cluster and stop."""

    seq: int


@dataclass(frozen=True, slots=True)
class Done:
    """What was asked is done, or under way."""

    seq: int
