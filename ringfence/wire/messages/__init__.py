"""Messages that nodes and clients exchange, as values; `Message` is the union of all.

No message contains an instant, because the monotonic clocks of two hosts differ. Deadlines and ages
are durations.
"""

from typing import TypeAlias

from ringfence.wire.messages.cluster_messages import (
    AskMembers,
    AskRules,
    AskStats,
    Members,
    Rules,
    Stats,
)
from ringfence.wire.messages.lease_messages import (
    DenialRevoked,
    LeaseGrant,
    LeaseRecall,
    LeaseRequest,
    SlotsFree,
    SubscribeDenials,
)
from ringfence.wire.messages.metric_messages import AskThrottled, Report, Throttled
from ringfence.wire.messages.peer_messages import (
    AskLeave,
    AskPeers,
    AskTakenOver,
    Copy,
    Digest,
    DigestMismatch,
    Done,
    Exchange,
    Exchanged,
    Peers,
    Pull,
    Pulled,
    RecoverCounts,
    RecoverCountsReply,
    TakenOver,
    TransferAck,
    TransferOffer,
    WindowCounts,
)
from ringfence.wire.messages.request_messages import Answer, Request
from ringfence.wire.messages.session_messages import Goodbye, Hello, Ping, Pong, Refused, Welcome

__all__ = ["Message"]

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
