"""Bounds for sliding window logs and for concurrency limits, which count each unit for one span.

A hit of a log counts from its instant for one period. A slot counts from its grant until its
release or expiry. So the position of a unit is the instant at which it ends.
"""

from collections.abc import Sequence

from simulations.oracle.intervals import Bound, Question, Refund, Spend
from simulations.oracle.replay import LONGEST_NS
from simulations.oracle.sweep import Item, Tally, lower_sweep, upper_sweep
from simulations.oracle.terms import Terms
from simulations.oracle.verdicts import bound_of

__all__ = ["log_bounds", "slot_bounds"]

_LOG_SPARE = 1024
"""Entries of a log above its limit from which charges share the instant of an earlier one."""
_Items = tuple[list[Item], list[Item]]


def log_bounds(terms: Terms, spends: Sequence[Spend], questions: Sequence[Question]) -> list[Bound]:
    """Return the bounds of each question under a sliding window log."""
    period = terms.period_ns
    is_crowded = len(spends) >= terms.ceiling + _LOG_SPARE
    earlier = period // _LOG_SPARE if is_crowded else 0
    certain = [(each.counted_from, each.earliest - earlier + period, each.least) for each in spends]
    lower = certain, _possible_refunds(terms, spends, earlier)
    upper = [(each.earliest, each.latest + period, each.most) for each in spends]
    upper_items = upper, _certain_refunds(terms, spends, earlier)
    return _bounds(terms, questions, lower, upper_items, longest_wait=period)


def slot_bounds(
    terms: Terms, spends: Sequence[Spend], questions: Sequence[Question]
) -> list[Bound]:
    """Return the bounds of each question under a concurrency limit.

    A wait is an estimate. It is at most the time until the last slot expires without a release.
    """
    period = terms.period_ns
    last_kept = max((each.kept_until[1] for each in spends if each.kept_until), default=0)
    lower: list[Item] = []
    upper: list[Item] = []
    for each in spends:
        first, last = each.kept_until or (
            each.earliest + period,
            each.latest + period,
        )
        if each.refund is not None and each.refund.most:
            first = min(first, each.refund.earliest)
            if each.refund.least:  # At the instant of the release itself, it may come later.
                last = min(last, each.refund.latest + 1)
        lower.append((each.counted_from, first, each.least))
        upper.append((each.earliest, last, each.most))
    found = _bounds(terms, questions, (lower, []), (upper, []))
    return [
        bound._replace(shortest_wait=1, longest_wait=max(period, last_kept - question.earliest))
        if bound.longest_wait
        else bound
        for bound, question in zip(found, questions, strict=True)
    ]


def _bounds(
    terms: Terms,
    questions: Sequence[Question],
    lower: _Items,
    upper: _Items,
    longest_wait: int = LONGEST_NS,
) -> list[Bound]:
    least, shortest = [0] * len(questions), [1] * len(questions)
    most, longest = [0] * len(questions), [0] * len(questions)
    for at, tally in upper_sweep(questions, *upper):
        question = questions[at]
        room = terms.ceiling - (question.cost or 1)
        most[at] = max(0, tally.above(question.earliest) - question.own)
        if 0 <= room < most[at]:
            wait = _last_pass(tally, question.earliest, room + question.own)
            longest[at] = min(wait, longest_wait)
    for at, tally in lower_sweep(questions, *lower):
        question = questions[at]
        room = terms.ceiling - (question.cost or 1)
        least[at] = max(0, tally.above(question.latest))
        if longest[at]:
            refunded = tally.returned.above(question.latest)
            shortest[at] = max(1, _wait(tally, question.latest, room + refunded))
    return [
        bound_of(terms, question, least[at], most[at], shortest[at], longest[at])
        for at, question in enumerate(questions)
    ]


def _wait(tally: Tally, at: int, room: int) -> int:
    """Return the time from `at` until no more than `room` units are left, without any refund."""
    lowest = tally.spent.lowest_with(room)
    return 0 if lowest is None else max(0, lowest - at)


def _last_pass(tally: Tally, at: int, room: int) -> int:
    """Return a time after which certainly no more than `room` units are left."""
    wait = _wait(tally, at, room + tally.returned.above(at))
    return wait if tally.above(at + wait) <= room else _wait(tally, at, room)


def _possible_refunds(terms: Terms, spends: Sequence[Spend], earlier: int) -> list[Item]:
    """Return the refunds that may remove units, until the instant at which these units end.

    When each refund looks for its own units, oldest first, they take no more than their own units
    in total. Otherwise a refund may remove any unit before it.
    """
    pairs = [(each, each.refund) for each in spends if each.refund is not None]
    are_own = all(
        refund.age_least and _looks_for_own(spend, refund, earlier) and refund.most <= spend.least
        for spend, refund in pairs
    )
    return [
        (
            refund.earliest,
            (spend.latest if are_own else refund.latest) + terms.period_ns,
            refund.most,
        )
        for spend, refund in pairs
    ]


def _certain_refunds(terms: Terms, spends: Sequence[Spend], earlier: int) -> list[Item]:
    """Return the refunds that certainly remove units which count as long as stated here.

    A refund without an age removes the newest units, and one with an age the oldest ones that are
    young enough. The one kind can take what the other kind looks for, so only one kind is used. A
    refund by a record of the charges finds units in any case.
    """
    period = terms.period_ns
    pairs = [(each, each.refund) for each in spends if each.refund is not None]
    has_newest = any(refund.age_least == 0 for _, refund in pairs)
    found: list[Item] = []
    for spend, refund in pairs:
        units = min(refund.least, spend.most)
        if has_newest and refund.age_most == 0:
            found.append((refund.latest, spend.earliest - earlier + period, units))
        elif (
            not has_newest
            and refund.age_most < period
            and (refund.is_recorded or _looks_for_own(spend, refund, earlier))
        ):
            oldest = refund.earliest - refund.age_most
            found.append((refund.latest, oldest + period, units))
    return found


def _looks_for_own(spend: Spend, refund: Refund, earlier: int) -> bool:
    """Return whether the spent units are certainly young enough for their refund."""
    return refund.latest - refund.age_least <= spend.earliest - earlier
