from ringfence.limiter import Algorithm, Limit
from ringfence.wire import Source
from simulations.judging.algorithm_invariants import breaches
from simulations.judging.ledger import Answered, Column

SECOND = 1_000_000_000
LATER = 4.0
"""Start of the load: every run begins at a full minute, and these windows last four seconds."""


def limit(algorithm, amount=3, period_s=4):
    return Limit.of_ns(amount, period_s * SECOND, algorithm)


def answers(*times, allowed=True, cost=1):
    return [Answered(at, at + 0.001, "dc1", "k", cost, allowed, Source.OWNER) for at in times]


def found(column, of, began=0.0):
    return [breach.property for breach in breaches(Column(column), of, began)]


def test_a_fixed_window_admits_its_amount_and_the_next_one_again():
    column = answers(1.0, 2.0, 3.0, 4.2, 4.3, 4.4)

    assert found(column, limit(Algorithm.FIXED_WINDOW)) == []


def test_excess_admissions_of_a_fixed_window_are_detected():
    assert found(answers(1.0, 2.0, 3.0, 3.5), limit(Algorithm.FIXED_WINDOW)) == ["over_admission"]


def test_wrong_denials_of_a_fixed_window_are_detected():
    column = answers(1.0, 2.0, 3.0) + answers(3.5, allowed=False)

    assert found(column, limit(Algorithm.FIXED_WINDOW)) == []
    assert found(column, limit(Algorithm.FIXED_WINDOW, amount=4)) == ["wrong_denial"]


def test_answers_that_fit_in_either_window_are_not_checked():
    column = answers(1.0, 2.0, 3.0, 3.98)

    assert found(column, limit(Algorithm.FIXED_WINDOW)) == []


def test_windows_lie_where_the_run_began():
    column = answers(1.0, 2.0, 3.0, 3.5)

    assert found(column, limit(Algorithm.FIXED_WINDOW), began=1.5) == []


def test_a_sliding_window_weights_the_previous_window_by_its_remaining_part():
    full = answers(3.0, 3.1, 3.2, 3.3)

    assert found(full + answers(6.2), limit(Algorithm.SLIDING_WINDOW, 4)) == []
    assert found(full + answers(6.2, 6.3, 6.4, 6.5), limit(Algorithm.SLIDING_WINDOW, 4)) == [
        "over_admission"
    ]
    assert found(full + answers(6.2, allowed=False), limit(Algorithm.SLIDING_WINDOW, 4)) == [
        "wrong_denial"
    ]


def test_a_bucket_admits_only_refilled_units():
    bucket = limit(Algorithm.TOKEN_BUCKET, amount=4)

    assert found(answers(0.0, 0.1, 0.2, 0.3, 1.0, 2.0, 3.0), bucket) == []
    assert found(answers(0.0, 0.1, 0.2, 0.3, 0.4, 0.5), bucket) == ["over_admission"]
    assert found(answers(0.0, 0.1) + answers(0.5, allowed=False), bucket) == ["wrong_denial"]


def test_refunded_units_may_have_caused_a_denial():
    column = answers(1.0, 2.0) + answers(2.5, allowed=False)
    passing = [Answered(2.4, 2.45, "dc1", "k", 1, True, Source.OWNER, refund_done_at=2.6)]
    fixed = limit(Algorithm.FIXED_WINDOW)

    assert [each.property for each in breaches(Column(column), fixed, 0.0)] == ["wrong_denial"]
    assert list(breaches(Column(column, passing), fixed, 0.0)) == []
