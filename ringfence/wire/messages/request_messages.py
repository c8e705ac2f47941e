"""Checks, charges and refunds, their answers, and the identity of a check.

`request_codec` encodes and decodes them.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import Outcomes

__all__ = [
    "Answer",
    "BY_POLICY",
    "CheckId",
    "DecidedCheck",
    "NO_ID",
    "Op",
    "OutcomeRow",
    "Request",
    "Source",
]


CheckId: TypeAlias = tuple[int, int, int]
"""Session of the sender that asked first, number of that request, row in that request."""
NO_ID: CheckId = (0, 0, 0)
"""Identity of a row that no earlier request has asked for."""
OutcomeRow: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""Code, limit, remaining, retry_after_ns, reset_after_ns, delay_ns, lease, source."""


@dataclass(frozen=True, slots=True)
class DecidedCheck:
    """A check that a node decided, by its identity."""

    id: CheckId
    key: bytes
    cost: int
    age_ns: int
    """Time since it was decided."""
    row: OutcomeRow
    """Its outcome, which repeats of the check are answered with."""


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
