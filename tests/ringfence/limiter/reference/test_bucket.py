from hypothesis import given
from hypothesis import strategies as st

from ringfence.limiter import NS_PER_SECOND, Algorithm, Limit, Table

SECOND = NS_PER_SECOND


@given(amount=st.integers(1, 2**53 - 1), period_ns=st.integers(1, 10**15))
def test_a_full_period_brings_back_exactly_the_amount(amount: int, period_ns: int) -> None:
    table = Table(Limit.of_ns(amount, period_ns, Algorithm.TOKEN_BUCKET), max_keys=1)
    table.check(b"key", amount, 5)

    assert table.peek(b"key", 5).reset_after_ns == period_ns
    assert table.peek(b"key", 5 + period_ns - 1).remaining == (period_ns - 1) * amount // period_ns
    assert table.peek(b"key", 5 + period_ns).remaining == amount


def test_a_refund_returns_only_units_that_have_not_drained() -> None:
    table = Table(Limit.of_ns(10, 10 * SECOND, Algorithm.TOKEN_BUCKET), max_keys=1)
    table.check(b"key", 4, 0)
    table.check(b"key", 8, 9 * SECOND)

    assert table.refund(b"key", 4, 9 * SECOND, age_ns=9 * SECOND).remaining == 2
    assert table.refund(b"key", 8, 10 * SECOND, age_ns=SECOND).remaining == 10


def test_another_rate_keeps_the_used_units_and_drains_them_at_the_new_rate() -> None:
    table = Table(Limit.of_ns(10, 10 * SECOND, Algorithm.TOKEN_BUCKET), max_keys=1)
    table.check(b"key", 10, 0)

    table.change_limit(Limit.of_ns(20, SECOND, Algorithm.LEAKY_BUCKET))

    assert table.peek(b"key", 0).remaining == 10
    assert table.peek(b"key", SECOND // 4).remaining == 15


def test_a_queue_delays_a_request_until_its_turn_begins_for_any_cost() -> None:
    table = Table(Limit.of_ns(1, SECOND, Algorithm.LEAKY_BUCKET, burst=9, queue=True), max_keys=1)

    delays = [table.check(b"key", cost, 0).delay_ns // SECOND for cost in (3, 2, 1)]

    assert delays == [0, 3, 5]
