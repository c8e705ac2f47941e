"""Identity of a check on every path that it takes, and what a node remembers of a decided check.

A check that is asked twice (of its owner and of the standby, directly and forwarded) has one
identity, so that it is counted once.
"""

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["NO_ID", "CheckId", "DecidedCheck", "OutcomeRow"]

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
