"""What an engine says of a check: one row, or columns for many."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

__all__ = ["CHARGED_CODES", "Code", "LONGEST_NS", "Outcome", "Outcomes"]

LONGEST_NS: Final = 2**63 - 1
"""Longest duration that an outcome states, 292 years: a longer one is cut to it."""


class Code(IntEnum):
    """The verdict on one check. The numbers are those of the wire."""

    ALLOWED = 0
    OVER_SOFT = 1
    """Admitted and charged, but over the limit inside its soft margin."""
    DENIED = 2
    """Not charged; the same cost passes after `retry_after_ns`."""
    NEVER = 3
    """Not charged; no wait, however long, would let this cost through."""
    UNCHARGED = 4
    """Would have passed, but another check of its all-or-nothing group was denied."""
    UNKNOWN_RULE = 5
    """The owner has no such rule; the asker's rules are old, or newer than the owner's."""
    OVERDRAWN = 6
    """Charged, and more than the limit is in use; cost 1 passes after `retry_after_ns`."""


CHARGED_CODES: Final = frozenset([Code.ALLOWED.value, Code.OVER_SOFT.value, Code.OVERDRAWN.value])
"""Codes of rows whose cost was counted."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to one check; durations in ns from the check's `now`, at most `LONGEST_NS`."""

    code: Code
    limit: int
    """The amount of the limit that was applied."""
    remaining: int
    """Largest cost that would be admitted right now, after this check."""
    retry_after_ns: int = 0
    """When denied: after exactly this long the same cost passes, if nobody else spends; else 0."""
    reset_after_ns: int = 0
    """After this long without further checks the key is as new."""
    delay_ns: int = 0
    """Queue mode: how long the caller must wait for its turn."""
    lease: int = 0
    """`concurrency`: the id to release with; 0 when none was given."""

    @property
    def is_admitted(self) -> bool:
        """Whether the check passed and was charged."""
        return self.code <= Code.OVER_SOFT


@dataclass(slots=True)
class Outcomes:
    """The answers to many checks, column by column, in the order asked; all lists equally long."""

    codes: list[int] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    remaining: list[int] = field(default_factory=list)
    retry_after_ns: list[int] = field(default_factory=list)
    reset_after_ns: list[int] = field(default_factory=list)
    delay_ns: list[int] = field(default_factory=list)
    leases: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.codes)

    def extend(self, other: "Outcomes") -> None:
        """Append the answers of `other`."""
        self.codes += other.codes
        self.limits += other.limits
        self.remaining += other.remaining
        self.retry_after_ns += other.retry_after_ns
        self.reset_after_ns += other.reset_after_ns
        self.delay_ns += other.delay_ns
        self.leases += other.leases

    def row(self, index: int) -> Outcome:
        """Take one answer out of the columns."""
        return Outcome(
            Code(self.codes[index]),
            self.limits[index],
            self.remaining[index],
            self.retry_after_ns[index],
            self.reset_after_ns[index],
            self.delay_ns[index],
            self.leases[index],
        )
