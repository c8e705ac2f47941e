"""Requests for checks, charges and refunds, and their answers.

`request_columns` has their columns, `request_codec` encodes and decodes them.
"""

from msgspec import Struct

from ringfence.wire.messages.request_columns import Batch, CheckId, OutcomeRow, Results

__all__ = ["Answer", "DecidedCheck", "Request"]


class DecidedCheck(Struct, frozen=True):
    """Record of a check, a charge, a refund or a reset that a node decided."""

    id: CheckId
    key: bytes
    cost: int
    """Units that were charged; for a refund, the units that it removed."""
    age_ns: int
    """Time since the decision."""
    row: OutcomeRow
    """Result of the check, which also answers repetitions of the check."""
    is_refund: bool = False
    is_reset: bool = False
    replica_age_ns: int = 0
    """For a reset in place of the owner, the age of the owner's newest replicated counter at the
    time of the reset; 0 if it is unknown."""


class Request(Struct):
    """Batch of checks, charges, refunds or resets in one message; it has one row or thousands.

    Not frozen, since one is created per frame. No code changes one.
    """

    seq: int
    view: int
    """Hash of the view from which the sender chose the receiver."""
    deadline_ms: int
    """Time that the sender waits for the answer, at most 60 000."""
    hops: int
    """Number of nodes that forwarded the request: 0 from a client, at most 2."""
    as_standby: bool
    """Whether the owner could not be reached, so that the receiver decides as its standby."""
    batch: Batch


class Answer(Struct):
    """Results of the request that `seq` identifies, or of some of its rows, in the order of the
    request.

    Not frozen, since one is created per frame. No code changes one.
    """

    seq: int
    view: int
    rules: int
    results: Results
    rows: list[int] | None = None
    """Answered rows of the request, ascending; None for all. The other rows wait for another member
    or for a shard transfer, and further answers follow."""
