"""Terms of a limit: its numbers, as the oracle needs them.

The oracle shares no code with the limiter, so it reads a limit by its attributes alone.
"""

from typing import NamedTuple, Protocol, Self

__all__ = ["BUCKETS", "LimitFields", "Terms"]

BUCKETS = ("token_bucket", "leaky_bucket")
"""Algorithms that count by the level of a bucket."""


class LimitFields(Protocol):
    """Attributes of a limit from which terms are read."""

    @property
    def algorithm(self) -> str:
        """Name of the algorithm, as in rule files."""

    @property
    def amount(self) -> int:
        """Units that a period permits."""

    @property
    def period_ns(self) -> int:
        """Length of the period."""

    @property
    def burst(self) -> int | None:
        """Size of a bucket; None means the amount."""

    @property
    def slots(self) -> int:
        """Number of slots of a sliding window."""

    @property
    def soft_permille(self) -> int:
        """Soft margin in permille."""

    @property
    def queue(self) -> bool:
        """Whether admitted checks leave a bucket one by one."""

    @property
    def first_hit(self) -> bool:
        """Whether windows begin with the first hit of a key."""

    @property
    def calendar(self) -> str | None:
        """Calendar period of the windows, such as `day`."""

    @property
    def timezone(self) -> str:
        """Time zone of the calendar."""


class Terms(NamedTuple):
    """Algorithm and numbers of a limit."""

    algorithm: str
    """Name as in rule files."""
    amount: int
    period_ns: int
    burst: int | None = None
    slots: int = 1
    soft_permille: int = 0
    queue: bool = False
    first_hit: bool = False
    calendar: str | None = None
    timezone: str = "UTC"

    @classmethod
    def of(cls, limit: LimitFields) -> Self:
        """Read the terms of a limit."""
        return cls(
            algorithm=str(limit.algorithm),
            amount=limit.amount,
            period_ns=limit.period_ns,
            burst=limit.burst,
            slots=limit.slots,
            soft_permille=limit.soft_permille,
            queue=limit.queue,
            first_hit=limit.first_hit,
            calendar=None if limit.calendar is None else str(limit.calendar),
            timezone=limit.timezone,
        )

    @property
    def is_bucket(self) -> bool:
        """Whether the algorithm counts by the level of a bucket."""
        return self.algorithm in BUCKETS

    @property
    def hard(self) -> int:
        """Most units in use without the soft margin."""
        if self.amount == 0:
            return 0  # A limit of 0 denies everything, whatever its burst.
        if self.is_bucket and self.burst is not None:
            return self.burst
        return self.amount

    @property
    def ceiling(self) -> int:
        """Most units in use with the soft margin, rounded down."""
        return self.hard + self.hard * self.soft_permille // 1000

    @property
    def rate(self) -> int:
        """Units that drain from a bucket in one period; one unit if the limit admits nothing."""
        return max(self.amount, 1)

    @property
    def slot_ns(self) -> int:
        """Length of one slot of a sliding window."""
        return self.period_ns // self.slots
