"""Exact laws for the decisions on one counter: wrong denials, over-admission, retry times.

A denial is wrong if the most units that the counter may contain leave room for it. An admission is
wrong if the fewest units leave no room. A retry time is wrong if no units between both numbers give
it. So the laws hold for each decision, also in runs with faults.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from ringfence.wire import Source
from simulations.judging.counted_units import CounterView, Row
from simulations.judging.ledger import Answered
from simulations.oracle import Bound, Terms, Verdict, bounds
from simulations.reporting.outcome import Violation

__all__ = ["Judgement", "Reading", "judge_counter"]

_SAME_S = 0.05
"""Largest difference between the ends of a denial and of its repetitions by a cache: the time that
the first answer travels."""
_RETRY_ERROR_NS = 2_000_000
"""Largest error of a retry time: it passes the wire in milliseconds, rounded up."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Result of the exact laws for one decision."""

    answer: Answered
    reasons: dict[str, frozenset[str]]
    """By law: the reasons why the decision was excused; empty if it was judged exactly."""
    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """Units that the final reading of a counter must show."""

    least: int
    most: int


def judge_counter(
    text: str,
    counter: CounterView,
    answers: Sequence[Answered],
    refunded: Sequence[Answered],
    read: tuple[float, float],
) -> tuple[list[Judgement], Reading]:
    """Judge the decisions of one data center on one counter; `text` names the counter.

    `answers` are those of all data centers that share the counter. `read` is the time span of the
    final reading.
    """
    terms = Terms.of(counter.limit)
    rows = [counter.row(answer) for answer in answers]
    passing = [counter.refunded(answer) for answer in refunded]
    spends = [spend for row in rows for spend in counter.spends(row)] + passing
    spends += counter.not_drained(read[1])
    asked = [row for row in rows if counter.is_here(row.answer)]
    questions = [counter.question(row.answer) for row in asked]
    *found, last = bounds(terms, spends, [*questions, counter.reading(*read)])
    plain = every = found
    uncertain = frozenset[str]().union(*(row.reasons for row in rows))
    if uncertain:
        unskewed = [counter.question(row.answer, is_exact=True) for row in asked]
        plain = bounds(terms, [*map(counter.plain, rows), *passing], unskewed)
        every = bounds(terms, [counter.known_at_once(row) for row in rows], questions)
    ends = sorted(
        a.answered_at + a.retry_after
        for a in answers
        if not a.allowed and a.retry_after is not None and a.source is not Source.CACHE
    )
    judgements = [
        _Decision(counter, row, bound, exact, total, uncertain, ends).judged(text)
        for row, bound, exact, total in zip(asked, found, plain, every, strict=True)
    ]
    rounding = counter.rounding
    return judgements, Reading(max(0, last.least - rounding), last.most + rounding)


@dataclass(frozen=True, slots=True)
class _Decision:
    """One decision with the bounds of the units in use."""

    counter: CounterView
    row: Row
    bound: Bound
    exact: Bound
    """Bounds of a counter without uncertain units."""
    every: Bound
    """Bounds by the units that all members of a data center together certainly counted."""
    uncertain: frozenset[str]
    """Reasons of all uncertain units of the counter."""
    ends: Sequence[float]
    """Instants at which denials by members end, in order."""

    def judged(self, text: str) -> Judgement:
        answer = self.row.answer
        law = "over_admission" if answer.allowed else "wrong_denial"
        reasons, wrong = self._verdict()
        by_law = {law: reasons}
        found = [(law, wrong)] if wrong else []
        if not answer.allowed and not wrong and not self.counter.is_shadow:
            by_law["retry_after"], wrong = self._retry()
            found += [("retry_after", wrong)] if wrong else []
        at = answer.answered_at
        return Judgement(
            answer, by_law, tuple(Violation(name, at, f"{text}: {what}") for name, what in found)
        )

    def _verdict(self) -> tuple[frozenset[str], str]:
        """Return the reasons of an excuse, and what is wrong with an answer; both may be empty."""
        answer, bound, row = self.row.answer, self.bound, self.row
        ceiling, excuses = self.counter.limit.ceiling, self.counter.excuses
        place = self.counter.place_of(answer)
        lowered = excuses.lowered(self.counter.limit, place, answer, is_split=row.is_split)
        extra = 0
        if row.is_split:  # A standby may lack the counts of other data centers.
            sides = excuses.sides(place, answer, row.excuses) + self.counter.others
            extra = ceiling * sides
        wanted = answer.cost or 1
        if bound.most + wanted <= lowered:
            return (
                frozenset(),
                "" if answer.allowed else f"denied with {bound.most} of {lowered} used",
            )
        if bound.verdict is Verdict.MUST_ALLOW:  # Only a denial needs the lower limits.
            return frozenset() if answer.allowed else frozenset({"limits"}), ""
        if extra:
            total = self.every.least
            is_wrong = answer.allowed and total + wanted > ceiling + extra
            what = f"admitted with {total} of {ceiling} used, and {extra} more may pass"
            return row.reasons, what if is_wrong else ""
        if bound.verdict is Verdict.MUST_DENY:
            is_wrong = answer.allowed and bound.least - self.counter.rounding + wanted > ceiling
            return frozenset(), f"admitted with {bound.least} of {ceiling} used" if is_wrong else ""
        return self.uncertain if self.exact.verdict is not Verdict.EITHER else frozenset(), ""

    def _retry(self) -> tuple[frozenset[str], str]:  # noqa: PLR0911 - one return per excuse
        """Return the reasons of an excuse, and what is wrong with a retry time."""
        answer, bound = self.row.answer, self.bound
        excuses, place = self.counter.excuses, self.counter.place_of(answer)
        lowered = excuses.lowered(self.counter.limit, place, answer, is_split=self.row.is_split)
        is_slower = excuses.lowered_rate(place, answer.asked_at, answer.answered_at)
        if lowered < self.counter.limit.ceiling or is_slower:
            return frozenset({"limits"}), ""
        if self.row.is_split:
            return self.row.reasons, ""
        if answer.retry_after is None:
            return frozenset(), "" if bound.is_permanent else "denied without a retry time"
        if answer.source is Source.CACHE:
            is_known = _is_near(answer.answered_at + answer.retry_after, self.ends)
            return frozenset(), "" if is_known else "a cached denial ends with no other denial"
        wait = round(answer.retry_after * 1e9)
        limit = self.counter.limit
        error = _RETRY_ERROR_NS + round(self.counter.clock_error_s(answer) * 1e9)
        error += self.counter.rounding * limit.period_ns // max(1, limit.amount)
        if bound.shortest_wait - error <= wait <= bound.longest_wait + error and wait > 0:
            return frozenset(), ""
        if self.exact.shortest_wait - error <= wait <= self.exact.longest_wait + error:
            return frozenset(), ""
        span = f"{bound.shortest_wait / 1e9:g} to {bound.longest_wait / 1e9:g} s"
        return frozenset(), f"denied with a retry time of {answer.retry_after:g} s, not {span}"


def _is_near(instant: float, others: Sequence[float]) -> bool:
    """Return whether one of the ordered `others` is near an instant."""
    at = bisect_left(others, instant - _SAME_S)
    return at < len(others) and others[at] <= instant + _SAME_S
