"""Exact laws for the decisions on one counter: wrong denials, over-admission, retry times, delays.

A denial is wrong if the most units that the counter may contain leave room for it. An admission is
wrong if the fewest units leave no room. A retry time is wrong if no units between both numbers give
it, and so is a delay in queue mode. So the laws hold for each decision, also in runs with faults.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, pairwise
from math import ceil, inf
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from ringfence.limiter import Algorithm, Limit
from ringfence.wire import Source
from simulations.judging.counted_units import RETRY_ERROR_NS, CounterView, Row, counted_twice
from simulations.judging.excuses import Excuse
from simulations.judging.ledger import Answered
from simulations.judging.refunded_units import all_refunded_units
from simulations.oracle import (
    Bound,
    Drain,
    Question,
    Spend,
    Terms,
    Verdict,
    bounds,
    narrowed,
)
from simulations.reporting.outcome import Violation

__all__ = ["Judgement", "Reading", "Result", "judge_counter", "total_bounds", "under_one"]

_SAME_S = 0.05
"""Tolerance for the end of a cached denial, which counts from the time at which the first check was
sent. Its owner decided it later, but before the answer."""


class Judgement(Struct, frozen=True):
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
    passing = all_refunded_units(counter, answers, refunded)
    spends = [spend for row in rows for spend in counter.spends(row)] + passing
    spends += _rounded_by_merges(counter, rows)
    asked = [row for row in rows if counter.is_here(row.answer)]
    drains = counter.drains(asked, read[1])
    uncertain = frozenset[str]().union(*(row.reasons for row in rows))
    plain = [*map(counter.plain, rows), *passing] if uncertain else spends
    questions = [counter.question(row.answer) for row in asked]
    with_parts = _drains_of_parts(counter, rows, drains)
    twice = [spend for row in rows for spend in counted_twice(counter, row)]
    gaps = [(row, found) for row in rows if (found := _gaps_of(counter, row.answer))]
    options = _options(counter, asked, questions, spends, plain, twice, gaps, with_parts)
    [last] = bounds(terms, spends, [counter.reading(*read)], with_parts)
    every: Sequence[Bound | None] = [None] * len(asked)
    if any(counter.sides(row) for row in asked):
        certain = [counter.known_at_once(row) for row in rows]
        every = total_bounds(counter, certain, asked, questions, drains)
    ends = sorted(
        (a.asked_at + a.retry_after, a.answered_at + a.retry_after)
        for a in answers
        if not a.allowed and a.retry_after is not None and a.source is not Source.CACHE
    )
    judgements = [
        _Decision(counter, row, under, total, uncertain, ends).judged(text)
        for row, under, total in zip(asked, options, every, strict=True)
    ]
    rounding = counter.rounding
    return judgements, Reading(max(0, last.least - rounding), last.most + rounding)


def _rounded_by_merges(counter: CounterView, rows: Sequence[Row]) -> list[Spend]:
    """Return what merges may have added to a bucket: one unit for each fault that split it.

    A merge of two buckets adds the level of one of them, rounded up to a whole unit. A member with
    a wrong clock transfers its shards before another one decides.
    """
    if not counter.limit.is_bucket:
        return []
    split: list[Excuse] = []
    for row in rows:
        found = [each for each in row.excuses if each.is_splitting and each.reason != "clock"]
        split += [each for each in found if row.is_split and each not in split]
    return [counter.spend(each.begin, each.end, 0, 1, each.end) for each in split]


def total_bounds(
    counter: CounterView,
    spends: Sequence[Spend],
    asked: Sequence[Row],
    questions: Sequence[Question],
    drains: Sequence[Drain],
) -> list[Bound]:
    """Return the bounds of the units that all members of a data center together counted.

    Each of the members that may decide has its own bucket, and all of these drain at once.
    """
    terms, sides = Terms.of(counter.limit), [counter.sides(row) for row in asked]
    if not terms.is_bucket or not any(sides):
        return bounds(terms, spends, questions, drains)
    found: dict[int, list[Bound]] = {}
    for more in sorted(set(sides)):
        together = terms._replace(amount=terms.rate * (more + 1), burst=terms.hard)
        faster = [each._replace(most=each.most * (more + 1)) for each in drains]
        found[more] = bounds(together, spends, questions, faster)
    return [found[more][at] for at, more in enumerate(sides)]


def _drains_of_parts(
    counter: CounterView, rows: Sequence[Row], drains: Sequence[Drain]
) -> list[Drain]:
    """Return the rates of a bucket of which several members may have had parts.

    These are `drains` and faster rates. Each part drains at the rate of the limit. The parts exist
    from the first check that another member than the owner may have decided. They end when a merge
    adds them.
    """
    spans = [
        (spend.earliest, spend.latest, 1 + max(1, counter.sides(row)))
        for row in rows
        if counter.limit.is_bucket and row.is_split
        for spend in counter.spends(row)
    ]
    if not spans:
        return [*drains]
    rate = Terms.of(counter.limit).rate
    usual = Drain(0, 0, rate, rate)
    found: list[Drain] = []
    instants = {at for each in drains for at in (each.begin, each.end)}
    for begin, end in pairwise(sorted(instants.union(*(span[:2] for span in spans)))):
        [base] = [each for each in drains if each.begin <= begin < each.end] or [usual]
        parts = [more for first, last, more in spans if first <= begin < last]
        found.append(Drain(begin, end, base.least, base.most * max(parts, default=1)))
    return found


def _options(
    counter: CounterView,
    asked: Sequence[Row],
    questions: Sequence[Question],
    spends: Sequence[Spend],
    plain: Sequence[Spend],
    twice: Sequence[Spend],
    gaps: "_Gaps",
    drains: Sequence[Drain],
) -> list[list["_Option"]]:
    """Return the bounds of each decision under each limit by which it may have been made.

    `plain` are the spent units as an exact counter would count them. Those of `twice` may also be
    counted at decisions during which several members may decide. The units of the rows in `gaps`
    may be missing in some intervals.
    """
    limits = [counter.limits_at(row) for row in asked]
    options: list[list[_Option]] = [[] for _ in asked]
    for limit in dict.fromkeys(chain.from_iterable(limits)):
        concerned = [at for at, each in enumerate(limits) if limit in each]
        terms = Terms.of(limit)
        mine = [questions[at] for at in concerned]
        rows = [asked[at] for at in concerned]
        missing = [frozenset(_missing(counter, row.answer, gaps)) for row in rows]
        found = exact = _bounds(terms, rows, missing, mine, spends, twice, drains)
        if plain is not spends:
            answers = [asked[at].answer for at in concerned]
            unskewed = [counter.question(answer, is_exact=True) for answer in answers]
            exact = bounds(terms, plain, unskewed, drains)
            observed = [
                counter.observed(asked[at], limit, bound)
                for at, bound, lacks in zip(concerned, found, missing, strict=True)
                if len(limits[at]) == 1 and not lacks
            ]
            readings = [each for each in observed if each is not None]
            asked_at = unskewed if terms.is_bucket else mine
            split = {number for number, at in enumerate(concerned) if asked[at].is_split}
            after = narrowed(terms, spends, asked_at, found, readings, drains, split)
        else:
            after = found
        held = _denied_by_held(counter, terms, rows, spends, drains)
        for number, bound, last, each in zip(count(), found, after, exact, strict=False):
            option = _option(rows[number], limit, bound, last, each)
            options[concerned[number]].append(replace(option, counts_held=number in held))
    return options


def _bounds(
    terms: Terms,
    asked: Sequence[Row],
    missing: Sequence[frozenset[Spend]],
    questions: Sequence[Question],
    spends: Sequence[Spend],
    twice: Sequence[Spend],
    drains: Sequence[Drain],
) -> list[Bound]:
    """Return the bounds of decisions at each of which some units may be missing; for `twice` see
    `_options`."""
    alike: dict[tuple[bool, frozenset[Spend]], list[int]] = {}
    for at, (row, lacks) in enumerate(zip(asked, missing, strict=True)):
        alike.setdefault((bool(twice) and row.is_split, lacks), []).append(at)
    found: dict[int, Bound] = {}
    for (is_split, lacks), numbers in alike.items():
        units = [*spends, *twice] if is_split else [*spends]
        if lacks:
            units = [each._replace(least=0) if each in lacks else each for each in units]
        mine = [questions[number] for number in numbers]
        found |= zip(numbers, bounds(terms, units, mine, drains), strict=True)
    return [found[at] for at in range(len(asked))]


def _gaps_of(counter: CounterView, answer: Answered) -> Sequence[tuple[float, float]]:
    """Return the intervals in which the judged data center may lack the units of a check elsewhere.

    A crash has lost the units after their arrival.
    """
    here = counter.places.get(counter.datacenter)
    if here is None or not answer.spends or not counter.is_elsewhere(answer):
        return ()
    return counter.excuses.gaps(here, counter.place_of(answer), answer)


def _missing(counter: CounterView, asked: Answered, gaps: "_Gaps") -> Iterator[Spend]:
    """Yield the units of other data centers that may be missing at a check."""
    for row, spans in gaps:
        if any(begin <= asked.answered_at and asked.asked_at <= end for begin, end in spans):
            yield from counter.spends(row)


def _denied_by_held(
    counter: CounterView,
    terms: Terms,
    asked: Sequence[Row],
    spends: Sequence[Spend],
    drains: Sequence[Drain],
) -> set[int]:
    """Return the indexes of denials that are right if hits in messages held by cuts expire late."""
    if terms.is_bucket:
        return set()  # The level has no ages.
    denied = [at for at, row in enumerate(asked) if not row.answer.allowed]
    held = [(at, counter.held_by_cuts_s(asked[at].answer)) for at in denied]
    late = [(at, held_s) for at, held_s in held if held_s]
    questions = [counter.question(asked[at].answer, held_s=held_s) for at, held_s in late]
    found = bounds(terms, spends, questions, drains) if late else []
    return {
        at
        for (at, _), bound in zip(late, found, strict=True)
        if bound.verdict is not Verdict.MUST_ALLOW
    }


def _option(row: Row, limit: Limit, bound: Bound, after: Bound, exact: Bound) -> "_Option":
    """Return the bounds of a decision: those after a reading, if it leaves only one answer.

    A cached denial may repeat a member that had more units than the present holder.
    """
    is_open = bound.verdict is Verdict.EITHER or row.is_split
    is_by_holder = row.answer.source is Source.OWNER or (
        row.answer.source is Source.CACHE
        and not (row.excuses and after.verdict is Verdict.MUST_ALLOW)
    )
    if is_open and is_by_holder and after is not bound and after.verdict is not Verdict.EITHER:
        return _Option(limit, after, exact, is_followed=True)
    return _Option(limit, bound, exact)


class _Option(Struct, frozen=True):
    """Bounds of the units in use at a decision, under one limit."""

    limit: Limit
    bound: Bound
    exact: Bound
    """Bounds of a counter without uncertain units."""
    is_followed: bool = False
    """Whether the decision follows from an earlier one of the host that holds the shard."""
    counts_held: bool = False
    """Whether a denial is right if hits in messages held by cuts expire late."""


_Gaps: TypeAlias = Sequence[tuple[Row, Sequence[tuple[float, float]]]]
"""Answers in other data centers, with the intervals in which their units may be missing."""
Result: TypeAlias = tuple[frozenset[str], str]
"""Reasons of an excuse, and what is wrong with an answer; both may be empty."""


class _Decision(Struct, frozen=True):
    """One decision with the bounds of the units in use."""

    counter: CounterView
    row: Row
    options: Sequence[_Option]
    """Bounds under each limit by which the check may have been decided."""
    every: Bound | None
    """Bounds by the units that all members of a data center together certainly counted; None if
    one member decided every check."""
    uncertain: frozenset[str]
    """Reasons of all uncertain units of the counter."""
    ends: Sequence[tuple[float, float]]
    """Earliest and latest instants at which denials by members end, in order."""

    def judged(self, text: str) -> Judgement:
        answer = self.row.answer
        law = "over_admission" if answer.allowed else "wrong_denial"
        reasons, wrong = under_one([self._verdict(each) for each in self.options])
        by_law = {law: reasons}
        found = [(law, wrong)] if wrong else []
        if not answer.allowed and not wrong and not self.counter.is_shadow:
            by_law["retry_after"], wrong = under_one([self._retry(each) for each in self.options])
            found += [("retry_after", wrong)] if wrong else []
        if answer.spends and not answer.is_charge:
            by_law["delay"], wrong = under_one([self._delay(each) for each in self.options])
            found += [("delay", wrong)] if wrong else []
        is_by_member = answer.source in (Source.OWNER, Source.STANDBY)
        states_units = answer.remaining is not None and not answer.is_charge
        if is_by_member and states_units and not found:
            by_law["remaining"], wrong = under_one([self._remaining(each) for each in self.options])
            found += [("remaining", wrong)] if wrong else []
        at = answer.answered_at
        return Judgement(
            answer, by_law, tuple(Violation(name, at, f"{text}: {what}") for name, what in found)
        )

    def _verdict(self, option: _Option) -> Result:
        """Judge an answer under one limit."""
        answer, bound, row = self.row.answer, option.bound, self.row
        ceiling = option.limit.ceiling
        sides, usual = self.counter.sides(row), self.counter.limit
        extra = 0 if option.is_followed else usual.ceiling * sides
        wanted = answer.asked_cost or 1
        if bound.verdict is Verdict.MUST_ALLOW:
            if option.counts_held:
                return frozenset({"links"}), ""
            is_wrong = not answer.allowed
            return frozenset(), f"denied with {bound.most} of {ceiling} used" if is_wrong else ""
        if extra:
            assert self.every is not None
            total = self.every.least
            if usual.algorithm is Algorithm.SLIDING_WINDOW:
                total -= sides  # Each member rounds down what remains of its window before.
            is_wrong = answer.allowed and total + wanted > ceiling + extra
            what = f"admitted with {total} of {ceiling} used, and {extra} more may pass"
            return row.reasons, what if is_wrong else ""
        if bound.verdict is Verdict.MUST_DENY:
            is_wrong = answer.allowed and bound.least - self.counter.rounding + wanted > ceiling
            return frozenset(), f"admitted with {bound.least} of {ceiling} used" if is_wrong else ""
        is_certain = option.exact.verdict is Verdict.EITHER
        return frozenset() if is_certain else self.uncertain, ""

    def _retry(self, option: _Option) -> Result:
        """Judge a retry time under one limit."""
        answer, bound = self.row.answer, option.bound
        if self.row.is_split and not option.is_followed:
            return self.row.reasons, ""
        if answer.retry_after is None:
            return frozenset(), "" if bound.is_permanent else "denied without a retry time"
        if answer.source is Source.CACHE:
            wait_s = answer.retry_after
            is_known = _is_near(answer.asked_at + wait_s, answer.answered_at + wait_s, self.ends)
            return frozenset(), "" if is_known else "a cached denial ends with no other denial"
        wait = round(answer.retry_after * 1e9)
        error = self._time_error_ns(option)
        late_s = self.counter.held_by_cuts_s(answer) + self.counter.logged_s(answer)
        late = round(late_s * 1e9)  # It may be too long by that.
        if wait > 0 and any(
            each.shortest_wait - error <= wait <= each.longest_wait + error + late
            for each in (bound, option.exact)
        ):
            return frozenset(), ""
        span = f"{bound.shortest_wait / 1e9:g} to {bound.longest_wait / 1e9:g} s"
        return frozenset(), f"denied with a retry time of {answer.retry_after:g} s, not {span}"

    def _delay(self, option: _Option) -> Result:
        """Judge the delay of an admitted check under one limit."""
        is_queue = option.limit.queue
        if is_queue and self.row.is_split and not option.is_followed:
            return self.row.reasons, ""
        bound = option.bound  # Its `most` includes the units of this check.
        before = bound._replace(most=max(bound.least, bound.most - self.row.answer.asked_cost))
        shortest, longest = before.delays(Terms.of(option.limit))
        error = self._time_error_ns(option) if is_queue else 0
        if shortest - error <= round(self.row.answer.delay * 1e9) <= longest + error:
            return frozenset(), ""
        span = f"{shortest / 1e9:g} to {longest / 1e9:g} s"
        return frozenset(), f"admitted with a delay of {self.row.answer.delay:g} s, not {span}"

    def _remaining(self, option: _Option) -> Result:
        """Judge the units that are left after a decision, and whether it used the soft margin.

        While several members decide, each may lack the units that the others counted.
        """
        spent = self.row.answer.asked_cost if self.row.answer.spends else 0
        wrong = self._wrongly_left(option, option.bound.least + spent)
        if wrong and self.row.is_split and not option.is_followed:
            return self.row.reasons, self._wrongly_left(option, spent)
        return frozenset(), wrong

    def _wrongly_left(self, option: _Option, least: int) -> str:
        """Return what is wrong with the stated units if at least `least` units are in use; empty if
        nothing is."""
        answer, limit = self.row.answer, option.limit
        rounding = self.counter.rounding + self._drained_by_clocks(limit)
        assert answer.remaining is not None
        most = max(least, option.bound.most) + rounding
        fewest, upmost = max(0, limit.ceiling - most), max(0, limit.ceiling - least)
        dropped = self._dropped_by_merge(limit)
        if not fewest <= answer.remaining <= upmost + rounding + dropped:
            return f"{answer.remaining} units are left, not {fewest} to {upmost}"
        hard = Terms.of(limit).hard
        if answer.spends and answer.over_soft not in (least > hard, most > hard):
            what = "without" if least > hard else "in"
            return f"admitted {what} the soft margin with {least} to {most} used"
        return ""

    def _drained_by_clocks(self, limit: Limit) -> int:
        """Return the units of a bucket that may have drained too early or too late.

        The reason is a clock that has followed a stepped clock of another host.
        """
        if not limit.is_bucket:
            return 0
        answer, counter = self.row.answer, self.counter
        clock_s = counter.excuses.clocks.followed_s(counter.place_of(answer), answer.answered_at)
        return ceil(clock_s * 1e9 * Terms.of(limit).rate / limit.period_ns)

    def _dropped_by_merge(self, limit: Limit) -> int:
        """Return the units of a sliding window that a merge may have dropped.

        Each member rounds down what remains of its previous window, so a merge may lose up to one
        unit of the sum.
        """
        if limit.algorithm is not Algorithm.SLIDING_WINDOW:
            return 0
        answer, counter = self.row.answer, self.counter
        begin = answer.asked_at - 2 * limit.period_ns / 1e9
        place = counter.place_of(answer)
        return int(counter.excuses.disturbed_s(place, begin, answer.answered_at) > 0.0)

    def _time_error_ns(self, option: _Option) -> int:
        """Return by how much clocks and rounding may change a retry time or a delay."""
        answer, counter, limit = self.row.answer, self.counter, option.limit
        clock_s = counter.clock_error_s(answer) + counter.excuses.clocks.followed_s(
            counter.place_of(answer), answer.answered_at
        )
        rounding_ns = counter.rounding * limit.period_ns // Terms.of(limit).rate
        return RETRY_ERROR_NS + round(clock_s * 1e9) + rounding_ns


def under_one(results: Sequence[Result]) -> Result:
    """Return the result for a decision under one of several limits.

    The decision is wrong if it is wrong under all of them. If it is wrong under some of them, the
    limit is its excuse.
    """
    wrong = [what for _, what in results if what]
    if len(wrong) == len(results):
        return frozenset(), wrong[0]
    reasons = frozenset[str]().union(*(each for each, _ in results))
    return reasons | {"limits"} if wrong else reasons, ""


def _is_near(begin: float, end: float, others: Sequence[tuple[float, float]]) -> bool:
    """Return whether an interval overlaps one of the intervals `others`, which are in order, or is
    near one of them."""
    before = others[: bisect_left(others, (end + _SAME_S, inf))]
    return any(begin <= last + _SAME_S for _, last in reversed(before))
