from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter import Limit, Table

KEY = b"key"


@settings(max_examples=100, deadline=None)
@given(
    amount=st.integers(1, 20),
    slots=st.integers(1, 4),
    slot_ns=st.integers(1, 30),
    steps=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), max_size=30),
)
def test_the_estimate_errs_by_at_most_the_hits_of_the_oldest_slot(
    amount: int, slots: int, slot_ns: int, steps: list[tuple[int, int]]
) -> None:
    limit = Limit.of_ns(amount, slots * slot_ns, slots=slots)
    table = Table(limit, max_keys=1)
    hits: list[tuple[int, int]] = []
    now = 0
    for gap, cost in steps:
        now += gap
        if table.check(KEY, cost, now).is_admitted:
            hits.append((now, cost))

        true = sum(cost for at, cost in hits if at > now - limit.period_ns)
        oldest = sum(cost for at, cost in hits if at // slot_ns == now // slot_ns - slots)
        estimate = amount - table.peek(KEY, now).remaining
        assert abs(estimate - true) <= oldest


def test_a_refund_takes_from_the_slot_of_the_charge_and_no_newer_one() -> None:
    table = Table(Limit.of_ns(10, 100), max_keys=1)
    table.check(KEY, 4, 50)
    table.check(KEY, 3, 100)

    assert table.refund(KEY, 5, 100, age_ns=50).remaining == 7
    assert table.refund(KEY, 9, 120, age_ns=500).remaining == 7
    assert table.refund(KEY, 3, 120, age_ns=20).remaining == 10


def test_another_amount_keeps_the_counts_and_other_slots_charge_the_estimate_now() -> None:
    table = Table(Limit.of_ns(10, 100), max_keys=1)
    table.check(KEY, 8, 50)

    table.change_limit(Limit.of_ns(20, 100))
    assert table.peek(KEY, 150).remaining == 16
    table.change_limit(Limit.of_ns(20, 100, slots=2))

    assert table.peek(KEY, 150).remaining == 16
    assert table.peek(KEY, 249).remaining == 16
    assert table.peek(KEY, 300).remaining == 20
