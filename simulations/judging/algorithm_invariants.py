"""Exact invariants of each algorithm, for runs with one owner and no faults.

This module repeats the limiter's arithmetic in a simple, independent form. A check was decided at
an unknown instant between request and answer. Each invariant therefore has two sides: the units
that were certainly used at an admission, and the most units that were possibly used at a denial.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor

from ringfence.limiter import Algorithm, Limit
from simulations.judging.ledger import Answered, Column
from simulations.runtimes.virtual_time import EPOCH_NS

__all__ = ["Breach", "breaches"]

_CLOCK_SKEW_S = 0.05
"""Largest difference between the clocks of owners, in seconds."""


@dataclass(frozen=True, slots=True)
class Breach:
    """One wrong decision, which an invariant has detected."""

    property: str
    at: float
    text: str


def breaches(column: Column, limit: Limit, began: float) -> Iterator[Breach]:
    """Find wrong decisions on one key: checks that should have been denied, and checks that should
    have been admitted.

    Times in `column` are relative to `began`, which is in seconds of virtual time.
    """
    if limit.calendar is not None or limit.queue or limit.slots != 1 or limit.first_hit:
        return
    match limit.algorithm:
        case Algorithm.FIXED_WINDOW | Algorithm.SLIDING_WINDOW:
            yield from _WindowChecks(column, limit, began).breaches()
        case Algorithm.TOKEN_BUCKET | Algorithm.LEAKY_BUCKET:
            yield from _bucket_breaches(column, limit)
        case Algorithm.SLIDING_WINDOW_LOG:
            yield from _log_breaches(column, limit)
        case Algorithm.CONCURRENCY:
            pass


class _WindowChecks:
    """Check of decisions under fixed and sliding windows, which are aligned to the Unix epoch."""

    def __init__(self, column: Column, limit: Limit, began: float) -> None:
        self._column = column
        self._limit = limit
        self._period = limit.period_ns / 1e9
        self._shift = (EPOCH_NS % limit.period_ns) / 1e9 + began
        self._is_sliding = limit.algorithm is Algorithm.SLIDING_WINDOW

    def breaches(self) -> Iterator[Breach]:
        for answer in self._column.answers:
            number = self._number(answer.asked_at - _CLOCK_SKEW_S)
            if not answer.is_counted or number != self._number(answer.answered_at + _CLOCK_SKEW_S):
                continue  # The window of the decision is unknown.
            if answer.is_charge:
                continue  # A limit does not restrict charges.
            if answer.allowed:
                used = self._certainly_used(answer, number)
                if used + answer.cost > self._limit.ceiling:
                    text = f"{answer.key}: admitted although {used} of {self._limit.ceiling} were"
                    yield Breach("over_admission", answer.answered_at, f"{text} used in its window")
            else:
                used = self._possibly_used(answer, number)
                if used + answer.cost <= self._limit.ceiling:
                    text = f"{answer.key}: denied although at most {used} of {self._limit.ceiling}"
                    yield Breach(
                        "wrong_denial", answer.answered_at, f"{text} were used in its window"
                    )

    def _certainly_used(self, answer: Answered, number: int) -> int:
        column, start = self._column, self._start(number)
        used = max(
            0, column.answered_before(answer.asked_at) - column.requested_by(start + _CLOCK_SKEW_S)
        )
        if self._is_sliding:
            before = self._start(number - 1)
            oldest = column.answered_before(start - _CLOCK_SKEW_S) - column.requested_by(
                before + _CLOCK_SKEW_S
            )
            used += floor(max(0, oldest) * self._weight(answer.answered_at + _CLOCK_SKEW_S, start))
        return used

    def _possibly_used(self, answer: Answered, number: int) -> int:
        column, start = self._column, self._start(number)
        used = column.requested_by(answer.answered_at) - column.answered_before(
            start - _CLOCK_SKEW_S
        )
        used += column.refunded_at(answer)
        if self._is_sliding:
            before = self._start(number - 1)
            oldest = column.requested_by(start + _CLOCK_SKEW_S) - column.answered_before(
                before - _CLOCK_SKEW_S
            )
            used += floor(oldest * self._weight(answer.asked_at - _CLOCK_SKEW_S, start))
        return used

    def _weight(self, instant: float, start: float) -> float:
        """Return the fraction of the previous window that still counts under a sliding window."""
        return min(1.0, max(0.0, 1.0 - (instant - start) / self._period))

    def _number(self, instant: float) -> int:
        return floor((instant + self._shift) / self._period)

    def _start(self, number: int) -> float:
        return number * self._period - self._shift


def _log_breaches(column: Column, limit: Limit) -> Iterator[Breach]:
    """Check each admission under a sliding-window log against the units certainly admitted in the
    period before it."""
    period = limit.period_ns / 1e9
    for answer in column.admitted:
        if answer.is_charge:
            continue
        used = column.answered_before(answer.asked_at) - column.requested_by(
            answer.answered_at - period + _CLOCK_SKEW_S
        )
        if used + answer.cost > limit.ceiling:
            text = f"{answer.key}: admitted although {used} of {limit.ceiling} were used"
            yield Breach("over_admission", answer.answered_at, text)
            return


def _bucket_breaches(column: Column, limit: Limit) -> Iterator[Breach]:
    """Check the decisions of a token or leaky bucket by two replays, at the earliest and latest
    possible times."""
    rate = limit.amount / (limit.period_ns / 1e9)
    longest = max((a.answered_at - a.asked_at for a in column.answers), default=0.0)
    spare = rate * (longest + _CLOCK_SKEW_S)
    level, last, charged = 0.0, float("-inf"), float("-inf")
    for answer in sorted(column.admitted, key=lambda a: a.asked_at):
        level = max(0.0, level - rate * (answer.asked_at - last)) + answer.cost
        last = answer.asked_at
        if answer.is_charge:
            charged = answer.asked_at
        elif answer.asked_at - charged <= longest + _CLOCK_SKEW_S:
            continue  # The check may have been decided before the charge.
        elif level > limit.ceiling + spare + 1e-6:
            text = f"{answer.key}: {level:.1f} in a bucket of {limit.ceiling}"
            yield Breach("over_admission", answer.answered_at, text)
            return
    poured = sorted(column.admitted, key=lambda a: a.answered_at)
    level, last, at = 0.0, float("-inf"), 0
    for answer in sorted(column.answers, key=lambda a: a.answered_at):
        while at < len(poured) and poured[at].answered_at <= answer.answered_at:
            level = max(0.0, level - rate * (poured[at].answered_at - last)) + poured[at].cost
            last, at = poured[at].answered_at, at + 1
        if answer.allowed or not answer.is_counted:
            continue
        under_way = column.requested_by(answer.answered_at) - sum(a.cost for a in poured[:at])
        used = max(0.0, level - rate * (answer.answered_at - last)) + max(0, under_way)
        used += column.refunded_at(answer) + spare
        if used + answer.cost <= limit.ceiling:
            text = f"{answer.key}: denied with at most {used:.1f} in a bucket of {limit.ceiling}"
            yield Breach("wrong_denial", answer.answered_at, text)
            return
