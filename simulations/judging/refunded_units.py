"""Units of charges that were refunded, as intervals for the oracle.

A refund removes a minimum and a maximum of units at an instant, with an age. They are those of the
charge, unless a fault makes them uncertain.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from ringfence.limiter import Algorithm
from simulations.judging.counted_units import MERGE_S, MOST_DECIDERS, QUICK_S, CounterView
from simulations.judging.ledger import Answered
from simulations.oracle import Refund, Spend

__all__ = ["all_refunded_units", "refunded_units"]

_REFUND_ALLOWANCE_S = 0.05
"""Longest addition to the age of a refund, for refunds that arrive late."""


def all_refunded_units(
    view: CounterView, answers: Sequence[Answered], refunded: Sequence[Answered]
) -> list[Spend]:
    """Return the units of all charges that were refunded."""
    return [
        refunded_units(view, each, is_alone=_is_alone(each, answers, refunded)) for each in refunded
    ]


def refunded_units(view: CounterView, answer: Answered, *, is_alone: bool = False) -> Spend:
    """Return the units of a charge that was refunded; a fault may have lost the refund.

    With `is_alone`, the counter had no other charge or refund from the check to its refund.
    """
    place, done = view.place_of(answer), answer.refund_done_at
    last = answer.answered_at if done == inf else done
    excuses = view.excuses.of(place, replace(answer, answered_at=last))
    if excuses or done == inf or view.excuses.may_be_lost(place, answer.asked_at, last):
        until = max([last, *(each.end for each in excuses)])
        most = answer.cost * (MOST_DECIDERS if excuses else 1)
        return view.spend(answer.asked_at, until, 0, most, until + MERGE_S)
    least = 0 if view.is_divided else answer.cost  # A refund might remove others.
    last = answer.answered_at
    if view.limit.is_bucket and view.is_elsewhere(answer):
        arrived_at, may_be_ignored = view.arrival(answer, last)
        last = arrived_at + view.wrong_drain_s(answer)
        least = 0 if may_be_ignored else least
    return view.spend(
        *(answer.asked_at, last, least, answer.cost, answer.answered_at),
        _refund_of(view, answer, is_alone=is_alone),
    )


def _refund_of(view: CounterView, answer: Answered, *, is_alone: bool) -> Refund:
    """Return the refund of a charge.

    A caller's refund without an age removes the newest units. The refund of a denied group has an
    age, so it removes units from the instant of the check on, or from shortly before it. It removes
    nothing if the network delays it by more than this. A refund of a borrowed unit may be lost.

    Another data center that has received the units keeps them: later units of this data center
    count there instead of them.
    """
    first, least, ages = answer.answered_at, answer.cost, (0.0, 0.0)
    last = answer.refund_done_at
    if view.is_elsewhere(answer):
        least, last = 0, inf if view.limit.is_bucket else last
    elif answer.in_denied_group:
        first, lasts = answer.asked_at, answer.refund_done_at - answer.asked_at
        # A member that owns all rows of the group does not charge them at all.
        ages = 0.0 if view.limit.is_bucket else lasts, lasts + _REFUND_ALLOWANCE_S
        place, done = view.place_of(answer), answer.refund_done_at
        least = 0 if view.excuses.is_broken(place, answer, done) else least
    elif answer.refund_age:
        first = answer.asked_at + answer.refund_age
        ages = (_stated_age(view, answer),) * 2
    if view.bounded_refunds:
        youngest_s, oldest_s = _recorded_ages(view, answer, is_alone=is_alone)
        ages = max(ages[0], youngest_s), max(ages[1], oldest_s)
        place = view.place_of(answer)
        may_be_second = answer.answered_at - answer.asked_at > QUICK_S
        is_far = place.datacenter != answer.datacenter
        is_moved = view.excuses.tenure(place, answer.asked_at, answer.refund_done_at) is None
        is_broken = view.excuses.is_broken(place, answer, answer.refund_done_at)
        if may_be_second or is_far or is_moved or is_broken:
            # The refund may reach a member that has no record of the charge. Either the shard has
            # moved since the check, or a second member answered, or the first one still waits for
            # the answer of another data center.
            least = 0
    youngest, oldest = (round(age * 1e9) for age in ages)
    return Refund(
        view.instant(first - view.skew_s),
        view.instant(last + view.skew_s),
        0 if view.is_divided else least,
        answer.cost,
        youngest,
        oldest,
        view.bounded_refunds,
    )


def _stated_age(view: CounterView, answer: Answered) -> float:
    """Return the age of a refund with an age; a refund from a log may arrive late."""
    if view.limit.algorithm is not Algorithm.SLIDING_WINDOW_LOG:
        return answer.refund_age
    age, period = answer.refund_age, view.limit.period_ns / 1e9
    return age + min(_REFUND_ALLOWANCE_S, max(age, period / 20))


def _recorded_ages(view: CounterView, answer: Answered, *, is_alone: bool) -> tuple[float, float]:
    """Return the range of the age of a refund that a member bounds by the recorded charges.

    The refund is as old as the last charge. In a log, it may be as old as the first one if the
    units of the last charge do not suffice.
    """
    lasts = answer.refund_done_at - answer.asked_at
    if view.limit.algorithm is not Algorithm.SLIDING_WINDOW_LOG:
        return 0.0, lasts + answer.in_denied_group * _REFUND_ALLOWANCE_S
    if is_alone:
        return lasts, lasts + _REFUND_ALLOWANCE_S
    longest = min(answer.refund_done_at + _REFUND_ALLOWANCE_S, view.memory_s - 1e-9)
    return 1e-9, max(lasts, longest)


def _is_alone(refund: Answered, answers: Sequence[Answered], refunded: Sequence[Answered]) -> bool:
    """Return whether a counter had no other charge or refund from a check to its refund."""
    begin, end, own = refund.asked_at, refund.refund_done_at, refund.group
    others = [each for each in answers if each.allowed and each.asked_cost and each.group != own]
    spans = [(each.asked_at, each.answered_at) for each in others]
    spans += [(each.asked_at, each.refund_done_at) for each in refunded if each is not refund]
    return not any(first <= end and begin <= last for first, last in spans)
