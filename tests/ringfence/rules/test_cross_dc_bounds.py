"""Bounds on how far several data centers together can exceed a limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.limiter import NS_PER_SECOND, Algorithm, Limit
from ringfence.rules.cross_dc_bounds import SHORTEST_NS, cross_dc_bounds, exceeding, shortest_ns

MS = NS_PER_SECOND // 1000
MINUTE = 60 * NS_PER_SECOND
LIMIT = Limit.of_ns(600, MINUTE)
SCOPES = ("global", "split", "home")

limits = st.builds(
    Limit.of_ns,
    amount=st.integers(0, 10**6),
    period_ns=st.integers(1, 10**6).map(lambda ms: ms * MS),
    algorithm=st.sampled_from([Algorithm.SLIDING_WINDOW, Algorithm.TOKEN_BUCKET]),
    soft_permille=st.integers(0, 500),
)
datacenters = st.integers(1, 20)
rtts = st.integers(0, 1000).map(lambda ms: ms * MS)
demands = st.floats(0, 1000)


@pytest.mark.parametrize(
    ("datacenters", "demand", "staleness_ms", "seconds", "percent"),
    [
        (3, 2, 300, 1, 40),
        (3, 2, 300, 10, 4),
        (3, 2, 300, 60, 0.67),
        (3, 10, 300, 60, 3.3),
        (5, 10, 500, 3600, 0.11),
    ],
)
def test_under_even_load_the_excess_is_what_other_data_centers_admit_during_the_delay(
    datacenters, demand, staleness_ms, seconds, percent
):
    limit = Limit.of_ns(10**9, seconds * NS_PER_SECOND)
    unsent = (datacenters - 1) * limit.amount // 100

    excess = exceeding(limit, datacenters, staleness_ms * MS, demand) - unsent

    assert 100 * excess / limit.amount == pytest.approx(percent, rel=0.02)


def test_the_bound_adds_remote_admissions_and_unsent_counts():
    # The staleness is 220 ms for a round, 40 ms for the link and 20 ms in queues.
    bounds = cross_dc_bounds(LIMIT, "global", 3, 80 * MS, 2.0)

    assert bounds.staleness_ns == 280 * MS
    assert (bounds.bound, bounds.ceiling) == (600 + 2 * (2 + 6), 1800)
    assert bounds.reason == (
        "Counts of others are up to 280 ms old: at 2 times the limit the 2 other data centers each "
        "admit up to 2 in that time, and may not have sent 6."
    )


def test_a_bucket_is_bounded_by_its_size():
    bounds = cross_dc_bounds(
        Limit.of_ns(5, NS_PER_SECOND, Algorithm.TOKEN_BUCKET, burst=200), "global", 2, 0, 1
    )

    assert (bounds.bound, bounds.ceiling) == (200 + 1 + 2, 400)


def test_rounds_wait_for_each_other_when_the_round_trip_is_too_long():
    quick, slow = (cross_dc_bounds(LIMIT, "global", 2, rtt * MS, 2.0) for rtt in (140, 141))

    assert quick.staleness_ns == (220 + 70 + 20) * MS
    assert slow.staleness_ns == pytest.approx((220 + 141 + 40 + 70.5 + 20) * MS)


@pytest.mark.parametrize("rtt_ms", [0, 80, 300])
def test_a_period_below_twenty_times_the_staleness_is_too_short(rtt_ms):
    least = shortest_ns(rtt_ms * MS)
    long = Limit.of_ns(600, least)

    assert least >= SHORTEST_NS
    assert not cross_dc_bounds(long, "global", 2, rtt_ms * MS, 2.0).is_too_short
    assert cross_dc_bounds(Limit.of_ns(600, least - 1), "global", 2, rtt_ms * MS, 2.0).is_too_short


@pytest.mark.parametrize("scope", SCOPES)
def test_the_bound_of_a_single_data_center_is_the_limit(scope):
    bounds = cross_dc_bounds(Limit.of_ns(5, NS_PER_SECOND), scope, 1, 80 * MS, 2.0)

    assert (bounds.bound, bounds.ceiling, bounds.is_too_short) == (5, 5, False)


def test_a_limit_with_a_home_data_center_is_never_exceeded():
    bounds = cross_dc_bounds(Limit.of_ns(5, NS_PER_SECOND), "home", 7, 80 * MS, 100.0)

    assert (bounds.bound, bounds.ceiling, bounds.is_too_short) == (5, 5, False)


def test_a_split_limit_is_never_exceeded_even_when_links_fail():
    bounds = cross_dc_bounds(Limit.of_ns(5, NS_PER_SECOND), "split", 7, 80 * MS, 100.0)

    assert (bounds.bound, bounds.ceiling, bounds.is_too_short) == (5, 5, False)
    assert "asks the others for more when the part is used up" in bounds.reason


def test_each_part_of_a_split_bucket_has_at_least_one_unit():
    bucket = Limit.of_ns(50, NS_PER_SECOND, Algorithm.TOKEN_BUCKET, burst=2)

    assert cross_dc_bounds(bucket, "split", 7, 0, 2.0).bound == 7


@given(limits, st.sampled_from(SCOPES), datacenters, rtts, demands)
def test_a_bound_is_between_the_limit_and_the_sum_over_all_data_centers(
    limit, scope, datacenters, rtt_ns, demand
):
    bounds = cross_dc_bounds(limit, scope, datacenters, rtt_ns, demand)

    assert limit.ceiling <= bounds.bound <= bounds.ceiling <= datacenters * limit.ceiling


@given(limits, datacenters, rtts, demands)
def test_more_demand_or_a_longer_round_trip_never_lowers_a_bound(
    limit, datacenters, rtt_ns, demand
):
    bound = cross_dc_bounds(limit, "global", datacenters, rtt_ns, demand).bound

    assert cross_dc_bounds(limit, "global", datacenters, rtt_ns + MS, demand).bound >= bound
    assert cross_dc_bounds(limit, "global", datacenters, rtt_ns, demand + 1).bound >= bound
