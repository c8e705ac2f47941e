"""Values of the bounds: spent units and questions whose instants are only known as intervals.

All instants are integer ns since the Unix epoch on the clock of the member that decides. Both ends
of an interval belong to it.
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from simulations.oracle.terms import Terms

__all__ = ["Bound", "Drain", "Question", "Reading", "Refund", "Spend", "Verdict"]


class Refund(NamedTuple):
    """Units that were given back, or the release of a slot of a concurrency limit."""

    earliest: int
    latest: int
    least: int
    """Fewest units; 0 when the refund may be lost."""
    most: int
    age_least: int = 0
    """Age of the charge in ns, as the refund states it; 0 means the newest units."""
    age_most: int = 0
    is_recorded: bool = False
    """Whether the member has a record of the charges and makes the refund old enough for them."""


class Spend(NamedTuple):
    """Check that was admitted, or charge: its units count once, at one instant of the interval."""

    earliest: int
    latest: int
    least: int
    """Fewest units; 0 when they may be lost or may never have been counted."""
    most: int
    """Most units; twice the cost when the check may have been counted twice."""
    refund: Refund | None = None
    """Refund of these units, which happens after the spending."""
    known: int | None = None
    """Instant from which the deciding member certainly counts the units; at least `latest`."""
    kept_until: tuple[int, int] | None = None
    """Concurrency only: earliest and latest expiry of the slot; None means a period after the
    grant."""

    @property
    def counted_from(self) -> int:
        """Instant from which the units are certainly spent and counted."""
        return self.latest if self.known is None else max(self.latest, self.known)

    def returned_after(self, reading: "Reading") -> int:
        """Return the units that may have been given back after a reading.

        These are refunds, and units whose number is uncertain at the time of the reading.
        """
        units = 0
        if self.refund is not None and self.refund.latest >= reading.earliest:
            units += self.refund.most
        if self.earliest <= reading.latest and self.latest >= reading.earliest:
            units += self.most - self.least
        return units


class Reading(NamedTuple):
    """Units that a counter contained right after a decision."""

    earliest: int
    latest: int
    least: int
    most: int
    until: int
    """Instant up to which no fault changes the units that were read."""
    own: Spend | None = None
    """Units of this very decision, which are among those that were read if `has_own`."""
    levels: tuple[int, int] = (0, 0)
    """Bucket only: lowest level at `earliest` and highest level at `latest`, in ticks."""
    denied: tuple[int, int] | None = None
    """Cost that was denied, and the instant until which it certainly does not pass."""
    error_ns: int = 0
    """Bucket only: time by which a level may be wrong later, whenever it is asked."""
    drift_ppm: int = 0
    """Bucket only: the same, in millionths of the time since the reading."""
    has_own: bool = True
    """Whether the decision spent its units. Otherwise only repeats of its check may spend them,
    after the reading."""

    @property
    def repeated(self) -> Spend | None:
        """Units that repeats of the check may spend after its reading."""
        return None if self.has_own else self.own

    def without_own(self, spends: Iterable[Spend]) -> Iterator[Spend]:
        """Yield spends without the units of this decision. Other decisions at the same instants
        have equal spends, which remain."""
        own = self.own
        for spend in spends:
            if own is not None and spend == own:
                own = None
            else:
                yield spend


class Question(NamedTuple):
    """Decision that is judged: a check of `cost` at one instant of the interval."""

    earliest: int
    latest: int
    cost: int
    """Units; 0 is a peek, which is decided like a check of 1."""
    own: int = 0
    """Units of this very check among the spent units; they do not count before the decision."""


class Drain(NamedTuple):
    """Interval in which a bucket drains at another rate than that of its limit."""

    begin: int
    end: int
    least: int
    """Fewest units that drain in a period."""
    most: int


class Verdict(Enum):
    """Right decision on a question."""

    MUST_ALLOW = "must_allow"
    MUST_DENY = "must_deny"
    EITHER = "either"
    """The intervals leave both decisions possible."""


class Bound(NamedTuple):
    """What is certain about one decision, at every choice of instants and units."""

    least: int
    """Fewest units in use just before the decision, rounded up."""
    most: int
    """Most units in use just before the decision, rounded up."""
    verdict: Verdict
    is_permanent: bool
    """Whether the cost can never pass, so that a denial has no wait."""
    shortest_wait: int = 1
    """Shortest right `retry_after` of a denial, in ns."""
    longest_wait: int = 0
    """Longest right `retry_after` of a denial, in ns; 0 when a denial is wrong."""

    def delays(self, terms: Terms) -> tuple[int, int]:
        """Return the shortest and the longest right delay of an admitted check, in ns."""
        if not terms.queue:
            return 0, 0
        shortest = max(0, self.least - 1) * terms.period_ns // terms.rate
        return shortest, -(-self.most * terms.period_ns // terms.rate)
