"""Invariants of all algorithms, with periods so short that each nanosecond of rounding counts."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ringfence.limiter import Algorithm, Limit, Outcome, Table, over_admission
from tests.ringfence.limiter.drawn_limits import DrawnLimits, timed_costs

KEY = b"key"
quick = settings(max_examples=60, deadline=None)

drawn = DrawnLimits(soft=st.sampled_from([0, 0, 100, 500]))
buckets = drawn.buckets
queues = drawn.queues
fixed = drawn.of(Algorithm.FIXED_WINDOW)
counted = drawn.first_hits | fixed
"""Limits whose count starts at zero in each window."""
sliding = drawn.slotted | drawn.of(Algorithm.SLIDING_WINDOW_LOG)
rates = buckets | queues | counted | sliding
in_flight = drawn.of(Algorithm.CONCURRENCY)
limits = rates | in_flight
histories = timed_costs(max_size=25)


@quick
@given(limit=rates, history=histories)
def test_no_true_window_admits_more_than_the_stated_worst(
    limit: Limit, history: list[tuple[int, int]]
) -> None:
    table = table_of(limit)

    hits = [(now, cost) for now, cost in history if table.check(KEY, cost, now).is_admitted]

    worst = over_admission(limit).worst
    assert all(inside(hits, now, limit.period_ns) <= worst for now, _ in hits)


@quick
@given(limit=buckets | queues, history=histories)
def test_in_every_time_span_a_bucket_admits_its_size_and_what_drains_in_the_span(
    limit: Limit, history: list[tuple[int, int]]
) -> None:
    table = table_of(limit)

    hits = [(now, cost) for now, cost in history if table.check(KEY, cost, now).is_admitted]

    for first, (begin, _) in enumerate(hits):
        units = 0
        for now, cost in hits[first:]:
            units += cost
            drained = limit.amount * (now - begin)
            assert units * limit.period_ns <= limit.ceiling * limit.period_ns + drained


@quick
@given(limit=queues, history=histories)
def test_work_from_a_queue_starts_in_order_and_no_faster_than_the_rate(
    limit: Limit, history: list[tuple[int, int]]
) -> None:
    table, begins, ends = table_of(limit), 0, 0
    for now, cost in history:
        outcome = table.check(KEY, cost, now)
        if outcome.is_admitted:
            start = now + outcome.delay_ns
            assert start == max(now, -(-ends // limit.amount))
            assert start >= begins
            begins, ends = start, max(now * limit.amount, ends) + cost * limit.period_ns


@quick
@given(limit=counted, history=histories)
def test_no_window_admits_more_than_the_limit(limit: Limit, history: list[tuple[int, int]]) -> None:
    table = table_of(limit)
    windows: dict[int, int] = {}
    for now, cost in history:
        outcome = table.check(KEY, cost, now)
        if outcome.is_admitted:
            end = now + outcome.reset_after_ns
            windows[end] = windows.get(end, 0) + cost

    assert max(windows.values(), default=0) <= limit.ceiling
    assert all(later - sooner >= limit.period_ns for sooner, later in pairwise(sorted(windows)))


@quick
@given(limit=limits, history=histories, spend=st.integers(0, 8), beyond=st.integers(1, 8))
def test_a_denied_cost_is_still_denied_just_before_retry_after_and_admitted_at_it(
    limit: Limit, history: list[tuple[int, int]], spend: int, beyond: int
) -> None:
    table, now = after(limit, history)
    table.check(KEY, max(1, table.peek(KEY, now).remaining - spend), now)
    cost = min(table.peek(KEY, now).remaining + beyond, limit.ceiling)
    outcome = table.check(KEY, cost, now)
    assume(not outcome.is_admitted)

    assert outcome.retry_after_ns > 0
    assert not table.check(KEY, cost, now + outcome.retry_after_ns - 1).is_admitted
    assert table.check(KEY, cost, now + outcome.retry_after_ns).is_admitted


@quick
@given(limit=limits, history=histories)
def test_a_key_is_unused_exactly_after_reset_after(
    limit: Limit, history: list[tuple[int, int]]
) -> None:
    table, now = after(limit, history)
    reset_after = table.peek(KEY, now).reset_after_ns

    just_before = table.peek(KEY, now + max(reset_after - 1, 0)).reset_after_ns

    assert just_before == min(reset_after, 1)
    assert_equivalent(table, table_of(limit), now + reset_after)


@quick
@given(limit=counted, history=histories)
def test_no_check_or_peek_moves_the_end_of_a_window(
    limit: Limit, history: list[tuple[int, int]]
) -> None:
    """gubernator#225: each call restarted the time of the window, so its count never ended."""
    table, end = table_of(limit), 0
    for now, cost in history:
        for outcome in (table.check(KEY, cost, now), table.peek(KEY, now)):
            if outcome.reset_after_ns:
                assert now >= end or now + outcome.reset_after_ns == end
                end = now + outcome.reset_after_ns

    assert table.peek(KEY, end).remaining == limit.ceiling


@quick
@given(limit=buckets, history=histories, cost=st.integers(1, 4))
def test_a_check_delays_the_reset_of_a_bucket_by_its_own_cost_only(
    limit: Limit, history: list[tuple[int, int]], cost: int
) -> None:
    """gubernator#225, for limits without windows."""
    table, now = after(limit, history)
    before = table.peek(KEY, now).reset_after_ns
    is_admitted = table.check(KEY, cost, now).is_admitted
    own = cost * limit.period_ns / limit.amount if is_admitted else 0

    assert abs(table.peek(KEY, now).reset_after_ns - before - own) <= 1


@quick
@given(limit=limits, history=histories, cost=st.integers(1, 12))
def test_remaining_is_the_largest_cost_that_passes(
    limit: Limit, history: list[tuple[int, int]], cost: int
) -> None:
    table, now = after(limit, history)
    remaining = table.peek(KEY, now).remaining

    assert table.check(KEY, cost, now).is_admitted == (cost <= remaining)


@quick
@given(limit=limits, history=histories)
def test_denied_checks_and_peeks_change_nothing(
    limit: Limit, history: list[tuple[int, int]]
) -> None:
    plain, checked = table_of(limit), table_of(limit)

    for now, cost in history:
        for useless in (0, checked.peek(KEY, now).remaining + 1, limit.ceiling + 1):
            checked.check(KEY, useless, now)
        assert without_id(checked.check(KEY, cost, now)) == without_id(plain.check(KEY, cost, now))


@quick
@given(limit=limits, history=histories, cost=st.integers(1, 8))
def test_one_check_of_n_has_the_effect_of_n_checks_of_1(
    limit: Limit, history: list[tuple[int, int]], cost: int
) -> None:
    whole, now = after(limit, history)
    units, _ = after(limit, history)
    assume(whole.check(KEY, cost, now).is_admitted)

    assert all(units.check(KEY, 1, now).is_admitted for _ in range(cost))

    assert_equivalent(whole, units, now)


@quick
@given(limit=limits, history=histories, cost=st.integers(1, 8))
def test_a_refund_at_once_undoes_a_check(
    limit: Limit, history: list[tuple[int, int]], cost: int
) -> None:
    undone, now = after(limit, history)
    untouched, _ = after(limit, history)
    outcome = undone.check(KEY, cost, now)
    assume(outcome.is_admitted)

    undone.refund(KEY, cost, now, slot_id=outcome.slot_id)

    assert_equivalent(undone, untouched, now)


@quick
@given(limit=limits, history=histories, cost=st.integers(0, 20), age_ns=st.integers(0, 60))
def test_a_refund_frees_at_most_its_cost_and_the_units_in_use(
    limit: Limit, history: list[tuple[int, int]], cost: int, age_ns: int
) -> None:
    table, now = after(limit, history)
    before = table.peek(KEY, now).remaining

    remaining = table.refund(KEY, cost, now, age_ns).remaining

    assert before <= remaining <= min(limit.ceiling, before + cost)


@settings(max_examples=150, deadline=None)
@given(limit=rates, history=histories, data=st.data())
def test_no_refund_lets_a_true_window_admit_more_than_the_stated_worst(
    limit: Limit, history: list[tuple[int, int]], data: st.DataObject
) -> None:
    """The age of a refund is never less than the true age of its charge."""
    table = table_of(limit)
    worst = over_admission(limit).worst
    kept: list[tuple[int, int]] = []

    for now, cost in history:
        if kept and data.draw(st.booleans(), "refund"):
            charged_at, units = kept.pop(data.draw(st.integers(0, len(kept) - 1), "which"))
            table.refund(KEY, units, now, now - charged_at + data.draw(st.integers(0, 3), "late"))
        if table.check(KEY, cost, now).is_admitted:
            kept.append((now, cost))
            assert inside(kept, now, limit.period_ns) <= worst


@quick
@given(limit=limits, other=limits, history=histories)
def test_changing_a_limit_and_back_gains_nothing(
    limit: Limit, other: Limit, history: list[tuple[int, int]]
) -> None:
    table, now = after(limit, history)
    before = table.peek(KEY, now).remaining

    table.change_limit(other)
    table.peek(KEY, now)
    table.change_limit(limit)

    assert table.peek(KEY, now).remaining <= before


@quick
@given(limit=limits, more=st.integers(0, 8), history=histories)
def test_raising_an_amount_adds_the_difference_and_lowering_it_removes_the_same(
    limit: Limit, more: int, history: list[tuple[int, int]]
) -> None:
    limit = replace(limit, burst=None)
    raised = replace(limit, amount=limit.amount + more)
    table, now = after(limit, history)
    before = table.peek(KEY, now)

    table.change_limit(raised)
    during = table.peek(KEY, now)
    table.change_limit(limit)
    restored = table.peek(KEY, now)

    assert during.remaining - before.remaining == raised.ceiling - limit.ceiling
    assert restored.remaining == before.remaining


@quick
@given(limit=limits, history=histories, amount=st.integers(0, 8), cost=st.integers(1, 4))
def test_the_first_check_after_a_change_is_decided_by_the_new_limit(
    limit: Limit, history: list[tuple[int, int]], amount: int, cost: int
) -> None:
    changed = replace(limit, amount=amount, burst=None)
    table, now = after(limit, history)
    table.check(KEY, limit.ceiling + 1, now)

    table.change_limit(changed)
    remaining = table.peek(KEY, now).remaining

    assert table.check(KEY, cost, now).is_admitted == (cost <= remaining)
    assert remaining <= changed.ceiling


@quick
@given(limit=limits, history=histories, step_back=st.integers(0, 100))
def test_a_clock_that_steps_back_frees_no_units(
    limit: Limit, history: list[tuple[int, int]], step_back: int
) -> None:
    table, now = after(limit, history)
    remaining = table.peek(KEY, now).remaining
    assume(remaining)
    table.check(KEY, remaining, now)

    outcome = table.check(KEY, 1, now - step_back)

    assert not outcome.is_admitted
    assert table.check(KEY, 1, now - step_back + outcome.retry_after_ns).is_admitted


@quick
@given(limit=limits, history=histories, cost=st.integers(0, 12))
def test_only_queues_return_delays_and_only_concurrency_limits_return_slot_ids(
    limit: Limit, history: list[tuple[int, int]], cost: int
) -> None:
    table, now = after(limit, history)
    for outcome in (table.check(KEY, cost, now), table.peek(KEY, now)):
        assert limit.queue or outcome.delay_ns == 0
        assert limit.algorithm is Algorithm.CONCURRENCY or outcome.slot_id == 0
        assert outcome.is_admitted or (outcome.delay_ns, outcome.slot_id) == (0, 0)
        assert not outcome.is_admitted or outcome.retry_after_ns == 0


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_limit_of_zero_denies_everything_and_stores_no_key(algorithm: Algorithm) -> None:
    table = table_of(Limit.of_ns(0, 10, algorithm))

    outcomes = [table.check(KEY, cost, 5) for cost in (0, 1, 2)]

    assert {outcome.code.name for outcome in outcomes} == {"NEVER"}
    assert len(table) == 0


def table_of(limit: Limit) -> Table:
    return Table(limit, max_keys=10)


def after(limit: Limit, history: Sequence[tuple[int, int]]) -> tuple[Table, int]:
    """Return a table that has decided the history, and the time of its last check."""
    table = table_of(limit)
    for now, cost in history:
        table.check(KEY, cost, now)
    return table, history[-1][0] if history else 0


def inside(hits: Sequence[tuple[int, int]], now: int, period_ns: int) -> int:
    """Return the units admitted in (now - period, now]."""
    return sum(cost for at, cost in hits if now - period_ns < at <= now)


def without_id(outcome: Outcome) -> Outcome:
    """Return an outcome without the id of its slot, which differs each time."""
    return msgspec.structs.replace(outcome, slot_id=0)


def assert_equivalent(left: Table, right: Table, now: int) -> None:
    """Assert that both decide peeks and checks alike at many instants from `now` on."""
    for instant in range(now, now + 100, 3):
        assert without_id(left.peek(KEY, instant)) == without_id(right.peek(KEY, instant))
        assert without_id(left.check(KEY, 1, instant)) == without_id(right.check(KEY, 1, instant))
