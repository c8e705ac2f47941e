"""Time-outs by observed round trips, and the budget of second asks."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.peering.link.round_trips import HedgingBudget, RoundTrips

SECONDS = st.floats(0.0, 10.0, allow_nan=False)


def test_before_the_first_sample_the_time_out_is_the_longest() -> None:
    assert RoundTrips().timeout(0.01, 0.5) == 0.5
    assert RoundTrips().mean is None


def test_it_computes_what_rfc_6298_says() -> None:
    trips = RoundTrips()
    trips.sample(0.1)
    assert trips.timeout(0.0, inf) == pytest.approx(0.1 + 4 * 0.05)

    trips.sample(0.2)

    deviation = 0.75 * 0.05 + 0.25 * 0.1
    assert trips.mean == pytest.approx(0.875 * 0.1 + 0.125 * 0.2)
    assert trips.timeout(0.0, inf) == pytest.approx(0.1125 + 4 * deviation)


def test_even_round_trips_leave_a_margin() -> None:
    trips = RoundTrips()
    for _ in range(200):
        trips.sample(0.05)
    assert trips.timeout(0.01, 0.5) == pytest.approx(0.06)


def test_what_expires_doubles_the_time_out_until_the_next_sample() -> None:
    trips = RoundTrips()
    trips.sample(0.01)
    before = trips.timeout(0.01, inf)
    trips.expire()
    trips.expire()
    assert trips.timeout(0.01, inf) == pytest.approx(4 * before)
    trips.sample(0.01)
    assert trips.timeout(0.01, inf) <= before


@given(st.lists(SECONDS), st.integers(0, 100), st.floats(0.0, 1.0), st.floats(0.0, 5.0))
def test_the_time_out_stays_within_its_bounds(
    samples: list[float], expiries: int, least: float, most: float
) -> None:
    trips = RoundTrips()
    for sample in samples:
        trips.sample(sample)
    for _ in range(expiries):
        trips.expire()
    timeout = trips.timeout(least, most)
    assert timeout <= most
    assert timeout >= min(most, least)
    if trips.mean is not None:
        assert timeout >= min(most, trips.mean)


@given(SECONDS, SECONDS)
def test_it_settles_at_a_new_round_trip_time(before: float, after: float) -> None:
    trips = RoundTrips()
    trips.sample(before)
    for _ in range(300):
        trips.sample(after)
    assert trips.mean == pytest.approx(after, abs=1e-6)
    assert trips.timeout(0.0, inf) == pytest.approx(after, abs=1e-6)


def test_a_budget_has_its_burst_at_once_and_then_a_share_of_the_checks() -> None:
    budget = HedgingBudget(share=0.02, burst=3)
    assert [budget.take(1) for _ in range(4)] == [True, True, True, False]
    budget.checks += 49
    assert not budget.take(1)
    budget.checks += 1
    assert budget.take(1)
    assert not budget.take(1)


def test_a_batch_is_asked_twice_as_a_whole_or_not_at_all() -> None:
    budget = HedgingBudget(share=0.02, burst=3)
    assert not budget.take(4)
    assert budget.take(3)


def test_a_budget_that_was_reset_is_as_new() -> None:
    budget = HedgingBudget(share=0.02, burst=3)
    budget.checks = 64
    assert budget.take(3)
    budget.reset()
    assert (budget.checks, budget.taken) == (0, 0)
    assert budget.take(3)
    assert not budget.take(1)


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 20)), max_size=50),
    st.floats(0.0, 0.1),
    st.integers(0, 16),
)
def test_no_more_than_the_burst_and_the_share_are_ever_taken(
    steps: list[tuple[int, int]], share: float, burst: int
) -> None:
    budget = HedgingBudget(share, burst)
    taken = 0
    for checks, wanted in steps:
        budget.checks += checks
        if budget.take(wanted):
            taken += wanted
        assert taken == budget.taken <= burst + share * budget.checks + 1e-6
