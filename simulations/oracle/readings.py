"""Tighter bounds after a reading: a decision whose answer states the units in use.

Faults may leave it uncertain how many units a counter contains. A reading ends this uncertainty for
the units before it. It holds while these units neither expire nor change: within one fixed window,
and in a log or sliding window that still counts all units. The level of a bucket can be continued.
A denial holds until its retry time for every algorithm.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence

from simulations.oracle.bucket_bounds import BucketReadings
from simulations.oracle.intervals import Bound, Drain, Question, Reading, Spend, Verdict
from simulations.oracle.terms import Terms
from simulations.oracle.usage import AlignedWindow
from simulations.oracle.verdicts import bound_of

__all__ = ["narrowed"]


def narrowed(
    terms: Terms,
    spends: Sequence[Spend],
    questions: Sequence[Question],
    found: Sequence[Bound],
    readings: Sequence[Reading],
    drains: Sequence[Drain] = (),
    others: Collection[int] = (),
) -> list[Bound]:
    """Return the bounds of each question, narrowed by the last readings before it.

    `found` are the bounds without readings. Questions are narrowed that these bounds leave open,
    and those with the indexes `others`.
    """
    if not spends or not readings:
        return list(found)
    first = min(each.earliest for each in spends)
    ordered = sorted(readings, key=lambda each: each.latest)
    ends = [each.latest for each in ordered]
    denials = [each for each in ordered if each.denied is not None]
    ends_of_denials = [each.latest for each in denials]
    levels = BucketReadings(terms, spends, drains, ordered) if terms.is_bucket else None
    results = list(found)
    for at, (question, bound) in enumerate(zip(questions, found, strict=True)):
        if bound.verdict is not Verdict.EITHER and at not in others:
            continue
        last = bisect_left(ends, question.earliest)
        reading = ordered[last - 1] if last else None
        if levels is not None:
            results[at] = levels.bound(question) or bound
        elif reading is not None and _keeps(terms, first, reading, question):
            results[at] = _narrowed(terms, spends, question, bound, reading)
        last = bisect_left(ends_of_denials, question.earliest)
        if last and results[at].verdict is Verdict.EITHER:
            results[at] = _denied_again(terms, spends, question, results[at], denials[last - 1])
    return results


def _denied_again(
    terms: Terms, spends: Sequence[Spend], question: Question, bound: Bound, reading: Reading
) -> Bound:
    """Return the bound of a question before the retry time of an earlier denial.

    The denial means that as many units do not pass until then. Only a refund can make room.
    """
    assert reading.denied is not None
    cost, end = reading.denied
    wanted = question.cost or 1
    if (
        wanted < cost
        or question.latest >= min(end, reading.until)
        or any(
            each.returned_after(reading)
            for each in reading.without_own(spends)
            if each.earliest <= question.latest
        )
    ):
        return bound
    least = max(bound.least, terms.ceiling + 1 - wanted)
    return bound_of(
        terms, question, least, max(bound.most, least), bound.shortest_wait, bound.longest_wait
    )


def _narrowed(
    terms: Terms, spends: Sequence[Spend], question: Question, bound: Bound, reading: Reading
) -> Bound:
    least, most = reading.least, reading.most - question.own
    if reading.repeated is not None:
        most += reading.repeated.most
    for spend in reading.without_own(spends):
        if spend.earliest > question.latest:
            continue
        if spend.counted_from >= reading.earliest:
            most += spend.most
        if reading.latest < spend.earliest and spend.counted_from < question.earliest:
            least += spend.least
        least -= spend.returned_after(reading)
    return bound_of(
        terms,
        question,
        max(bound.least, least),
        min(bound.most, max(most, 0)),
        bound.shortest_wait,
        bound.longest_wait,
    )


def _keeps(terms: Terms, first: int, reading: Reading, question: Question) -> bool:
    """Return whether all units in use at a reading are still in use at a question.

    The first of these units were spent at `first`.
    """
    begin, end = reading.earliest, question.latest
    if end > reading.until:
        return False
    if terms.first_hit or terms.algorithm == "concurrency":
        return False
    if terms.algorithm == "fixed_window":
        window = AlignedWindow(terms).window
        return window(begin) == window(end)
    if terms.algorithm == "sliding_window_log":
        return end - first < terms.period_ns
    return first // terms.slot_ns > end // terms.slot_ns - terms.slots
