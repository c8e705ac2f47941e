from dataclasses import replace

import pytest

from ringfence.errors import RingfenceError
from ringfence.limiter import NS_PER_SECOND, Algorithm, Calendar, InvalidLimit, Limit

MINUTE = 60 * NS_PER_SECOND


@pytest.mark.parametrize(
    ("field", "build"),
    [
        ("amount", lambda: Limit.of_ns(-1, MINUTE)),
        ("amount", lambda: Limit.of_ns(2**53, MINUTE)),
        ("period", lambda: Limit.of_ns(1, 0)),
        ("period", lambda: Limit.of_ns(1, -MINUTE)),
        ("period", lambda: Limit.of_ns(1, 2**62 + 1)),
        ("burst", lambda: Limit.of_ns(1, MINUTE, burst=5)),
        ("burst", lambda: Limit.of_ns(1, MINUTE, Algorithm.TOKEN_BUCKET, burst=0)),
        ("burst", lambda: Limit.of_ns(1, MINUTE, Algorithm.TOKEN_BUCKET, burst=2**53)),
        ("burst", lambda: Limit.of_ns(1, 2**60, Algorithm.TOKEN_BUCKET, burst=5)),
        ("queue", lambda: Limit.of_ns(1, MINUTE, Algorithm.TOKEN_BUCKET, queue=True)),
        ("slots", lambda: Limit.of_ns(1, MINUTE, Algorithm.SLIDING_WINDOW_LOG, slots=2)),
        ("slots", lambda: Limit.of_ns(1, MINUTE, slots=0)),
        ("slots", lambda: Limit.of_ns(1, MINUTE, slots=3601)),
        ("slots", lambda: Limit.of_ns(1, MINUTE, slots=7)),
        ("calendar", lambda: Limit.of_ns(1, MINUTE, calendar=Calendar.DAY)),
        ("first_hit", lambda: Limit.of_ns(1, MINUTE, first_hit=True)),
        (
            "first_hit",
            lambda: Limit.of_ns(
                1, MINUTE, Algorithm.FIXED_WINDOW, calendar=Calendar.DAY, first_hit=True
            ),
        ),
        ("timezone", lambda: Limit.of_ns(1, MINUTE, timezone="Mars/Olympus")),
        ("timezone", lambda: Limit.of_ns(1, MINUTE, timezone="../etc/passwd")),
        ("timezone", lambda: Limit.of_ns(1, MINUTE, timezone="Europe")),
        ("soft", lambda: Limit.of_ns(1, MINUTE, soft_permille=-1)),
        ("soft", lambda: Limit.of_ns(1, MINUTE, soft_permille=10_001)),
        ("amount", lambda: Limit(1.5, 60)),
        ("amount", lambda: Limit(True, 60)),
        ("burst", lambda: Limit(1, 60, Algorithm.TOKEN_BUCKET, burst=2.0)),
        ("slots", lambda: Limit(1, 60, slots="2")),
        ("period", lambda: Limit(1, "60")),
        ("period", lambda: Limit(1, float("inf"))),
        ("soft", lambda: Limit(1, 60, soft=True)),
    ],
)
def test_a_contradiction_is_refused_and_the_message_begins_with_the_field(field, build) -> None:
    with pytest.raises(InvalidLimit, match=f"^{field} must ") as caught:
        build()

    assert caught.value.field == field


def test_the_least_and_the_greatest_values_are_valid() -> None:
    bucket = Algorithm.TOKEN_BUCKET

    assert Limit.of_ns(2**53 - 1, 2**62).ceiling == 2**53 - 1
    assert Limit.of_ns(0, 1).ceiling == 0
    assert Limit.of_ns(1, 1, soft_permille=10_000).ceiling == 11
    assert Limit.of_ns(1, 3600, slots=3600).slots == 3600
    assert Limit.of_ns(2**53 - 1, 1, bucket, burst=2**53 - 1).ceiling == 2**53 - 1
    assert Limit.of_ns(5, MINUTE, bucket, burst=1).ceiling == 1
    assert Limit.of_ns(1, 2**60, bucket, burst=4).ceiling == 4
    assert Limit.of_ns(2, 2**60, bucket, burst=8).ceiling == 8
    assert Limit.of_ns(0, 2**62, bucket, burst=9).ceiling == 0
    for period_ns, slots in ((3601, 3601), (7200, 7200)):
        with pytest.raises(InvalidLimit, match="from 1 to 3600"):
            Limit.of_ns(1, period_ns, slots=slots)
    for amount, burst in ((1, 5), (2, 9)):
        with pytest.raises(InvalidLimit, match="refills within 146 years"):
            Limit.of_ns(amount, 2**60, bucket, burst=burst)


def test_the_ceiling_counts_burst_and_soft_margin() -> None:
    assert Limit.of_ns(100, MINUTE, soft_permille=105).ceiling == 110
    assert Limit.of_ns(5, MINUTE, Algorithm.LEAKY_BUCKET, burst=20, soft_permille=500).ceiling == 30


def test_an_amount_of_zero_allows_no_burst() -> None:
    assert Limit.of_ns(0, MINUTE, Algorithm.TOKEN_BUCKET, burst=20).ceiling == 0


def test_seconds_and_percentages_are_converted_to_exact_integers() -> None:
    limit = Limit(100, 0.1, soft=0.125)

    assert (limit.period_ns, limit.soft_permille) == (100_000_000, 125)
    assert limit == Limit.of_ns(100, 100_000_000, soft_permille=125)
    assert Limit(5, 31_536_000.001).period_ns == 31_536_000_001_000_000
    assert (Limit.of_ns(100, MINUTE, soft_permille=50).period, Limit(1, 60).soft) == (60.0, 0.0)


def test_a_limit_with_another_period_is_made_by_replace() -> None:
    limit = Limit(5, 1, Algorithm.TOKEN_BUCKET, burst=20)

    assert replace(limit, period=2.5) == Limit.of_ns(5, 2_500_000_000, limit.algorithm, burst=20)


def test_algorithms_and_calendars_are_given_by_name() -> None:
    limit = Limit(5, 86_400, "fixed_window", calendar="day")

    assert (limit.algorithm, limit.calendar) == (Algorithm.FIXED_WINDOW, Calendar.DAY)


@pytest.mark.parametrize(
    ("algorithm", "age_ms", "refund_age_ms"),
    [
        (Algorithm.SLIDING_WINDOW_LOG, 0, 0),  # The time of the charge is unknown.
        (Algorithm.SLIDING_WINDOW_LOG, 3, 53),
        (Algorithm.SLIDING_WINDOW_LOG, 7_000, 7_050),
        (Algorithm.SLIDING_WINDOW_LOG, 59_980, 60_030),  # The hits may expire on the way.
        (Algorithm.FIXED_WINDOW, 3, 3),
    ],
)
def test_refunds_from_a_log_have_an_allowance(
    algorithm: Algorithm, age_ms: int, refund_age_ms: int
) -> None:
    limit = Limit.of_ns(5, MINUTE, algorithm)

    assert limit.refund_age_ns(age_ms * 1_000_000) == refund_age_ms * 1_000_000


def test_the_allowance_of_a_short_log_depends_on_age_and_period() -> None:
    limit = Limit.of_ns(5, 100_000_000, Algorithm.SLIDING_WINDOW_LOG)

    assert limit.refund_age_ns(3_000_000) == 8_000_000
    assert limit.refund_age_ns(30_000_000) == 60_000_000


def test_the_text_of_a_limit_shows_only_unusual_settings() -> None:
    assert repr(Limit(5, 60)) == "Limit(amount=5, period=60.0)"
    bucket = Limit(5, 1, Algorithm.TOKEN_BUCKET, burst=20)
    assert repr(bucket) == "Limit(amount=5, period=1.0, algorithm='token_bucket', burst=20)"


@pytest.mark.parametrize(
    ("field", "build"),
    [
        ("amount", lambda: Limit("5", 60)),
        ("amount", lambda: Limit(True, 60)),
        ("amount", lambda: Limit(0.5, 60)),
        ("period", lambda: Limit(5, "60")),
        ("period", lambda: Limit(5, float("nan"))),
        ("period", lambda: Limit(5, float("inf"))),
        ("soft", lambda: Limit(5, 60, soft=-0.1)),
        ("slots", lambda: Limit(5, 60, slots=2.0)),
        ("algorithm", lambda: Limit(5, 60, "bucket")),
        ("calendar", lambda: Limit(5, 60, "fixed_window", calendar="moon")),
    ],
)
def test_a_field_of_another_kind_is_a_ringfence_error_that_names_it(field, build) -> None:
    with pytest.raises(RingfenceError, match=f"^{field} must be ") as caught:
        build()

    assert isinstance(caught.value, ValueError)
    assert caught.value.field == field
