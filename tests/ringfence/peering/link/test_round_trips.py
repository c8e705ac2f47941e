"""Time-outs that follow the observed round trips."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.peering.link.round_trips import RoundTrips

SECONDS = st.floats(0.0, 10.0, allow_nan=False)


def test_before_the_first_sample_the_time_out_is_the_longest() -> None:
    assert RoundTrips().timeout(0.01, 0.5) == 0.5
    assert RoundTrips().mean is None


def test_the_time_out_is_the_one_of_rfc_6298() -> None:
    trips = RoundTrips()
    trips.sample(0.1)
    assert trips.timeout(0.0, inf) == pytest.approx(0.1 + 4 * 0.05)

    trips.sample(0.2)

    deviation = 0.75 * 0.05 + 0.25 * 0.1
    assert trips.mean == pytest.approx(0.875 * 0.1 + 0.125 * 0.2)
    assert trips.timeout(0.0, inf) == pytest.approx(0.1125 + 4 * deviation)


def test_equal_round_trips_leave_a_margin() -> None:
    trips = RoundTrips()
    for _ in range(200):
        trips.sample(0.05)
    assert trips.timeout(0.01, 0.5) == pytest.approx(0.06)


def test_expiry_doubles_the_time_out_until_the_next_sample() -> None:
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
def test_the_mean_converges_to_a_new_round_trip_time(before: float, after: float) -> None:
    trips = RoundTrips()
    trips.sample(before)
    for _ in range(300):
        trips.sample(after)
    assert trips.mean == pytest.approx(after, abs=1e-6)
    assert trips.timeout(0.0, inf) == pytest.approx(after, abs=1e-6)
