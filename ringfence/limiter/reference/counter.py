"""What every algorithm offers: a scheme, shared by all keys of a limit, and a counter per key.

Decides nothing itself. Which algorithm a limit means stands in `schemes`, the arithmetic in one
module per algorithm, and which keys have a counter at all in `ringfence.limiter.table`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final, TypeAlias

from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import Code, Outcomes
from ringfence.limiter.serialization import MOST_UNITS

__all__ = [
    "ALLOWED",
    "Counter",
    "DENIED",
    "LeaseIds",
    "NEVER",
    "OVERDRAWN",
    "OVER_SOFT",
    "Scheme",
    "Verdict",
    "columns",
]

ALLOWED: Final = Code.ALLOWED.value
OVER_SOFT: Final = Code.OVER_SOFT.value
DENIED: Final = Code.DENIED.value
NEVER: Final = Code.NEVER.value
OVERDRAWN: Final = Code.OVERDRAWN.value

Verdict: TypeAlias = tuple[int, int, int, int, int, int]
"""(code, remaining, retry_after_ns, reset_after_ns, delay_ns, lease), as in `Outcome`.

A bare tuple, because the hot path makes one per check and a named value costs ten times as much.
"""


class Counter(ABC):
    """What one key has used, under one scheme. Owned by one table, changed in place.

    `now` is in nanoseconds since the Unix epoch. A `now` smaller than one seen before counts as
    the largest seen, so a clock that steps back never gives anything away.
    """

    __slots__ = ()
    scheme: "Scheme"

    @abstractmethod
    def check(self, cost: int, now: int) -> Verdict:
        """Spend `cost` units if they fit; a denied check leaves the counter as it was.

        Cost 0 peeks: it is denied exactly when nothing remains, with the wait for cost 1, and it
        reads `OVER_SOFT` while more than the hard limit is in use. Nothing is ever charged by it.
        """

    @abstractmethod
    def refund(self, cost: int, now: int, age_ns: int, lease: int) -> None:
        """Give back `cost` units that were charged at or after `now - age_ns`; never past empty.

        Only what still weighs on the key comes back, and where the exact instant of the charge is
        unknown the oldest candidate goes, so no refund lets a true window admit more than it
        would have without the charge. With age 0 it undoes a check made at `now`.
        """

    @abstractmethod
    def used(self, now: int) -> int:
        """Units in use, rounded up; 0 exactly when the key is as new."""

    @abstractmethod
    def state(self, now: int) -> list[int]:
        """Write the counter down for another node: what `Scheme.revive` reads."""

    @abstractmethod
    def charge(self, units: int, now: int, age_ns: int) -> None:
        """Count units that were spent `age_ns` ago, whatever the ceiling.

        Units that would not weigh any more by now are ignored, and so are those beyond
        `MOST_UNITS` in all.
        """

    def standing(self, now: int) -> Verdict:
        """Tell whether the units in use are within the limit; the answer to a charge.

        `OVERDRAWN` while more than the ceiling is in use, then with the wait for cost 1; 0 stands
        for a cost that never passes.
        """
        return self.scheme.standing(self.check(0, now), self.used(now))

    def is_rested(self, now: int) -> bool:
        """Whether forgetting the counter would change nothing."""
        return not self.used(now)

    @property
    def extra_bytes(self) -> int:
        """Bytes beyond those of a counter of a few numbers, roughly; cheap to ask for."""
        return 0

    def share_in_use(self, now: int) -> int:
        """Used part of the ceiling in millionths: what forgetting this key would give away."""
        return self.used(now) * 1_000_000 // max(self.scheme.ceiling, 1)


class Scheme(ABC):
    """A limit worked out for counting: the numbers every check of it needs. Never changes."""

    __slots__ = ("ceiling", "hard", "limit")
    grows: ClassVar[bool] = False
    """Whether a counter grows with every check."""

    def __init__(self, limit: Limit) -> None:
        self.limit: Final = limit
        self.hard: Final = limit.hard_ceiling
        """Most units in use that are not yet over the limit."""
        self.ceiling: Final = limit.ceiling
        """Most units in use that are ever admitted, the soft margin included."""

    @abstractmethod
    def open(self, now: int, used: int = 0) -> Counter:
        """Start a counter that has `used` units charged at `now`, even more than the ceiling."""

    @abstractmethod
    def revive(self, state: Sequence[int], now: int) -> Counter:
        """Go on from what `Counter.state` wrote, which began to age at `now`.

        Raises `BadState` for numbers that no counter of this scheme writes.
        """

    def standing(self, peek: Verdict, used: int) -> Verdict:
        """Answer a charge, after which `used` units are in use, by a peek."""
        _, remaining, retry_after, reset_after, _, _ = peek
        if used > self.ceiling:
            return OVERDRAWN, remaining, retry_after, reset_after, 0, 0
        code = ALLOWED if used <= self.hard else OVER_SOFT
        return code, remaining, 0, reset_after, 0, 0

    def adopt(self, counter: Counter, now: int) -> Counter:
        """Continue under this scheme what another scheme has counted, so that no budget is gained.

        Unless an algorithm knows better, what is in use now counts as charged now.
        """
        return self.open(now, min(counter.used(now), MOST_UNITS))


class LeaseIds:
    """Gives out lease ids, each once."""

    __slots__ = ("next",)

    def __init__(self, first: int) -> None:
        self.next = first
        """The id that the next lease will get."""

    def take(self) -> int:
        """Use up one id."""
        lease = self.next
        self.next = lease + 1
        return lease


def columns(verdicts: Sequence[Verdict], limits: list[int]) -> Outcomes:
    """Turn rows into the columns of an answer; `limits` is the amount applied per row."""
    if not verdicts:
        return Outcomes()
    codes, remaining, retry_after, reset_after, delays, leases = zip(*verdicts, strict=True)
    return Outcomes(
        list(codes),
        limits,
        list(remaining),
        list(retry_after),
        list(reset_after),
        list(delays),
        list(leases),
    )
