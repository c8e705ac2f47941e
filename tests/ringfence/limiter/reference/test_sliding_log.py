import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter import Algorithm, Limit, Table

KEY = b"key"


@settings(max_examples=100, deadline=None)
@given(
    amount=st.integers(1, 40),
    period_ns=st.integers(1, 100),
    gaps=st.lists(st.integers(0, 9), max_size=150),
)
def test_remaining_units_equal_an_exact_recount(
    amount: int, period_ns: int, gaps: list[int]
) -> None:
    table = Table(Limit.of_ns(amount, period_ns, Algorithm.SLIDING_WINDOW_LOG), max_keys=1)
    hits: list[int] = []
    now = 0
    for gap in gaps:
        now += gap
        inside = sum(at > now - period_ns for at in hits)
        outcome = table.check(KEY, 1, now)

        assert outcome.is_admitted == (inside < amount)
        hits += [now] * outcome.is_admitted
        assert outcome.remaining == amount - inside - outcome.is_admitted


def test_a_refund_removes_the_oldest_hits_since_the_charge() -> None:
    table = Table(Limit.of_ns(10, 100, Algorithm.SLIDING_WINDOW_LOG), max_keys=1)
    for now in (10, 20, 30):
        table.check(KEY, 2, now)

    assert table.refund(KEY, 3, 40, age_ns=25).remaining == 7
    assert table.peek(KEY, 110).remaining == 9, "the hits at 10 are left to expire at 110"
    assert table.peek(KEY, 129).remaining == 9, "one hit at 30 is left"
    assert table.peek(KEY, 130).remaining == 10


def test_a_refund_of_unknown_age_removes_the_newest_hits() -> None:
    table = Table(Limit.of_ns(10, 100, Algorithm.SLIDING_WINDOW_LOG), max_keys=1)
    for now in (10, 20, 30):
        table.check(KEY, 2, now)

    assert table.refund(KEY, 3, 40).remaining == 7
    assert table.peek(KEY, 110).remaining == 9, "one hit at 20 is left"
    assert table.peek(KEY, 120).remaining == 10
    assert table.refund(KEY, 3, 120).remaining == 10


def test_a_refund_of_a_charge_that_has_expired_frees_nothing() -> None:
    table = Table(Limit.of_ns(10, 100, Algorithm.SLIDING_WINDOW_LOG), max_keys=1)
    table.check(KEY, 2, 0)
    table.check(KEY, 3, 100)

    assert table.refund(KEY, 2, 101, age_ns=101).remaining == 7


def test_another_amount_keeps_the_times_of_hits_and_another_period_charges_them_now() -> None:
    table = Table(Limit.of_ns(10, 100, Algorithm.SLIDING_WINDOW_LOG), max_keys=1)
    table.check(KEY, 8, 50)

    table.change_limit(Limit.of_ns(4, 100, Algorithm.SLIDING_WINDOW_LOG))
    assert table.check(KEY, 1, 60).retry_after_ns == 90
    table.change_limit(Limit.of_ns(10, 200, Algorithm.SLIDING_WINDOW_LOG))

    assert table.check(KEY, 3, 60).retry_after_ns == 200


@pytest.mark.parametrize("amount", [3, 1024, 1500])
def test_charges_are_exact_for_1024_more_entries_than_the_limit(amount: int) -> None:
    table = Table(Limit.of_ns(amount, 10**9, Algorithm.SLIDING_WINDOW_LOG), max_keys=1)
    for now in range(amount + 1024 + 5):
        table.charge(KEY, 1, now, 0)

    found = table.state(KEY, amount + 1028)

    assert found is not None
    hits = found[0][1::2]
    assert hits == [1] * (amount + 1023) + [6]


@pytest.mark.parametrize(
    ("now", "age_ns", "remaining"),
    [
        (45, 14, 4),
        (45, 15, 6),
        (45, 24, 6),
        (45, 25, 8),
        (45, 34, 8),
        (45, 35, 9),
        (45, 99, 9),
        (45, 100, 4),
        (25, 9, 6),
        (25, 10, 8),
        (25, 20, 9),
        (110, 90, 10),
    ],
)
def test_a_refund_removes_hits_since_the_charge_only(now: int, age_ns: int, remaining: int) -> None:
    table = Table(Limit.of_ns(10, 100, Algorithm.SLIDING_WINDOW_LOG), max_keys=1)
    for at in (10, 20, 30):
        table.check(KEY, 2, at)

    assert table.refund(KEY, 5, now, age_ns).remaining == remaining
