"""Shared counters across transfers and changed rules."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringfence.limiter import (
    Algorithm,
    Calendar,
    Code,
    EngineRule,
    Limit,
    Snapshot,
)
from tests.ringfence.limiter.reference.shared_sites import (
    KEY,
    NOW,
    SECOND,
    ask,
    assert_equivalent,
    engine_of,
    exchange,
    histories,
    limits,
    merge_all,
    quick,
    reported_counts,
    windows,
)


@given(limit=windows, history=histories, reported=reported_counts, later=st.integers(0, 50))
@quick
def test_a_transferred_counter_keeps_its_remote_counts(limit, history, reported, later) -> None:
    stayed, moved = engine_of(limit), engine_of(limit)
    merge_all(stayed, limit, reported)
    for now, _, cost in history:
        ask(stayed, cost, now)
    now = (history[-1][0] if history else NOW) + later

    moved.restore(stayed.snapshot([KEY], now), now)

    if stayed.used(KEY, now):
        assert moved.local_counts([KEY], now) == stayed.local_counts([KEY], now)
    assert_equivalent(moved, stayed, now)


@given(limit=limits, before=reported_counts, after=reported_counts)
@example(Limit.of_ns(2, 14, slots=2), [], [("east", [(-2, 6)]), ("west", [(-2, 1)])])
@quick
def test_remote_counts_on_both_sides_of_a_transfer_count_once(limit, before, after) -> None:
    giver, taker, stayed = engine_of(limit), engine_of(limit), engine_of(limit)
    for engine in (giver, stayed):
        ask(engine, 1, NOW)
        merge_all(engine, limit, before)
    for engine in (taker, stayed):
        merge_all(engine, limit, after)

    taker.restore(giver.snapshot([KEY], NOW), NOW)

    assert_equivalent(taker, stayed)
    merge_all(taker, limit, before + after)
    assert taker.used(KEY, NOW) >= 1


def test_a_snapshot_without_remote_counts_has_an_empty_column() -> None:
    engine = engine_of(Limit.of_ns(9, 10, Algorithm.FIXED_WINDOW))
    ask(engine, 2, NOW)

    assert engine.snapshot([KEY], NOW) == Snapshot(
        [KEY], [[100, 2]], [Limit.of_ns(9, 10, Algorithm.FIXED_WINDOW)], [0], []
    )


@given(
    limit=limits,
    other=limits,
    is_shared=st.booleans(),
    reported=reported_counts,
    spent=st.integers(0, 5),
)
@quick
def test_a_changed_rule_keeps_all_counts_or_those_of_its_data_center(
    limit, other, is_shared, reported, spent
) -> None:
    now = NOW * limit.period_ns
    engine, alone = engine_of(limit), engine_of(limit)
    merge_all(engine, limit, reported, now)
    is_spent = ask(engine, spent, now).codes[0] == Code.ALLOWED.value
    ask(alone, spent if is_spent else 0, now)
    before = (engine if is_shared else alone).used(KEY, now)

    engine.set_rules({0: EngineRule(other, is_shared=is_shared)})
    ask(engine, 0, now)

    assert engine.used(KEY, now) == before


@pytest.mark.parametrize(
    "algorithm", [Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW, Algorithm.TOKEN_BUCKET]
)
def test_a_limit_that_is_not_shared_for_a_time_counts_no_unit_twice(algorithm) -> None:
    """Otherwise each data center would then count the units of all as its own."""
    limit = Limit.of_ns(1000, 1000, algorithm)
    sites = [engine_of(limit) for _ in range(3)]
    for site, units in zip(sites, (200, 100, 50), strict=True):
        ask(site, units, NOW)
    exchange(sites, NOW)
    assert [site.used(KEY, NOW) for site in sites] == [350] * 3

    for site in sites:
        site.set_rules({0: EngineRule(limit, is_shared=False)})
    assert [ask(site, 0, NOW).remaining for site in sites] == [[800], [900], [950]]
    for site in sites:
        site.set_rules({0: EngineRule(limit, is_shared=True)})
    exchange(sites, NOW)

    assert [ask(site, 0, NOW).remaining for site in sites] == [[650]] * 3


@given(limit=limits, history=histories)
@quick
def test_sharing_a_rule_changes_no_counts(limit, history) -> None:
    alone, joined = engine_of(limit, is_shared=False), engine_of(limit, is_shared=False)
    for now, _, cost in history:
        ask(alone, cost, now)
        ask(joined, cost, now)
    now = history[-1][0] if history else NOW

    joined.set_rules({0: EngineRule(limit, is_shared=True)})

    assert sum(joined.local_counts([KEY], now)[0][1::2]) >= joined.used(KEY, now)
    assert_equivalent(joined, alone, now)


def test_a_new_amount_keeps_counts_by_data_center() -> None:
    limit = Limit.of_ns(9, 10, Algorithm.FIXED_WINDOW)
    engine = engine_of(limit)
    ask(engine, 2, NOW)
    engine.merge_remote("east", [KEY], [[100, 3]], NOW)

    engine.set_rules({0: EngineRule(replace(limit, amount=20), is_shared=True)})
    engine.merge_remote("east", [KEY], [[100, 4]], NOW)

    assert engine.local_counts([KEY], NOW) == [[100, 2]]
    assert ask(engine, 0, NOW).remaining == [14]


def test_counts_of_other_windows_are_converted_but_not_listed() -> None:
    engine = engine_of(Limit.of_ns(9, 10, Algorithm.FIXED_WINDOW))
    ask(engine, 2, NOW)
    engine.merge_remote("east", [KEY], [[100, 3]], NOW)

    engine.set_rules({0: EngineRule(Limit.of_ns(9, 50, slots=5), is_shared=True)})

    assert engine.local_counts([KEY], NOW) == [[]]
    assert engine.used(KEY, NOW) == 5


def test_calendar_windows_are_numbered_by_their_first_second() -> None:
    daily = Limit.of_ns(
        9,
        86_400 * SECOND,
        Algorithm.FIXED_WINDOW,
        calendar=Calendar.DAY,
        timezone="America/New_York",
    )
    midnight, next_midnight = 1_699_156_800, 1_699_246_800  # A day of 25 hours.
    now = (midnight + 3600) * SECOND
    engine = engine_of(daily)
    ask(engine, 2, now)
    cells = [midnight - 86_400, 8, midnight, 3, midnight + 1, 8, next_midnight, 4]

    assert engine.local_counts([KEY], now) == [[midnight, 2]]
    assert engine.merge_remote("east", [KEY], [cells], now) == 1
    assert engine.used(KEY, now) == 5
    assert engine.used(KEY, next_midnight * SECOND) == 4


@pytest.mark.parametrize(("ahead", "refused"), [(0, 0), (1, 0), (2, 1)])
def test_a_transferred_bucket_may_have_counts_of_the_next_period(ahead: int, refused: int) -> None:
    limit = Limit.of_ns(10, 100, Algorithm.TOKEN_BUCKET)
    engine = engine_of(limit)
    number = NOW // 100 + ahead

    snapshot = Snapshot([KEY], [[3, 0, number, 2]], [limit], [0], [])

    assert engine.restore(snapshot, NOW) == refused
    assert engine.local_counts([KEY], NOW) == ([[]] if refused else [[number, 2]])
    assert engine.used(KEY, NOW) == (0 if refused else 3)


def test_counts_of_earlier_periods_do_not_limit_the_counts_of_later_ones() -> None:
    limit = Limit.of_ns(2**53 - 1, 100, Algorithm.TOKEN_BUCKET)
    engine = engine_of(limit)
    for number in range(10, 210):
        ask(engine, limit.amount, number * 100)

    counts = [208, limit.amount, 209, limit.amount]
    assert engine.local_counts([KEY], 20_900) == [counts]


@pytest.mark.parametrize(
    ("limit", "own"),
    [
        (Limit.of_ns(10, 100, Algorithm.FIXED_WINDOW), 0),
        (Limit.of_ns(10, 100, slots=4), 3 * 8),
        (Limit.of_ns(1000, 100, slots=4), 3 * 40),
        (Limit.of_ns(10, 100, Algorithm.TOKEN_BUCKET), 0),
    ],
)
def test_each_remote_count_has_100_bytes(limit: Limit, own: int) -> None:
    engine, current = engine_of(limit), NOW // (limit.period_ns // limit.slots)
    ask(engine, 1, NOW)
    assert engine.bytes_in_use == 400 + own

    engine.merge_remote("east", [KEY], [[current, 1]], NOW)
    engine.merge_remote("west", [KEY], [[current, 1, current + 1, 1]], NOW)

    assert engine.bytes_in_use == 400 + own + 300


@pytest.mark.parametrize("is_shared", [False, True])
def test_counts_of_a_shared_rule_can_be_restored_where_the_rule_is_not_shared(
    *, is_shared: bool
) -> None:
    bucket = Limit.of_ns(10, 100, Algorithm.TOKEN_BUCKET)
    window = Limit.of_ns(10, 100, Algorithm.FIXED_WINDOW)
    for limit, state, remote in (
        (bucket, [3, 0], []),
        (bucket, [3, 0, 10, 2], []),
        (bucket, [3, 0, 10, 2], [{"east": [10, 1]}]),
        (window, [10, 2], [{"east": [10, 1]}]),
    ):
        engine = engine_of(limit, is_shared=is_shared)

        assert engine.restore(Snapshot([KEY], [state], [limit], [0], remote), NOW) == 0

        assert engine.used(KEY, NOW) == 3
        assert engine.remote_counts("east", [KEY], NOW) == [[10, 1] if remote else []]
        has_own_part = not is_shared and (bool(remote) or len(state) > 2)
        assert ask(engine, 1, NOW).remaining == [7 if has_own_part else 6]
        has_counts = is_shared and (limit is window or len(state) > 2)
        own = [10, 3] if has_counts else [10, 1] if is_shared else []
        assert engine.local_counts([KEY], NOW) == [own]


@pytest.mark.parametrize("algorithm", [Algorithm.TOKEN_BUCKET, Algorithm.FIXED_WINDOW])
def test_a_refund_reduces_the_count_of_its_period(algorithm: Algorithm) -> None:
    engine = engine_of(Limit.of_ns(10, 100, algorithm))
    ask(engine, 5, 1010)
    assert engine.local_counts([KEY], 1010) == [[10, 5]]

    for cost, left in ((2, [10, 3]), (1, [10, 2]), (9, [])):
        engine.refund([KEY], [cost], [0], [], [], [], 1010)
        assert engine.local_counts([KEY], 1010) == [left]


def test_a_refund_of_a_bucket_reduces_the_count_of_an_earlier_period() -> None:
    engine = engine_of(Limit.of_ns(10, 100, Algorithm.TOKEN_BUCKET))
    ask(engine, 5, 1090)
    ask(engine, 4, 1110)

    engine.refund([KEY], [2], [20], [], [], [], 1110)

    assert engine.local_counts([KEY], 1110) == [[10, 3, 11, 4]]
