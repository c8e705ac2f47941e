from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ringfence.limiter import (
    Algorithm,
    Code,
    Engine,
    EngineRule,
    Limit,
    Outcome,
    compiled_tables,
)
from ringfence.limiter.serialization import MAX_UNITS
from tests.programs import require_compiled
from tests.ringfence.limiter.drawn_limits import (
    KEY,
    UNKNOWN,
    DrawnLimits,
    ask,
    engine_after,
    engine_of,
    timed_costs,
)

quick = settings(max_examples=60, deadline=None)

drawn = DrawnLimits()
windows = drawn.slotted | drawn.of(Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW_LOG)
in_flight = drawn.of(Algorithm.CONCURRENCY)
limits = windows | drawn.buckets | in_flight
histories = timed_costs(max_size=20)
charges = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 60)), max_size=6)
"""Lists of (units, age in ns)."""
sharing = st.booleans()


@given(limit=limits, is_shared=sharing, history=histories, units=st.integers(0, 30))
@quick
def test_units_charged_at_once_are_in_use_for_any_ceiling(
    limit: Limit, is_shared: bool, history: list[tuple[int, int]], units: int
) -> None:
    engine, now = engine_after(limit, history, is_shared)
    before = engine.used(KEY, now)

    engine.charge([KEY], [units], [0], now)

    assert engine.used(KEY, now) == before + units


@given(limit=limits, is_shared=sharing, history=histories, charged=charges)
@quick
def test_charges_add_at_most_the_admitted_units(
    limit: Limit, is_shared: bool, history: list[tuple[int, int]], charged: list[tuple[int, int]]
) -> None:
    engine, now = engine_after(limit, history, is_shared)
    before = engine.used(KEY, now)

    charge(engine, charged, now)

    assert before <= engine.used(KEY, now) <= before + sum(units for units, _ in charged)


@given(
    limit=windows | drawn.first_hits | in_flight,
    is_shared=sharing,
    history=histories,
    units=st.integers(1, 9),
)
@quick
def test_charges_of_expired_units_change_nothing(
    limit: Limit, is_shared: bool, history: list[tuple[int, int]], units: int
) -> None:
    """limitador#288: after a long outage, old units were counted in the current window."""
    charged, now = engine_after(limit, history, is_shared)
    untouched, _ = engine_after(limit, history, is_shared)

    charge(charged, [(units, 2 * limit.period_ns)], now)

    assert_equivalent(charged, untouched, now)


@given(limit=windows, is_shared=sharing, history=histories, data=st.data())
@quick
def test_the_order_of_charges_does_not_matter_to_windows_and_logs(
    limit: Limit, is_shared: bool, history: list[tuple[int, int]], data: st.DataObject
) -> None:
    charged = data.draw(charges)
    in_order, now = engine_after(limit, history, is_shared)
    shuffled, _ = engine_after(limit, history, is_shared)

    charge(in_order, charged, now)
    charge(shuffled, data.draw(st.permutations(charged)), now)

    assert_equivalent(in_order, shuffled, now)


@given(limit=limits, is_shared=sharing, history=histories, later=st.integers(0, 50))
@quick
def test_checks_charged_to_another_node_oldest_first_leave_an_equal_counter(
    limit: Limit, is_shared: bool, history: list[tuple[int, int]], later: int
) -> None:
    home, elsewhere = engine_of(limit, is_shared), engine_of(limit, is_shared)
    admitted = [(cost, at) for at, cost in history if ask(home, cost, at).codes[0] <= 1]
    now = (history[-1][0] if history else 0) + later

    charge(elsewhere, [(units, now - at) for units, at in admitted], now)

    assert_equivalent(elsewhere, home, now)


@given(limit=limits, history=histories, split=st.integers(0, 20))
@quick
def test_after_a_partition_one_side_can_be_charged_to_the_other(
    limit: Limit, history: list[tuple[int, int]], split: int
) -> None:
    one, now = engine_after(limit, history[:split])
    other = engine_of(limit)
    admitted = [(cost, at) for at, cost in history[split:] if ask(other, cost, at).codes[0] <= 1]
    now = max(now, history[-1][0] if history else 0)
    alone = one.used(KEY, now), other.used(KEY, now)

    charge(one, [(units, now - at) for units, at in admitted], now)

    assert max(alone) <= one.used(KEY, now)
    assert one.used(KEY, now) <= alone[0] + sum(units for units, _ in admitted)


def test_a_charged_slot_expires_at_its_time_before_later_slots() -> None:
    engine = engine_of(Limit.of_ns(5, 100, Algorithm.CONCURRENCY))
    ask(engine, 1, 50)

    engine.charge([KEY], [2], [60], 60)

    assert [engine.used(KEY, now) for now in (60, 99, 100, 149, 150)] == [3, 3, 1, 1, 0]


def test_charges_by_a_carried_limit_need_no_rule() -> None:
    limit = Limit.of_ns(5, 100, Algorithm.FIXED_WINDOW)
    engine = engine_of(limit)

    engine.charge([UNKNOWN, KEY], [2, 1], [0, 0], 0, limits=[limit], which=[1, 0])
    engine.charge([UNKNOWN, UNKNOWN + b"2"], [1, 1], [0, 0], 0)

    assert engine.used(UNKNOWN, 0) == 3
    assert sorted(engine.keys()) == sorted([KEY, UNKNOWN])


def test_a_charge_by_a_carried_limit_converts_the_counter_as_a_check_does() -> None:
    engine = engine_of(Limit.of_ns(5, 100, Algorithm.FIXED_WINDOW))
    ask(engine, 2, 0)
    log = Limit.of_ns(9, 100, Algorithm.SLIDING_WINDOW_LOG)

    engine.charge([KEY], [3], [0], 10, limits=[log], which=[1])

    assert engine.snapshot([KEY], 10).limits == [log]
    assert engine.used(KEY, 109) == 5


def test_negative_numbers_and_columns_of_different_lengths_are_refused() -> None:
    engine = engine_of(Limit.of_ns(5, 100))

    for units, ages_ns in (([-1], [0]), ([1], [-1]), ([1, 1], [0]), ([1], [])):
        with pytest.raises(ValueError, match=r"charge|zip"):
            engine.charge([KEY], units, ages_ns, 0)
    assert engine.used(KEY, 0) == 0


def test_charges_keep_to_the_bound_on_keys() -> None:
    engine = Engine(max_keys=20)
    engine.set_rules({0: EngineRule(Limit.of_ns(5, 100))})

    engine.charge([KEY + b"%d" % number for number in range(50)], [1] * 50, [0] * 50, 0)

    assert len(engine) <= 20


# -- charges that are answered ---------------------------------------------------------------------

drawn_soft = DrawnLimits(soft=st.sampled_from([0, 0, 500]))
chargeable = (
    drawn_soft.slotted
    | drawn_soft.of(Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW_LOG)
    | drawn_soft.first_hits
    | drawn_soft.buckets
)
mixed_histories = st.lists(
    st.tuples(st.integers(0, 15), st.integers(0, 9), st.booleans()), max_size=20
).map(
    lambda steps: [
        (now, cost, is_charge)
        for now, (_, cost, is_charge) in zip(
            accumulate(gap for gap, _, _ in steps), steps, strict=True
        )
    ]
)
"""Checks and charges as (now, cost, is_charge), in order of time."""


@given(limit=chargeable, is_shared=sharing, history=mixed_histories, cost=st.integers(0, 40))
@quick
def test_a_charge_counts_fully_and_returns_whether_the_limit_holds(
    limit: Limit, is_shared: bool, history: list[tuple[int, int, bool]], cost: int
) -> None:
    engine, now = engine_after_mixed(limit, history, is_shared)
    before = engine.used(KEY, now)

    reported = charge_one(engine, cost, now)

    used = engine.used(KEY, now)
    over = Code.OVERDRAWN if used > limit.ceiling else Code.OVER_SOFT
    assert used == before + cost
    assert reported.code == (Code.ALLOWED if used <= limit.hard_ceiling else over)
    assert reported.remaining == max(0, ask(engine, 0, now).remaining[0])
    assert (reported.retry_after_ns > 0) == (reported.code == Code.OVERDRAWN)


@given(limit=chargeable, is_shared=sharing, history=mixed_histories, cost=st.integers(1, 8))
@quick
def test_an_overdrawn_key_denies_each_cost_until_the_stated_instant_and_not_beyond(
    limit: Limit, is_shared: bool, history: list[tuple[int, int, bool]], cost: int
) -> None:
    engine, now = engine_after_mixed(limit, history, is_shared)
    charge_one(engine, limit.ceiling + 1, now)
    cost = min(cost, limit.ceiling)

    for asked in (0, cost):
        denied = ask(engine, asked, now).row(0)
        assert (denied.code, denied.remaining) == (Code.DENIED, 0)
        at = now + denied.retry_after_ns
        assert not ask(engine, asked, at - 1).row(0).is_admitted
    assert charge_one(engine, 0, now).retry_after_ns == ask(engine, 0, now).retry_after_ns[0]
    assert ask(engine, cost, at).row(0).is_admitted


@given(limit=chargeable, history=histories, cost=st.integers(1, 8))
@quick
def test_a_charge_within_the_limit_has_the_effect_of_a_check(
    limit: Limit, history: list[tuple[int, int]], cost: int
) -> None:
    checked, now = engine_after(limit, history)
    charged, _ = engine_after(limit, history)
    if not ask(checked, cost, now).row(0).is_admitted:
        return

    reported = charge_one(charged, cost, now)

    assert reported == replace(ask(checked, 0, now).row(0), code=reported.code, retry_after_ns=0)
    assert_equivalent(charged, checked, now)


@given(limit=chargeable, history=mixed_histories, cost=st.integers(1, 30))
@quick
def test_a_refund_at_once_undoes_a_charge(
    limit: Limit, history: list[tuple[int, int, bool]], cost: int
) -> None:
    charged, now = engine_after_mixed(limit, history)
    untouched, _ = engine_after_mixed(limit, history)

    charge_one(charged, cost, now)
    charged.refund([KEY], [cost], [], [], [], [], now)

    assert_equivalent(charged, untouched, now)


@pytest.mark.parametrize("algorithm", [each for each in Algorithm if each != "concurrency"])
def test_debt_saturates_and_never_wraps(algorithm: Algorithm) -> None:
    engine = engine_of(Limit.of_ns(1, 10**9, algorithm))

    reported = [charge_one(engine, 2**53, 10**18) for _ in range(129)][-1]

    assert engine.used(KEY, 10**18) == MAX_UNITS
    assert reported.code == Code.OVERDRAWN
    assert 0 < reported.retry_after_ns <= reported.reset_after_ns <= 2**63 - 1
    assert not ask(engine, 1, 10**18).row(0).is_admitted


def test_charges_past_a_limit_of_zero_are_counted() -> None:
    engine = engine_of(Limit.of_ns(0, 100, Algorithm.FIXED_WINDOW))

    assert charge_one(engine, 0, 0).code == Code.ALLOWED
    assert charge_one(engine, 3, 0).code == Code.OVERDRAWN
    assert engine.used(KEY, 0) == 3


def test_slots_in_flight_and_keys_of_unknown_rules_cannot_be_charged() -> None:
    engine = engine_of(Limit.of_ns(2, 100, Algorithm.CONCURRENCY))

    reported = engine.charge_now([KEY, UNKNOWN], [5, 5], [], [], 0)

    assert reported.codes == [Code.UNKNOWN_RULE, Code.UNKNOWN_RULE]
    assert engine.keys() == []


def test_a_charge_by_the_limit_of_the_rule_converts_an_older_counter() -> None:
    engine = engine_of(Limit.of_ns(5, 100, Algorithm.FIXED_WINDOW))
    ask(engine, 2, 0)
    engine.set_rules({0: EngineRule(Limit.of_ns(9, 100, Algorithm.SLIDING_WINDOW_LOG))})

    reported = charge_one(engine, 10, 10)

    assert (reported.limit, reported.code) == (9, Code.OVERDRAWN)
    assert engine.used(KEY, 109) == 12


def test_negative_charges_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        charge_one(engine_of(Limit.of_ns(5, 100)), -1, 0)


def test_charges_to_a_log_in_debt_take_a_bounded_number_of_entries() -> None:
    engine = engine_of(Limit.of_ns(10, 10**6, Algorithm.SLIDING_WINDOW_LOG))

    for now in range(0, 900_000, 100):
        engine.charge([KEY], [1], [0], now)

    state = engine.snapshot([KEY], 900_000).states[0]
    assert engine.used(KEY, 900_000) == 9_000
    assert len(state) // 2 <= 10 + 2 * 1024 + 1


@pytest.mark.parametrize("step", [7, 100, 1500])
def test_the_compiled_engine_shares_entries_of_a_log_in_debt_as_the_reference_does(
    step: int,
) -> None:
    require_compiled()
    limit = Limit.of_ns(10, 10**6, Algorithm.SLIDING_WINDOW_LOG)
    reference = engine_of(limit)
    compiled = Engine(max_keys=10, tables=compiled_tables(bytes(16), keeps_keys=True))
    compiled.set_rules({0: EngineRule(limit)})
    engines = reference, compiled

    for number in range(2500):
        now, cost = number * step, 1 + number % 3
        reported = [engine.charge_now([KEY], [cost], [], [], now) for engine in engines]
        assert reported[0] == reported[1]

    assert reference.snapshot([KEY], now) == compiled.snapshot([KEY], now)
    assert compiled.bytes_in_use < 64 * 1024


def engine_after_mixed(
    limit: Limit, history: Sequence[tuple[int, int, bool]], is_shared: bool = False
) -> tuple[Engine, int]:
    """Return an engine after a history of checks and charges, and the time of the last one."""
    engine = engine_of(limit, is_shared)
    for now, cost, is_charge in history:
        if is_charge:
            charge_one(engine, cost, now)
        else:
            ask(engine, cost, now)
    return engine, history[-1][0] if history else 0


def charge_one(engine: Engine, cost: int, now: int) -> Outcome:
    return engine.charge_now([KEY], [cost], [], [], now).row(0)


def charge(engine: Engine, charged: Sequence[tuple[int, int]], now: int) -> None:
    units, ages_ns = [units for units, _ in charged], [age_ns for _, age_ns in charged]
    engine.charge([KEY] * len(charged), units, ages_ns, now)


def assert_equivalent(left: Engine, right: Engine, now: int) -> None:
    """Assert that both decide peeks and checks alike at many instants from `now` on."""
    for instant in range(now, now + 100, 3):
        for cost in (0, 1):
            answers = [replace(ask(engine, cost, instant), slot_ids=[]) for engine in (left, right)]
            assert answers[0] == answers[1]


def test_a_charge_of_no_units_makes_no_counter() -> None:
    engine = Engine(max_keys=100)
    engine.set_rules({0: EngineRule(Limit.of_ns(5, 100))})

    engine.charge([KEY, UNKNOWN], [0, 0], [0, 0], 0, limits=[Limit.of_ns(5, 100)], which=[0, 1])
    engine.charge_now([KEY], [0], [], [], 0)

    assert len(engine) == 0


def test_charges_without_a_rule_count_where_the_key_has_a_counter() -> None:
    engine, limit = Engine(max_keys=100), Limit.of_ns(5, 100)
    other = UNKNOWN + b"2"
    engine.charge([UNKNOWN, other], [1, 0], [0, 0], 0, limits=[limit], which=[1, 1])
    engine.charge([other, UNKNOWN], [1, 2], [0, 0], 0)

    assert [engine.used(key, 0) for key in (UNKNOWN, other)] == [3, 0]
    assert len(engine) == 1


def test_a_charge_has_neither_a_delay_nor_a_slot() -> None:
    engine = Engine(max_keys=100)
    limit = Limit.of_ns(2, 100, Algorithm.FIXED_WINDOW, soft_permille=500)
    engine.set_rules({0: EngineRule(limit)})

    rows = [engine.charge_now([KEY], [cost], [], [], 0).row(0) for cost in (0, 2, 1, 1)]

    assert rows == [
        Outcome(Code.ALLOWED, 2, 3, 0, 0, 0, 0),
        Outcome(Code.ALLOWED, 2, 1, 0, 100, 0, 0),
        Outcome(Code.OVER_SOFT, 2, 0, 0, 100, 0, 0),
        Outcome(Code.OVERDRAWN, 2, 0, 100, 100, 0, 0),
    ]
