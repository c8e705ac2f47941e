from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter import Algorithm, Engine, EngineRule, Limit, Outcomes

KEY = (0).to_bytes(8, "big") + b"key"
UNKNOWN = (9).to_bytes(8, "big") + b"key"
quick = settings(max_examples=60, deadline=None)

amounts = st.integers(1, 8)
periods = st.integers(1, 40)
windows = st.builds(
    Limit,
    amounts,
    periods,
    st.sampled_from(
        [Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW, Algorithm.SLIDING_WINDOW_LOG]
    ),
) | st.builds(
    lambda amount, slots, slot_ns: Limit(amount, slots * slot_ns, slots=slots),
    amounts,
    st.integers(2, 5),
    st.integers(1, 12),
)
in_flight = st.builds(Limit, amounts, periods, st.just(Algorithm.CONCURRENCY))
buckets = st.builds(
    Limit,
    amounts,
    periods,
    st.sampled_from([Algorithm.TOKEN_BUCKET, Algorithm.LEAKY_BUCKET]),
    burst=st.none() | amounts,
)
first_hits = st.builds(
    Limit, amounts, periods, st.just(Algorithm.FIXED_WINDOW), first_hit=st.just(True)
)
limits = windows | in_flight | buckets
histories = st.lists(st.tuples(st.integers(0, 15), st.integers(1, 4)), max_size=20).map(
    lambda steps: list(zip(accumulate(gap for gap, _ in steps), (c for _, c in steps), strict=True))
)
"""Checks as (now, cost), in order of time."""
charges = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 60)), max_size=6)
"""Units and their age."""
sharing = st.booleans()


@given(limit=limits, is_shared=sharing, history=histories, units=st.integers(0, 30))
@quick
def test_units_charged_at_once_are_in_use_whatever_the_ceiling(
    limit: Limit, is_shared: bool, history: list[tuple[int, int]], units: int
) -> None:
    engine, now = after(limit, history, is_shared)
    before = engine.used(KEY, now)

    engine.charge([KEY], [units], [0], now)

    assert engine.used(KEY, now) == before + units


@given(limit=limits, is_shared=sharing, history=histories, charged=charges)
@quick
def test_charges_never_take_away_and_never_add_more_than_was_admitted(
    limit: Limit, is_shared: bool, history: list[tuple[int, int]], charged: list[tuple[int, int]]
) -> None:
    engine, now = after(limit, history, is_shared)
    before = engine.used(KEY, now)

    charge(engine, charged, now)

    assert before <= engine.used(KEY, now) <= before + sum(units for units, _ in charged)


@given(
    limit=windows | first_hits | in_flight,
    is_shared=sharing,
    history=histories,
    units=st.integers(1, 9),
)
@quick
def test_units_that_weigh_no_more_change_nothing(
    limit: Limit, is_shared: bool, history: list[tuple[int, int]], units: int
) -> None:
    """limitador#288: what an outage longer than the window had held up counted in the next one."""
    charged, now = after(limit, history, is_shared)
    untouched, _ = after(limit, history, is_shared)

    charge(charged, [(units, 2 * limit.period_ns)], now)

    assert_equivalent(charged, untouched, now)


@given(limit=windows, is_shared=sharing, history=histories, data=st.data())
@quick
def test_the_order_of_charges_does_not_matter_to_windows_and_logs(
    limit: Limit, is_shared: bool, history: list[tuple[int, int]], data: st.DataObject
) -> None:
    charged = data.draw(charges)
    in_order, now = after(limit, history, is_shared)
    shuffled, _ = after(limit, history, is_shared)

    charge(in_order, charged, now)
    charge(shuffled, data.draw(st.permutations(charged)), now)

    assert_equivalent(in_order, shuffled, now)


@given(limit=limits, is_shared=sharing, history=histories, later=st.integers(0, 50))
@quick
def test_checks_that_are_charged_elsewhere_oldest_first_leave_what_they_left_at_home(
    limit: Limit, is_shared: bool, history: list[tuple[int, int]], later: int
) -> None:
    home, elsewhere = engine_of(limit, is_shared), engine_of(limit, is_shared)
    admitted = [(cost, at) for at, cost in history if ask(home, cost, at).codes[0] <= 1]
    now = (history[-1][0] if history else 0) + later

    charge(elsewhere, [(units, now - at) for units, at in admitted], now)

    assert_equivalent(elsewhere, home, now)


@given(limit=limits, history=histories, split=st.integers(0, 20))
@quick
def test_both_sides_of_a_split_count_when_one_is_charged_to_the_other(
    limit: Limit, history: list[tuple[int, int]], split: int
) -> None:
    one, now = after(limit, history[:split])
    other = engine_of(limit)
    admitted = [(cost, at) for at, cost in history[split:] if ask(other, cost, at).codes[0] <= 1]
    now = max(now, history[-1][0] if history else 0)
    alone = one.used(KEY, now), other.used(KEY, now)

    charge(one, [(units, now - at) for units, at in admitted], now)

    assert max(alone) <= one.used(KEY, now)
    assert one.used(KEY, now) <= alone[0] + sum(units for units, _ in admitted)


def test_a_lease_that_was_charged_ends_with_its_time_and_lets_others_go_first() -> None:
    engine = engine_of(Limit(5, 100, Algorithm.CONCURRENCY))
    ask(engine, 1, 50)

    engine.charge([KEY], [2], [60], 60)

    assert [engine.used(KEY, now) for now in (60, 99, 100, 149, 150)] == [3, 3, 1, 1, 0]


def test_charges_by_a_carried_limit_need_no_rule() -> None:
    limit = Limit(5, 100, Algorithm.FIXED_WINDOW)
    engine = engine_of(limit)

    engine.charge([UNKNOWN, KEY], [2, 1], [0, 0], 0, limits=[limit], which=[1, 0])
    engine.charge([UNKNOWN, UNKNOWN + b"2"], [1, 1], [0, 0], 0)

    assert engine.used(UNKNOWN, 0) == 3
    assert sorted(engine.keys()) == sorted([KEY, UNKNOWN])


def test_a_charge_by_a_carried_limit_converts_the_counter_as_a_check_does() -> None:
    engine = engine_of(Limit(5, 100, Algorithm.FIXED_WINDOW))
    ask(engine, 2, 0)
    log = Limit(9, 100, Algorithm.SLIDING_WINDOW_LOG)

    engine.charge([KEY], [3], [0], 10, limits=[log], which=[1])

    assert engine.snapshot([KEY], 10).limits == [log]
    assert engine.used(KEY, 109) == 5


def test_negative_numbers_and_columns_of_different_lengths_are_refused() -> None:
    engine = engine_of(Limit(5, 100))

    for units, ages_ns in (([-1], [0]), ([1], [-1]), ([1, 1], [0]), ([1], [])):
        with pytest.raises(ValueError, match=r"charge|zip"):
            engine.charge([KEY], units, ages_ns, 0)
    assert engine.used(KEY, 0) == 0


def test_charges_keep_to_the_bound_on_keys() -> None:
    engine = Engine(max_keys=20)
    engine.set_rules({0: EngineRule(Limit(5, 100))})

    engine.charge([KEY + b"%d" % number for number in range(50)], [1] * 50, [0] * 50, 0)

    assert len(engine) <= 20


def engine_of(limit: Limit, is_shared: bool = False) -> Engine:
    engine = Engine(max_keys=1_000)
    engine.set_rules({0: EngineRule(limit, is_shared=is_shared)})
    return engine


def after(
    limit: Limit, history: Sequence[tuple[int, int]], is_shared: bool = False
) -> tuple[Engine, int]:
    """An engine that has seen the history, and the instant of its last check."""
    engine = engine_of(limit, is_shared)
    for now, cost in history:
        ask(engine, cost, now)
    return engine, history[-1][0] if history else 0


def ask(engine: Engine, cost: int, now: int) -> Outcomes:
    return engine.decide([KEY], [cost], [], [], [], now)


def charge(engine: Engine, charged: Sequence[tuple[int, int]], now: int) -> None:
    units, ages_ns = [units for units, _ in charged], [age_ns for _, age_ns in charged]
    engine.charge([KEY] * len(charged), units, ages_ns, now)


def assert_equivalent(left: Engine, right: Engine, now: int) -> None:
    """Both answer alike, now and at every instant until both are at rest, spending as they go."""
    for instant in range(now, now + 100, 3):
        for cost in (0, 1):
            answers = [replace(ask(engine, cost, instant), leases=[]) for engine in (left, right)]
            assert answers[0] == answers[1]
