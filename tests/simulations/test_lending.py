"""Leases of a hot key admit no more than checks do, despite loss, delay and crashes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter import NS_PER_SECOND, Algorithm, Limit
from simulations.lending import LendingWorld, replayed

MS = 1_000_000
LARGEST = 200
"""Units of the largest check; it counts as excess as a whole if a part of it is excess."""
LIMITS = [
    Limit.of_ns(20_000, 20 * NS_PER_SECOND, Algorithm.TOKEN_BUCKET),
    Limit.of_ns(20_000, 20 * NS_PER_SECOND, Algorithm.TOKEN_BUCKET, burst=7000),
    Limit.of_ns(20_000, 20 * NS_PER_SECOND, Algorithm.LEAKY_BUCKET),
    Limit.of_ns(20_000, 20 * NS_PER_SECOND, Algorithm.FIXED_WINDOW),
    Limit.of_ns(20_000, 20 * NS_PER_SECOND, Algorithm.FIXED_WINDOW, first_hit=True),
    Limit.of_ns(20_000, 20 * NS_PER_SECOND, Algorithm.SLIDING_WINDOW),
    Limit.of_ns(20_000, 20 * NS_PER_SECOND, Algorithm.SLIDING_WINDOW, slots=4),
    Limit.of_ns(20_000, 20 * NS_PER_SECOND, Algorithm.SLIDING_WINDOW_LOG),
]
checks = st.tuples(
    st.integers(0, 3), st.sampled_from([1, 10, 10, 200]), st.integers(20, 100), st.integers(0, 40)
)


def spend(world, steps):
    """Check several times at each borrower, then advance the time."""
    for borrower, cost, times, pause_ms in steps:
        for _ in range(times):
            world.check(borrower, cost)
            world.run_until(world.now + 500_000)
        world.run_until(world.now + pause_ms * pause_ms * MS)


@settings(deadline=None, max_examples=20)
@given(
    limit=st.sampled_from(LIMITS),
    seed=st.integers(0, 10**6),
    loss=st.sampled_from([0.0, 0.1, 0.5]),
    steps=st.lists(checks, min_size=5, max_size=20),
)
def test_leases_admit_only_units_that_a_check_would_admit(limit, seed, loss, steps):
    world = LendingWorld(seed, limit, loss=loss)
    spend(world, steps)

    assert replayed(limit, world.admitted) == 0


@settings(deadline=None, max_examples=20)
@given(
    limit=st.sampled_from([limit for limit in LIMITS if not limit.first_hit]),
    seed=st.integers(0, 10**6),
    before=st.lists(checks, min_size=5, max_size=12),
    after=st.lists(checks, min_size=5, max_size=12),
)
def test_a_crash_admits_at_most_units_since_the_last_replication(limit, seed, before, after):
    world = LendingWorld(seed, limit)
    spend(world, before)
    world.crash()
    spend(world, after)

    assert replayed(limit, world.admitted) <= world.unsaved + LARGEST


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    before=st.lists(checks, min_size=5, max_size=12),
    after=st.lists(checks, min_size=5, max_size=12),
    amount=st.sampled_from([0, 5000, 40_000]),
)
def test_when_the_limit_changes_no_window_admits_more_than_the_larger_one(
    seed, before, after, amount
):
    limit = Limit.of_ns(20_000, 20 * NS_PER_SECOND, Algorithm.FIXED_WINDOW)
    changed = Limit.of_ns(amount, 20 * NS_PER_SECOND, Algorithm.FIXED_WINDOW)
    world = LendingWorld(seed, limit)
    spend(world, before)
    changed_at = world.now
    world.change_limit(changed)
    spend(world, after)

    for window, units in by_window(limit, world.admitted).items():
        is_after = window * limit.period_ns > changed_at + NS_PER_SECOND
        assert units <= (amount if is_after else max(20_000, amount))


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_a_hot_key_is_decided_mostly_by_its_borrowers(limit):
    large = Limit.of_ns(
        *(limit.amount * 100, limit.period_ns, limit.algorithm),
        slots=limit.slots,
        first_hit=limit.first_hit,
    )
    world = LendingWorld(1, large, loss=0.0)
    spend(world, [(number % 4, 1, 60, 1) for number in range(800)])

    by_lease = sum(each.units for each in world.admitted if each.by_lease)
    assert by_lease > 0.7 * len(world.admitted)


def test_near_the_limit_nothing_is_lent():
    world = LendingWorld(1, Limit.of_ns(30, 60 * NS_PER_SECOND, Algorithm.FIXED_WINDOW), loss=0.0)
    spend(world, [(0, 1, 20, 10), (1, 1, 20, 10)])

    assert world.lent() == 0
    assert sum(each.units for each in world.admitted) == 30


@settings(deadline=None, max_examples=20)
@given(
    limit=st.sampled_from(LIMITS),
    seed=st.integers(0, 10**6),
    loss=st.sampled_from([0.0, 0.1, 0.5]),
    before=st.lists(checks, min_size=5, max_size=12),
    after=st.lists(checks, min_size=5, max_size=12),
)
def test_leases_admit_no_more_units_after_a_reset_than_a_new_counter(
    limit, seed, loss, before, after
):
    world = LendingWorld(seed, limit, loss=loss)
    spend(world, before)
    world.reset()
    spend(world, after)
    world.run_until(world.now + NS_PER_SECOND)

    [admitted_before] = world.resets
    assert replayed(limit, world.admitted[:admitted_before]) == 0
    assert replayed(limit, world.admitted[admitted_before:]) == 0


def test_units_that_leases_spent_before_a_reset_do_not_count_after_it():
    limit = Limit.of_ns(10_000, 60 * NS_PER_SECOND, Algorithm.FIXED_WINDOW)
    world = LendingWorld(1, limit, loss=0.0)
    spend(world, [(number % 4, 1, 60, 1) for number in range(30)])
    before = world.lent()
    world.reset()
    world.run_until(world.now + NS_PER_SECOND)
    after = [world.check(0) for _ in range(10_001)]

    assert before > 0
    assert world.lent() == 0
    assert after == [True] * 10_000 + [False]


def by_window(limit, admitted):
    units = {}
    for each in admitted:
        window = each.at // limit.period_ns
        units[window] = units.get(window, 0) + each.units
    return units
