"""Tighter bounds after a reading: a decision whose answer states the units in use.

Faults may leave it uncertain how many units a counter contains. A reading ends this uncertainty for
the units before it. It holds while these units neither expire nor change: within one fixed window,
and in a log or sliding window that still counts all units.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from simulations.oracle.intervals import Bound, Question, Spend, Verdict
from simulations.oracle.terms import Terms
from simulations.oracle.usage import AlignedWindow
from simulations.oracle.verdicts import bound_of

__all__ = ["Reading", "narrowed"]


@dataclass(frozen=True, slots=True)
class Reading:
    """Units that a counter contained right after a decision."""

    earliest: int
    latest: int
    least: int
    most: int
    until: int
    """Instant up to which no fault changes the units that were read."""
    own: Spend | None = None
    """Units of this very decision, which are among those that were read."""


def narrowed(
    terms: Terms,
    spends: Sequence[Spend],
    questions: Sequence[Question],
    found: Sequence[Bound],
    readings: Sequence[Reading],
) -> list[Bound]:
    """Return the bounds of each question, narrowed by the last reading before it.

    `found` are the bounds without readings. Only questions that they leave open are narrowed.
    """
    if not spends or not readings:
        return list(found)
    first = min(each.earliest for each in spends)
    ordered = sorted(readings, key=lambda each: each.latest)
    ends = [each.latest for each in ordered]
    results = list(found)
    for at, (question, bound) in enumerate(zip(questions, found, strict=True)):
        last = bisect_left(ends, question.earliest)
        if bound.verdict is Verdict.EITHER and last:
            reading = ordered[last - 1]
            is_kept = _keeps(terms, first, reading.earliest, question.latest)
            if is_kept and question.latest <= reading.until:
                results[at] = _narrowed(terms, spends, question, bound, reading)
    return results


def _narrowed(
    terms: Terms, spends: Sequence[Spend], question: Question, bound: Bound, reading: Reading
) -> Bound:
    least, most = reading.least, reading.most - question.own
    for spend in spends:
        if spend.earliest > question.latest or spend == reading.own:
            continue
        if spend.counted_from >= reading.earliest:
            most += spend.most
        if reading.latest < spend.earliest and spend.counted_from < question.earliest:
            least += spend.least
        least -= _returned(spend, reading)
    return bound_of(
        terms,
        question,
        max(bound.least, least),
        min(bound.most, max(most, 0)),
        bound.shortest_wait,
        bound.longest_wait,
    )


def _returned(spend: Spend, reading: Reading) -> int:
    """Return the units that may have been given back after a reading: refunds, and units whose
    number is uncertain at the time of the reading."""
    units = 0
    if spend.refund is not None and spend.refund.latest >= reading.earliest:
        units += spend.refund.most
    if spend.earliest <= reading.latest and spend.latest >= reading.earliest:
        units += spend.most - spend.least
    return units


def _keeps(terms: Terms, first: int, begin: int, end: int) -> bool:
    """Return whether all units that are in use at `begin` are in use at `end`; the first ones were
    spent at `first`."""
    if terms.is_bucket or terms.first_hit or terms.algorithm == "concurrency":
        return False
    if terms.algorithm == "fixed_window":
        window = AlignedWindow(terms).window
        return window(begin) == window(end)
    if terms.algorithm == "sliding_window_log":
        return end - first < terms.period_ns
    return first // terms.slot_ns > end // terms.slot_ns - terms.slots
