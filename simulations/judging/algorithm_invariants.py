"""What each algorithm lets through to the unit, when one owner decides and nothing goes wrong.

The arithmetic is written down here once more, plainly and apart from the limiter's. An answer was
decided at some instant between question and answer, so every law has two sides: what was surely
used when something was admitted, and what can have been used at most when something was denied.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor

from ringfence.limiter import Algorithm, Limit
from simulations.judging.ledger import Answered, Column
from simulations.runtimes.virtual_time import EPOCH_NS

__all__ = ["Breach", "breaches"]

_EDGE = 0.05
"""Seconds by which the clocks of owners may differ."""


@dataclass(frozen=True, slots=True)
class Breach:
    """One answer that was wrong."""

    property: str
    at: float
    text: str


def breaches(column: Column, limit: Limit, began: float) -> Iterator[Breach]:
    """Find what should not have been admitted, and what should not have been denied.

    `began` is the instant that the times of `column` count from, in seconds of virtual time.
    """
    if limit.calendar is not None or limit.queue or limit.slots != 1:
        return
    match limit.algorithm:
        case Algorithm.FIXED_WINDOW | Algorithm.SLIDING_WINDOW:
            yield from _Windows(column, limit, began).breaches()
        case Algorithm.TOKEN_BUCKET | Algorithm.LEAKY_BUCKET:
            yield from _bucket(column, limit)
        case Algorithm.SLIDING_WINDOW_LOG:
            yield from _log(column, limit)
        case Algorithm.CONCURRENCY:
            pass


class _Windows:
    """Windows that are aligned to 1970."""

    def __init__(self, column: Column, limit: Limit, began: float) -> None:
        self._column = column
        self._limit = limit
        self._period = limit.period_ns / 1e9
        self._shift = (EPOCH_NS % limit.period_ns) / 1e9 + began
        self._is_sliding = limit.algorithm is Algorithm.SLIDING_WINDOW

    def breaches(self) -> Iterator[Breach]:
        for answer in self._column.answers:
            number = self._number(answer.asked - _EDGE)
            if not answer.is_counted or number != self._number(answer.told + _EDGE):
                continue  # Nobody can say in which window it was decided.
            if answer.is_charge:
                continue  # No limit holds it back.
            if answer.allowed:
                used = self._surely_used(answer, number)
                if used + answer.cost > self._limit.ceiling:
                    text = f"{answer.key}: admitted although {used} of {self._limit.ceiling} were"
                    yield Breach("over_admission", answer.told, f"{text} used in its window")
            else:
                used = self._used_at_most(answer, number)
                if used + answer.cost <= self._limit.ceiling:
                    text = f"{answer.key}: denied although at most {used} of {self._limit.ceiling}"
                    yield Breach("wrong_denial", answer.told, f"{text} were used in its window")

    def _surely_used(self, answer: Answered, number: int) -> int:
        column, start = self._column, self._start(number)
        used = max(0, column.told_before(answer.asked) - column.asked_by(start + _EDGE))
        if self._is_sliding:
            before = self._start(number - 1)
            oldest = column.told_before(start - _EDGE) - column.asked_by(before + _EDGE)
            used += floor(max(0, oldest) * self._weight(answer.told + _EDGE, start))
        return used

    def _used_at_most(self, answer: Answered, number: int) -> int:
        column, start = self._column, self._start(number)
        used = column.asked_by(answer.told) - column.told_before(start - _EDGE)
        used += column.passing_at(answer)
        if self._is_sliding:
            before = self._start(number - 1)
            oldest = column.asked_by(start + _EDGE) - column.told_before(before - _EDGE)
            used += floor(oldest * self._weight(answer.asked - _EDGE, start))
        return used

    def _weight(self, instant: float, start: float) -> float:
        """The part of the window before that still counts."""
        return min(1.0, max(0.0, 1.0 - (instant - start) / self._period))

    def _number(self, instant: float) -> int:
        return floor((instant + self._shift) / self._period)

    def _start(self, number: int) -> float:
        return number * self._period - self._shift


def _log(column: Column, limit: Limit) -> Iterator[Breach]:
    """Count what was surely admitted within the period before each admitted check."""
    period = limit.period_ns / 1e9
    for answer in column.admitted:
        if answer.is_charge:
            continue
        used = column.told_before(answer.asked) - column.asked_by(answer.told - period + _EDGE)
        if used + answer.cost > limit.ceiling:
            text = f"{answer.key}: admitted although {used} of {limit.ceiling} were used"
            yield Breach("over_admission", answer.told, text)
            return


def _bucket(column: Column, limit: Limit) -> Iterator[Breach]:
    """Pour what was admitted into a bucket of our own: as early as can be, and as late."""
    rate = limit.amount / (limit.period_ns / 1e9)
    longest = max((a.told - a.asked for a in column.answers), default=0.0)
    spare = rate * (longest + _EDGE)
    level, last, charged = 0.0, float("-inf"), float("-inf")
    for answer in sorted(column.admitted, key=lambda a: a.asked):
        level = max(0.0, level - rate * (answer.asked - last)) + answer.cost
        last = answer.asked
        if answer.is_charge:
            charged = answer.asked
        elif answer.asked - charged <= longest + _EDGE:
            continue  # Perhaps it was decided before the charge.
        elif level > limit.ceiling + spare + 1e-6:
            text = f"{answer.key}: {level:.1f} in a bucket of {limit.ceiling}"
            yield Breach("over_admission", answer.told, text)
            return
    poured = sorted(column.admitted, key=lambda a: a.told)
    level, last, at = 0.0, float("-inf"), 0
    for answer in sorted(column.answers, key=lambda a: a.told):
        while at < len(poured) and poured[at].told <= answer.told:
            level = max(0.0, level - rate * (poured[at].told - last)) + poured[at].cost
            last, at = poured[at].told, at + 1
        if answer.allowed or not answer.is_counted:
            continue
        under_way = column.asked_by(answer.told) - sum(a.cost for a in poured[:at])
        used = max(0.0, level - rate * (answer.told - last)) + max(0, under_way)
        used += column.passing_at(answer) + spare
        if used + answer.cost <= limit.ceiling:
            text = f"{answer.key}: denied with at most {used:.1f} in a bucket of {limit.ceiling}"
            yield Breach("wrong_denial", answer.told, text)
            return
