"""Bounds of the units in use at each decision on a key, when instants are known as intervals.

The bounds are sound: an exact replay at any choice of instants and units in the intervals lies
between them. With intervals of one instant, they are the exact replay.
"""

from collections.abc import Sequence

from simulations.oracle.bucket_bounds import bucket_bounds
from simulations.oracle.first_hit_bounds import first_hit_bounds
from simulations.oracle.intervals import Bound, Drain, Question, Spend
from simulations.oracle.log_bounds import log_bounds, slot_bounds
from simulations.oracle.terms import Terms
from simulations.oracle.window_bounds import window_bounds

__all__ = ["bounds"]


def bounds(
    terms: Terms,
    spends: Sequence[Spend],
    questions: Sequence[Question],
    drains: Sequence[Drain] = (),
) -> list[Bound]:
    """Return the bounds of each question, from all units that were spent on the key.

    `drains` are the intervals in which a bucket drains by another limit, in order. The time is that
    of sorting the units and questions. Raises `ValueError` when an interval ends before it begins.
    """
    _validate(spends, questions)
    if terms.is_bucket:
        return bucket_bounds(terms, spends, questions, drains)
    if terms.first_hit:
        return first_hit_bounds(terms, spends, questions)
    if terms.algorithm == "sliding_window_log":
        return log_bounds(terms, spends, questions)
    if terms.algorithm == "concurrency":
        return slot_bounds(terms, spends, questions)
    return window_bounds(terms, spends, questions)


def _validate(spends: Sequence[Spend], questions: Sequence[Question]) -> None:
    for question in questions:
        if question.latest < question.earliest:
            raise ValueError(f"a question must end after its begin, got {question}")
    for spend in spends:
        if spend.latest < spend.earliest or not 0 <= spend.least <= spend.most:
            raise ValueError(f"the intervals of spent units must be in order, got {spend}")
        refund = spend.refund
        if refund is not None and (
            refund.latest < refund.earliest
            or not 0 <= refund.least <= refund.most
            or not 0 <= refund.age_least <= refund.age_most
        ):
            raise ValueError(f"the intervals of a refund must be in order, got {refund}")
