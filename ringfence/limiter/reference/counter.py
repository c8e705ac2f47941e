"""Interface of the rate limiting algorithms: a scheme (derived values) for each limit, and a
counter for each key.

`schemes` maps limits to schemes, and each algorithm has its own module. `ringfence.limiter.table`
decides which keys have a counter.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final, TypeAlias

from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import Code, Outcomes
from ringfence.limiter.serialization import MAX_UNITS

__all__ = [
    "ALLOWED",
    "Counter",
    "DENIED",
    "SlotNumbers",
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
"""(code, remaining, retry_after_ns, reset_after_ns, delay_ns, slot_id), as in `Outcome`.

A bare tuple, because the hot path makes one per check and a named value costs ten times as much.
"""


class Counter(ABC):
    """Units of one key that are in use under one limit.

    Each counter belongs to one table and is changed in place.

    `now` is in nanoseconds since the Unix epoch. A `now` below an earlier one counts as the largest
    so far, so a clock that steps back never admits more.
    """

    __slots__ = ()
    scheme: "Scheme"

    @abstractmethod
    def check(self, cost: int, now: int) -> Verdict:
        """Spend `cost` units of a key if its limit permits; a denied check changes nothing.

        Cost 0 charges nothing and only returns the state. It is denied exactly when nothing
        remains, with the wait for cost 1. It returns `OVER_SOFT` while more than the hard limit is
        in use.
        """

    @abstractmethod
    def refund(self, cost: int, now: int, age_ns: int, slot_id: int) -> None:
        """Refund `cost` units that were charged at or after `now - age_ns`; usage never falls below
        0.

        Only units that still count are refunded. When the instant of the charge is unknown, the
        oldest candidate is removed. So no window admits more than it would have without the charge.
        With age 0 this undoes a check made at `now`.
        """

    @abstractmethod
    def used(self, now: int) -> int:
        """Return the units in use, rounded up; 0 only when the key is not in use."""

    @abstractmethod
    def state(self, now: int) -> list[int]:
        """Return the counter as numbers from which `Scheme.restore` restores it on another node."""

    @abstractmethod
    def charge(self, units: int, now: int, age_ns: int) -> None:
        """Count units that were spent `age_ns` ago, even above the limit.

        Units that would have expired by now are ignored, and so are units beyond a total of
        `MAX_UNITS`.
        """

    def standing(self, now: int) -> Verdict:
        """Return the result of a charge: whether the units in use are within the limit.

        `OVERDRAWN` while more than the ceiling is in use, with the wait for cost 1. A wait of 0
        means that the cost never passes.
        """
        return self.scheme.standing(self.check(0, now), self.used(now))

    def is_expired(self, now: int) -> bool:
        """Whether the counter can be removed without any effect on later checks."""
        return not self.used(now)

    @property
    def extra_bytes(self) -> int:
        """Approximate bytes of this counter beyond the size of a small counter; computed at low
        cost."""
        return 0

    def own_part(self, now: int) -> "Counter":
        """Return the units of this data center alone, if several data centers share the counter;
        otherwise the counter itself."""
        return self

    def share_in_use(self, now: int) -> int:
        """Return the used part of the limit in millionths, which an eviction would make
        available again."""
        return self.used(now) * 1_000_000 // max(self.scheme.ceiling, 1)


class Scheme(ABC):
    """Values derived from a limit, which every check needs, and creation of counters."""

    __slots__ = ("ceiling", "hard", "limit")
    grows: ClassVar[bool] = False
    """Whether counters grow with every check."""

    def __init__(self, limit: Limit) -> None:
        self.limit: Final = limit
        self.hard: Final = limit.hard_ceiling
        """Maximum units in use within the limit."""
        self.ceiling: Final = limit.ceiling
        """Maximum units in use, including the soft margin."""

    @abstractmethod
    def open(self, now: int, used: int = 0) -> Counter:
        """Create a counter with `used` units charged at `now`, even above the limit."""

    @abstractmethod
    def restore(self, state: Sequence[int], now: int) -> Counter:
        """Restore a counter from the numbers of `Counter.state`; its durations start at `now`.

        Raises `BadState` for numbers that no counter of this limit writes.
        """

    def standing(self, peek: Verdict, used: int) -> Verdict:
        """Return the result of a charge, from a check of cost 0 and the units in use after the
        charge."""
        _, remaining, retry_after, reset_after, _, _ = peek
        if used > self.ceiling:
            return OVERDRAWN, remaining, retry_after, reset_after, 0, 0
        code = ALLOWED if used <= self.hard else OVER_SOFT
        return code, remaining, 0, reset_after, 0, 0

    def adopt(self, counter: Counter, now: int) -> Counter:
        """Convert a counter of another limit, without making more units available.

        By default the units in use count as charged now. If data centers shared the counter and do
        not share the result, each of them keeps its own units only. Otherwise all of them would
        count the units of all, also when they share the counter again.
        """
        return self.open(now, min(counter.own_part(now).used(now), MAX_UNITS))


class SlotNumbers:
    """Generator of unique ids for slots of concurrency limits."""

    __slots__ = ("next",)

    def __init__(self, first: int) -> None:
        self.next = first
        """Id of the next slot."""

    def take(self) -> int:
        """Return a new id for a slot of a concurrency limit."""
        slot_id = self.next
        self.next = slot_id + 1
        return slot_id


def columns(verdicts: Sequence[Verdict], limits: list[int]) -> Outcomes:
    """Convert results of checks from rows to columns; `limits` has the amount of each check's
    limit."""
    if not verdicts:
        return Outcomes()
    codes, remaining, retry_after, reset_after, delays, slot_ids = zip(*verdicts, strict=True)
    return Outcomes(
        list(codes),
        limits,
        list(remaining),
        list(retry_after),
        list(reset_after),
        list(delays),
        list(slot_ids),
    )
