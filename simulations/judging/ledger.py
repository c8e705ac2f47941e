"""What an omniscient observer knows: every answer that a client got, and when.

An answer was decided at some instant between the question and the answer. So laws are judged by
intervals, and nothing is called a violation that has a lawful reading.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from math import inf

from ringfence.wire import Source

__all__ = ["Answered", "Column", "Ledger"]

_COUNTED = (Source.OWNER, Source.STANDBY, Source.CACHE)
_BY_OWNER = (Source.OWNER, Source.CACHE)
_BY_MEMBER = (Source.OWNER, Source.STANDBY, Source.CACHE)
"""Said by the owner, perhaps some time ago: a denial that stands."""
_SECOND_TRY = 0.05
"""Seconds after which an answer may be that of another member than the first who was asked: when a
link that is silent is given up, whatever waits on it is asked again, however young it is."""
_SLOW = 0.5
"""Answers that took longer are left out where the instant of the decision matters."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One check and what became of it; times in seconds since the load began."""

    asked: float
    told: float
    datacenter: str
    key: str
    cost: int
    allowed: bool
    source: Source
    retry_after: float | None = None
    """When denied: seconds after which it would pass; None for never, or when not told."""
    gone: float = inf
    """When what was charged had surely been given back."""
    is_charge: bool = False
    """Whether it counts whatever is left."""

    @property
    def is_counted(self) -> bool:
        """Whether some member has decided it, and counts what it admitted."""
        return self.source in _COUNTED


class Column:
    """The answers for one key."""

    def __init__(self, answers: Sequence[Answered], passing: Sequence[Answered] = ()) -> None:
        """`passing` are charges that were given back."""
        self.answers = answers
        self.passing = passing
        self.admitted = [a for a in answers if a.allowed and a.is_counted]
        """Those that some member counts."""
        self.has_charges = any(a.is_charge for a in answers)
        self._asked = sorted((a.asked, a.cost) for a in self.admitted)
        self._told = sorted((a.told, a.cost) for a in self.admitted)
        self._asked_sums = [0, *accumulate(cost for _, cost in self._asked)]
        self._told_sums = [0, *accumulate(cost for _, cost in self._told)]

    @property
    def units(self) -> int:
        """All units admitted and counted."""
        return self._asked_sums[-1]

    @property
    def unanswered(self) -> int:
        """Units of checks that the first who was asked did not answer, but may have counted."""
        return sum(
            a.cost
            for a in self.answers
            if a.source not in _BY_OWNER or a.told - a.asked > _SECOND_TRY
        )

    @property
    def by_policy(self) -> int:
        """Units of checks that no member answered in time, which one may count later."""
        return sum(a.cost for a in self.answers if a.source not in _BY_MEMBER)

    @property
    def datacenters(self) -> set[str]:
        """Where it was asked for."""
        return {a.datacenter for a in self.answers}

    def by_datacenter(self) -> "list[Column]":
        """The answers of each data center apart."""
        names = sorted(self.datacenters)
        return [
            Column(
                [a for a in self.answers if a.datacenter == name],
                [a for a in self.passing if a.datacenter == name],
            )
            for name in names
        ]

    def most_in(self, seconds: float) -> tuple[int, float]:
        """The most units that were certainly admitted within so many seconds, and from when on.

        Without charges, which no limit holds back.
        """
        checks = [a for a in self.admitted if not a.is_charge]
        if not self.answers or self.answers[-1].told - self.answers[0].asked < seconds:
            units = sum(a.cost for a in checks)
            return units, self.answers[0].asked if self.answers else 0.0
        quick = sorted((a.asked, a.cost) for a in checks if a.told - a.asked <= _SLOW)
        sums = [0, *accumulate(cost for _, cost in quick)]
        most, when = 0, 0.0
        for start, (begin, _) in enumerate(quick):
            stop = bisect_right(quick, (begin + seconds - _SLOW, 0))
            if sums[stop] - sums[start] > most:
                most, when = sums[stop] - sums[start], begin
        return most, when

    def at_most_counted(self, answer: Answered, seconds: float) -> int:
        """Units that may have been counted when `answer` was decided, of that many seconds."""
        asked = bisect_right(self._asked, (answer.told, 1 << 60))
        told = bisect_left(self._told, (answer.asked - seconds, 0))
        return self._asked_sums[asked] - self._told_sums[told] + self.passing_at(answer)

    def passing_at(self, answer: Answered) -> int:
        """Units that may have been charged when `answer` was decided, and were given back."""
        return sum(
            a.cost for a in self.passing if a.asked <= answer.told and a.gone >= answer.asked
        )

    def asked_by(self, instant: float) -> int:
        """Units admitted that were asked for until then."""
        return self._asked_sums[bisect_right(self._asked, (instant, 1 << 60))]

    def told_before(self, instant: float) -> int:
        """Units admitted whose answer came before then."""
        return self._told_sums[bisect_left(self._told, (instant, 0))]

    def told_within(self, begin: float, end: float) -> int:
        """Units admitted whose answer came between two instants."""
        first = bisect_left(self._told, (begin, 0))
        return self._told_sums[bisect_right(self._told, (end, 1 << 60))] - self._told_sums[first]


class Ledger:
    """All answers of a run, by rule and key."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, Answered]] = []
        """Rule and answer, in the order in which they were told."""
        self.open: dict[int, tuple[str, float]] = {}
        """Checks without an answer, by number: what they asked for, and when."""
        self._numbers = count()
        self._by_key: dict[tuple[str, str], list[Answered]] = {}
        self._passing: dict[tuple[str, str], list[Answered]] = {}

    def ask(self, rule: str, key: str, asked: float) -> int:
        """Take note of a question; returns its number, for `answered`."""
        number = next(self._numbers)
        self.open[number] = f"{rule}={key}", asked
        return number

    def answered(self, number: int) -> None:
        """A question has been answered."""
        del self.open[number]

    def add(self, rule: str, answer: Answered) -> None:
        """Take note of an answer."""
        self.answers.append((rule, answer))
        self._by_key.setdefault((rule, answer.key), []).append(answer)

    def add_passing(self, rule: str, answer: Answered) -> None:
        """Take note of a charge that was given back."""
        self._passing.setdefault((rule, answer.key), []).append(answer)

    def keys(self, rule: str) -> list[str]:
        """The keys that were asked for under a rule, the busiest first."""
        counts = Counter({key: len(found) for (each, key), found in self._by_key.items()
                          if each == rule})  # fmt: skip
        return [key for key, _ in sorted(counts.items(), key=lambda each: (-each[1], each[0]))]

    def column(self, rule: str, key: str) -> Column:
        """The answers for one key."""
        place = rule, key
        return Column(self._by_key.get(place, []), self._passing.get(place, []))
