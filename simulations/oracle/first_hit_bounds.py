"""Bounds for windows that begin with the first hit of a key.

Each window follows the one before, so both its begin and its members are known as intervals. They
are computed in order: the next window begins with the first hit after the end of the last one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf

from simulations.oracle.intervals import Bound, Question, Spend
from simulations.oracle.terms import Terms
from simulations.oracle.verdicts import bound_of

__all__ = ["first_hit_bounds"]


def first_hit_bounds(
    terms: Terms, spends: Sequence[Spend], questions: Sequence[Question]
) -> list[Bound]:
    """Return the bounds of each question under windows that begin with the first hit.

    A refund can empty a window, so that the next hit begins another one. For a key with refunds,
    only the most units are bounded: those of the last period.
    """
    if any(each.refund is not None for each in spends):
        windows: list[_Window] = []
        unknown_from: float = -inf
    else:
        windows, unknown_from = _windows(terms, spends)
    recent = _Recent(terms.period_ns, spends)
    return [_bound(terms, each, windows, unknown_from, recent) for each in questions]


@dataclass(slots=True)
class _Window:
    """Window whose begin lies between two instants, with its certain and possible members."""

    first: int
    last: int
    certain: list[tuple[int, int]] = field(default_factory=list)
    """(instant from which it counts, units)"""
    possible: list[tuple[int, int]] = field(default_factory=list)
    """(earliest instant, units)"""
    certain_sums: list[int] = field(default_factory=list)
    possible_sums: list[int] = field(default_factory=list)

    def sum_up(self) -> None:
        """Compute the sums of the members in order."""
        self.certain.sort()
        self.possible.sort()
        self.certain_sums = [0, *accumulate(units for _, units in self.certain)]
        self.possible_sums = [0, *accumulate(units for _, units in self.possible)]

    def least(self, before: int) -> int:
        """Return the units that certainly count before an instant."""
        return self.certain_sums[bisect_left(self.certain, (before, 0))]

    def most(self, until: int) -> int:
        """Return the units that may count at an instant."""
        return self.possible_sums[bisect_right(self.possible, (until, inf))]


class _Recent:
    """Most units that were possibly spent in the last period."""

    def __init__(self, period: int, spends: Sequence[Spend]) -> None:
        self._period = period
        self._begins = sorted((each.earliest, each.most) for each in spends)
        self._ends = sorted((each.latest, each.most) for each in spends)
        self._begun = [0, *accumulate(units for _, units in self._begins)]
        self._ended = [0, *accumulate(units for _, units in self._ends)]

    def most(self, question: Question) -> int:
        """Return the units that may lie in the last period at some instant of the question."""
        begun = self._begun[bisect_right(self._begins, (question.latest, inf))]
        oldest = question.earliest - self._period
        return begun - self._ended[bisect_right(self._ends, (oldest, inf))]


def _windows(terms: Terms, spends: Sequence[Spend]) -> tuple[list[_Window], float]:
    """Return the windows in order, and the instant from which nothing is known about them."""
    period = terms.period_ns
    by_latest = sorted((each for each in spends if each.most), key=lambda each: each.latest)
    by_earliest = sorted(by_latest, key=lambda each: each.earliest)
    certain_from = [each.earliest for each in by_earliest]
    soonest = _least_from_the_end([each.latest if each.least else inf for each in by_earliest])
    latest_ends = [each.latest for each in by_latest]
    begins = _least_from_the_end([each.earliest for each in by_latest])
    windows: list[_Window] = []
    ended_first, ended_last = -(1 << 70), -(1 << 70)
    while (at := bisect_left(latest_ends, ended_first)) < len(by_latest):
        first = max(int(begins[at]), ended_first)
        following = bisect_left(certain_from, ended_last)
        last = soonest[following] if following < len(soonest) else inf
        if last == inf or len(windows) > 2 * len(spends):
            return windows, first
        window = _Window(first, int(last))
        for index in range(at, len(by_latest)):
            each = by_latest[index]
            if begins[index] >= window.last + period:
                break
            if each.earliest < window.last + period:
                window.possible.append((each.earliest, each.most))
            if each.earliest >= ended_last and each.latest < first + period:
                window.certain.append((each.counted_from, each.least))
        window.sum_up()
        windows.append(window)
        ended_first, ended_last = first + period, window.last + period
    return windows, inf


def _least_from_the_end(numbers: Sequence[float]) -> list[float]:
    """Return, at each index, the least of this and all following numbers."""
    return list(accumulate(reversed(numbers), min))[::-1]


def _bound(
    terms: Terms,
    question: Question,
    windows: Sequence[_Window],
    unknown_from: float,
    recent: _Recent,
) -> Bound:
    period = terms.period_ns
    begin = bisect_right(windows, question.earliest - period, key=lambda each: each.last)
    end = bisect_right(windows, question.latest, key=lambda each: each.first)
    active = windows[begin:end]
    least = 0
    shortest, longest = 1, 0
    most = max((each.most(question.latest) for each in active), default=0)
    if question.latest >= unknown_from:
        most, longest = recent.most(question), period
    elif active:
        only = active[0]
        if (
            len(active) == 1
            and only.last <= question.earliest
            and question.latest < only.first + period
        ):
            least = only.least(question.earliest)
            shortest = only.first + period - question.latest
        longest = min(period, active[-1].last + period - question.earliest)
    return bound_of(terms, question, least, max(0, most - question.own), shortest, longest)
