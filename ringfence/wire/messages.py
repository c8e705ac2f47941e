"""The messages that nodes and clients exchange, as values; `codec` turns them into bytes and back.

Instants never stand in a message: deadlines and ages are durations, since no two hosts' monotonic
clocks compare.
"""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TypeAlias

from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import Outcomes
from ringfence.wire.check_ids import CheckId
from ringfence.wire.json_types import Plain
from ringfence.wire.lease_messages import (
    DenialRevoked,
    LeaseGrant,
    LeaseRecall,
    LeaseRequest,
    SlotsFree,
    SubscribeDenials,
)
from ringfence.wire.metric_messages import AskThrottled, Report, Throttled
from ringfence.wire.peer_messages import (
    AskLeave,
    AskPeers,
    AskTakenOver,
    Copy,
    Counts,
    Digest,
    DigestMismatch,
    Done,
    Exchange,
    Exchanged,
    Holding,
    Peers,
    Pull,
    Pulled,
    RecoverCounts,
    RecoverCountsReply,
    ShardGroup,
    TakenOver,
    TransferAck,
    TransferOffer,
    WindowCounts,
)

__all__ = [
    "BY_POLICY",
    "Answer",
    "AskLeave",
    "AskMembers",
    "AskPeers",
    "AskRules",
    "AskStats",
    "AskTakenOver",
    "AskThrottled",
    "LeaseRequest",
    "LeaseRecall",
    "WindowCounts",
    "Copy",
    "Counts",
    "DigestMismatch",
    "Digest",
    "Done",
    "Exchange",
    "Exchanged",
    "Goodbye",
    "Hello",
    "Holding",
    "TransferAck",
    "LeaseGrant",
    "DenialRevoked",
    "SubscribeDenials",
    "MemberRow",
    "Members",
    "Message",
    "TransferOffer",
    "Op",
    "Peers",
    "Ping",
    "Plain",
    "Pong",
    "Pull",
    "Pulled",
    "RecoverCounts",
    "RecoverCountsReply",
    "Refused",
    "Report",
    "Request",
    "Role",
    "Rules",
    "ShardGroup",
    "SlotsFree",
    "Source",
    "Stats",
    "TakenOver",
    "Throttled",
    "Welcome",
]


class Role(StrEnum):
    """Who says hello."""

    NODE = "node"
    CLIENT = "client"


class Op(IntEnum):
    """What a `Request` asks for each of its keys."""

    CHECK = 0
    """Ask and, if allowed, spend; cost 0 is a peek."""
    REFUND = 1
    """Give `costs` back; answered like a peek."""
    RESET = 2
    """Forget the key; answered like a peek."""
    CHARGE = 3
    """Spend, whatever is left; the answer tells whether the limit still holds. Cost 0 only asks."""
    RENEW = 4
    """Let a slot of a concurrency limit live for a whole period from now; denied when it ended."""


class Source(IntEnum):
    """Who decided."""

    OWNER = 0
    STANDBY = 1
    """The owner could not be reached; the next distinct member decided."""
    LOCAL = 2
    """No node could be reached and the rule says `on_failure: local`: this process decided."""
    POLICY = 3
    """No node could be reached: the rule's `on_failure` allowed or denied."""
    NO_RULE = 4
    """No rule applies; nothing was asked."""
    CACHE = 5
    """This process remembers what the owner said: denied, and for how long."""
    LEASE = 6
    """This process spent of what the owner had lent it."""
    SHED = 7
    """The member that decides it is alive but too busy to decide in time: the rule's `on_failure`
    allowed or denied."""

    def __str__(self) -> str:
        return self.name.lower()


BY_POLICY = (Source.POLICY, Source.SHED)
"""No member decided in time, and the rule's `on_failure` did without counting."""


@dataclass(frozen=True, slots=True)
class Hello:
    """First message on a connection, from the side that opened it."""

    role: Role
    name: str
    """Node name, or the name of the client's token."""
    credential: bytes
    """For a node: proof of the cluster key. For a client: its token's secret. At most 64 bytes."""
    session: int
    """64-bit random id, new for each link of a process; with `seq` it names a request for good."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to a good `Hello`."""

    name: str
    """The node's name."""
    view: int
    """64-bit hash of the members the node sees."""
    rules: int
    """Version of the node's rules: higher is newer."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request or hello that was not served, and why. `seq` 0 answers the connection itself; all
    other messages count from 1."""

    seq: int
    code: int
    """An `ErrorCode`."""
    reason: str
    """What is wrong and how to mend it; cut at 500 characters."""


@dataclass(slots=True)
class Request:
    """Checks, charges, refunds or resets, column by column: one frame carries one or thousands.

    Not frozen, unlike the rest: one is made per check, and freezing 13 fields costs more than
    unpacking the frame they come in. Nobody changes one.
    """

    seq: int
    op: Op
    view: int
    """View hash the sender routed by."""
    deadline_ms: int
    """How long the sender will wait for the answer, at most 60 000."""
    hops: int
    """0 from a client, 1 when a node has forwarded it; never more."""
    stand_in: bool
    """The owner was unreachable: decide in its place."""
    keys: list[bytes]
    costs: list[int]
    """As long as `keys`."""
    groups: list[int]
    """Run lengths of all-or-nothing groups, summing to `len(keys)`; empty when each key stands
    alone."""
    limits: list[Limit]
    """Limits carried by ad-hoc checks and request overrides; empty when every rule is the owner's
    own."""
    which: list[int]
    """Per key, 1 + index into `limits`, or 0 for the owner's own rule; empty when `limits` is."""
    ages_ns: list[int]
    """`REFUND` only: per key, at most how long ago the cost was charged; empty otherwise."""
    leases: list[int]
    """`REFUND` and `RENEW`: per key, the concurrency lease to release or to renew, 0 for none.
    `CHECK`: per key, the ticket under which the sender waits for a slot when the check is denied, 0
    when it does not wait; with cost 0 the sender waits no longer. Empty otherwise."""
    ids: list[CheckId] = field(default_factory=list)
    """Per key, the identity of the check that this request repeats on another path; empty when
    the checks are asked for the first time."""


@dataclass(slots=True)
class Answer:
    """The outcomes of the request with the same `seq`, or of some of its rows, in its order.

    Not frozen, for the reason that `Request` is not. Nobody changes one.
    """

    seq: int
    view: int
    rules: int
    outcomes: Outcomes
    sources: list[int]
    """Per key, a `Source`."""
    rows: list[int] | None = None
    """Rows of the request that this answers, in rising order; None for all. The other rows wait for
    another member or for a shard, and further answers follow."""


@dataclass(frozen=True, slots=True)
class AskMembers:
    """Ask for the members."""

    seq: int


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member as another sees it."""

    name: str
    host: str
    port: int
    datacenter: str
    zone: str
    weight: float
    state: str
    """`joining`, `alive`, `suspect`, `forwarding`, `leaving`, `dead` or `left`; only those that are
    alive or suspect are in the ring."""


@dataclass(frozen=True, slots=True)
class Members:
    """The members, sorted by name, and the hash of that view."""

    seq: int
    view: int
    members: list[MemberRow]


@dataclass(frozen=True, slots=True)
class AskRules:
    """Ask for the rules."""

    seq: int


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules as plain data; `RuleSet.from_plain` reads them."""

    seq: int
    version: int
    plain: Plain


@dataclass(frozen=True, slots=True)
class AskStats:
    """Ask for the node's counters."""

    seq: int


@dataclass(frozen=True, slots=True)
class Stats:
    """The node's counters by name."""

    seq: int
    counters: dict[str, int]


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there?"""

    seq: int


@dataclass(frozen=True, slots=True)
class Pong:
    """I am."""

    seq: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The sender is draining: finish what is in flight and ask elsewhere."""

    reason: str
    """For people; cut at 500 characters."""


Message: TypeAlias = (
    Hello
    | Welcome
    | Refused
    | Request
    | Answer
    | AskMembers
    | Members
    | AskRules
    | Rules
    | AskStats
    | Stats
    | Ping
    | Pong
    | Exchange
    | Exchanged
    | Pull
    | Pulled
    | Copy
    | TransferOffer
    | TransferAck
    | WindowCounts
    | Digest
    | DigestMismatch
    | RecoverCounts
    | RecoverCountsReply
    | AskPeers
    | Peers
    | AskLeave
    | Done
    | SubscribeDenials
    | DenialRevoked
    | LeaseRequest
    | LeaseGrant
    | LeaseRecall
    | SlotsFree
    | Goodbye
    | AskTakenOver
    | TakenOver
    | Report
    | AskThrottled
    | Throttled
)
