"""Results of checks: one row for one check, or columns for many checks."""

from enum import IntEnum
from typing import Final

from msgspec import Struct, field

__all__ = ["CHARGED_CODES", "Code", "LONGEST_NS", "Outcome", "Outcomes"]

LONGEST_NS: Final = 2**63 - 1
"""Maximum duration in an outcome, 292 years; longer ones are shortened to it."""


class Code(IntEnum):
    """Result code of one check. The numbers are those on the wire."""

    ALLOWED = 0
    OVER_SOFT = 1
    """Admitted and charged above the limit, within its soft margin."""
    DENIED = 2
    """Not charged; the same cost passes after `retry_after_ns`."""
    NEVER = 3
    """Not charged; this cost never passes, whatever the wait."""
    UNCHARGED = 4
    """Would have passed, but another check of its all-or-nothing group was denied. Of a refund: its
    sender has no charge that it may refund."""
    UNKNOWN_RULE = 5
    """The owner does not have the rule; one side has older rules."""
    OVERDRAWN = 6
    """Charged while more than the limit is in use; cost 1 passes after `retry_after_ns`."""


CHARGED_CODES: Final = frozenset([Code.ALLOWED.value, Code.OVER_SOFT.value, Code.OVERDRAWN.value])
"""Codes of rows whose cost was counted."""


class Outcome(Struct, frozen=True):
    """Result of one check. Durations are in ns from the check's `now`, at most `LONGEST_NS`."""

    code: Code
    limit: int
    """Amount of the limit that was applied."""
    remaining: int
    """Largest cost that would be admitted now, after this check."""
    retry_after_ns: int = 0
    """For a denial: the wait until the same cost passes without other checks; otherwise 0."""
    reset_after_ns: int = 0
    """Time without further checks until the key is unused again."""
    delay_ns: int = 0
    """Queue mode: time that the caller must wait."""
    slot_id: int = 0
    """`concurrency`: id of the slot to release; 0 when there is none. Of a refund: the units that
    it gave back."""

    @property
    def is_admitted(self) -> bool:
        """Whether the check passed and was charged."""
        return self.code <= Code.OVER_SOFT


class Outcomes(Struct):
    """Results of many checks in columns, in the order of the checks."""

    codes: list[int] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    remaining: list[int] = field(default_factory=list)
    retry_after_ns: list[int] = field(default_factory=list)
    reset_after_ns: list[int] = field(default_factory=list)
    delay_ns: list[int] = field(default_factory=list)
    slot_ids: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.codes)

    def extend(self, other: "Outcomes") -> None:
        """Append the results of further checks, which `other` contains."""
        self.codes += other.codes
        self.limits += other.limits
        self.remaining += other.remaining
        self.retry_after_ns += other.retry_after_ns
        self.reset_after_ns += other.reset_after_ns
        self.delay_ns += other.delay_ns
        self.slot_ids += other.slot_ids

    def row(self, index: int) -> Outcome:
        """Return the result of one check."""
        return Outcome(
            Code(self.codes[index]),
            self.limits[index],
            self.remaining[index],
            self.retry_after_ns[index],
            self.reset_after_ns[index],
            self.delay_ns[index],
            self.slot_ids[index],
        )
