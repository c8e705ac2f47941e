import pytest

from ringfence.limiter import NS_PER_SECOND, Algorithm, Calendar, InvalidLimit, Limit

MINUTE = 60 * NS_PER_SECOND


@pytest.mark.parametrize(
    ("field", "build"),
    [
        ("amount", lambda: Limit(-1, MINUTE)),
        ("amount", lambda: Limit(2**53, MINUTE)),
        ("period", lambda: Limit(1, 0)),
        ("period", lambda: Limit(1, -MINUTE)),
        ("period", lambda: Limit(1, 2**62 + 1)),
        ("burst", lambda: Limit(1, MINUTE, burst=5)),
        ("burst", lambda: Limit(1, MINUTE, Algorithm.TOKEN_BUCKET, burst=0)),
        ("burst", lambda: Limit(1, MINUTE, Algorithm.TOKEN_BUCKET, burst=2**53)),
        ("burst", lambda: Limit(1, 2**60, Algorithm.TOKEN_BUCKET, burst=5)),
        ("queue", lambda: Limit(1, MINUTE, Algorithm.TOKEN_BUCKET, queue=True)),
        ("slots", lambda: Limit(1, MINUTE, Algorithm.SLIDING_WINDOW_LOG, slots=2)),
        ("slots", lambda: Limit(1, MINUTE, slots=0)),
        ("slots", lambda: Limit(1, MINUTE, slots=3601)),
        ("slots", lambda: Limit(1, MINUTE, slots=7)),
        ("align", lambda: Limit(1, MINUTE, calendar=Calendar.DAY)),
        ("first_hit", lambda: Limit(1, MINUTE, first_hit=True)),
        (
            "first_hit",
            lambda: Limit(1, MINUTE, Algorithm.FIXED_WINDOW, calendar=Calendar.DAY, first_hit=True),
        ),
        ("timezone", lambda: Limit(1, MINUTE, timezone="Mars/Olympus")),
        ("timezone", lambda: Limit(1, MINUTE, timezone="../etc/passwd")),
        ("timezone", lambda: Limit(1, MINUTE, timezone="Europe")),
        ("soft", lambda: Limit(1, MINUTE, soft_permille=-1)),
        ("soft", lambda: Limit(1, MINUTE, soft_permille=10_001)),
    ],
)
def test_a_contradiction_is_refused_and_the_message_begins_with_the_field(field, build) -> None:
    with pytest.raises(InvalidLimit, match=f"^{field}: "):
        build()


def test_the_ceiling_counts_burst_and_soft_margin() -> None:
    assert Limit(100, MINUTE, soft_permille=105).ceiling == 110
    assert Limit(5, MINUTE, Algorithm.LEAKY_BUCKET, burst=20, soft_permille=500).ceiling == 30


def test_an_amount_of_zero_leaves_nothing_of_a_burst() -> None:
    assert Limit(0, MINUTE, Algorithm.TOKEN_BUCKET, burst=20).ceiling == 0
