from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import ConfigError
from ringfence.limiter.limit import NS_PER_SECOND, Algorithm, Calendar, InvalidLimit, Limit
from ringfence.rules import format_limit, parse_limit

SECOND = NS_PER_SECOND
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("100/minute", Limit.of_ns(100, MINUTE)),
        ("100 / Minutes", Limit.of_ns(100, MINUTE)),
        ("10/15m", Limit.of_ns(10, 15 * MINUTE)),
        ("10 per 90 sec", Limit.of_ns(10, 90 * SECOND)),
        ("7/h", Limit.of_ns(7, HOUR)),
        ("7/hr", Limit.of_ns(7, HOUR)),
        ("7/d", Limit.of_ns(7, DAY)),
        ("7/week", Limit.of_ns(7, 7 * DAY)),
        ("7/month", Limit.of_ns(7, 30 * DAY)),
        ("7/year", Limit.of_ns(7, 365 * DAY)),
        ("7/250ms", Limit.of_ns(7, SECOND // 4)),
        ("7/0.5 seconds", Limit.of_ns(7, SECOND // 2)),
        ("1_000/s", Limit.of_ns(1000, SECOND)),
        ("0/s", Limit.of_ns(0, SECOND)),
        ("5 per second burst 20", Limit.of_ns(5, SECOND, Algorithm.TOKEN_BUCKET, burst=20)),
        ("5 PER SECOND BURST 20", Limit.of_ns(5, SECOND, Algorithm.TOKEN_BUCKET, burst=20)),
        ("5/s leaky_bucket burst 20", Limit.of_ns(5, SECOND, Algorithm.LEAKY_BUCKET, burst=20)),
        ("5/s burst 20 leaky_bucket", Limit.of_ns(5, SECOND, Algorithm.LEAKY_BUCKET, burst=20)),
        ("5/s queue burst 9", Limit.of_ns(5, SECOND, Algorithm.LEAKY_BUCKET, burst=9, queue=True)),
        ("5/s burst 9 queue", Limit.of_ns(5, SECOND, Algorithm.LEAKY_BUCKET, burst=9, queue=True)),
        ("5/s meter", Limit.of_ns(5, SECOND, Algorithm.LEAKY_BUCKET)),
        ("300/3 hours sliding_window", Limit.of_ns(300, 3 * HOUR)),
        (
            "300/3 hours Sliding_Window_Log",
            Limit.of_ns(300, 3 * HOUR, Algorithm.SLIDING_WINDOW_LOG),
        ),
        ("60/minute slots 6", Limit.of_ns(60, MINUTE, slots=6)),
        ("1000 per day fixed_window", Limit.of_ns(1000, DAY, Algorithm.FIXED_WINDOW)),
        ("9/day first_hit", Limit.of_ns(9, DAY, Algorithm.FIXED_WINDOW, first_hit=True)),
        ("9/day calendar", Limit.of_ns(9, DAY, Algorithm.FIXED_WINDOW, calendar=Calendar.DAY)),
        (
            "9/month calendar timezone Europe/Berlin soft 10%",
            Limit.of_ns(
                9,
                30 * DAY,
                Algorithm.FIXED_WINDOW,
                calendar=Calendar.MONTH,
                timezone="Europe/Berlin",
                soft_permille=100,
            ),
        ),
        ("100/minute soft 12.5 %", Limit.of_ns(100, MINUTE, soft_permille=125)),
        ("20 concurrent", Limit.of_ns(20, MINUTE, Algorithm.CONCURRENCY)),
        ("20 concurrent ttl 5s", Limit.of_ns(20, 5 * SECOND, Algorithm.CONCURRENCY)),
    ],
)
def test_a_limit_string_is_parsed(text, limit):
    assert parse_limit(text) == limit
    assert parse_limit(format_limit(limit)) == limit


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (Limit.of_ns(100, MINUTE), "100/minute"),
        (
            Limit.of_ns(300, 3 * HOUR, Algorithm.SLIDING_WINDOW_LOG),
            "300/3 hours sliding_window_log",
        ),
        (Limit.of_ns(5, SECOND, Algorithm.TOKEN_BUCKET, burst=20), "5/second burst 20"),
        (Limit.of_ns(5, SECOND, Algorithm.TOKEN_BUCKET), "5/second token_bucket"),
        (Limit.of_ns(5, SECOND, Algorithm.LEAKY_BUCKET, queue=True), "5/second queue"),
        (Limit.of_ns(20, MINUTE, Algorithm.CONCURRENCY), "20 concurrent ttl 1 minute"),
        (Limit.of_ns(1, 1), "1/0.000000001s"),
    ],
)
def test_a_limit_is_formatted_in_its_short_form(limit, text):
    assert format_limit(limit) == text


@st.composite
def limits(draw):
    algorithm = draw(st.sampled_from(Algorithm))
    is_bucket = algorithm in (Algorithm.TOKEN_BUCKET, Algorithm.LEAKY_BUCKET)
    spans = {"day": DAY, "week": 7 * DAY, "month": 30 * DAY, "year": 365 * DAY}
    calendar = None
    period = draw(
        st.integers(1, 10**12)
        | st.builds(int.__mul__, st.integers(1, 400), st.sampled_from([SECOND, MINUTE, HOUR, DAY]))
    )
    if algorithm is Algorithm.FIXED_WINDOW and draw(st.booleans()):
        calendar = draw(st.sampled_from(Calendar))
        period = spans[calendar]
    slots = draw(st.integers(1, 12)) if algorithm is Algorithm.SLIDING_WINDOW else 1
    try:
        return Limit.of_ns(
            draw(st.integers(0, 2**32 - 1)),
            period * slots,
            algorithm,
            burst=draw(st.none() | st.integers(1, 10**6)) if is_bucket else None,
            queue=algorithm is Algorithm.LEAKY_BUCKET and draw(st.booleans()),
            slots=slots,
            calendar=calendar,
            timezone=draw(st.sampled_from(["UTC", "America/New_York"])) if calendar else "UTC",
            soft_permille=draw(st.sampled_from([0, 0, 1, 100, 125])),
        )
    except InvalidLimit:
        return Limit.of_ns(1, SECOND)


@given(limit=limits())
def test_parsing_a_formatted_limit_returns_the_same_limit(limit):
    assert parse_limit(format_limit(limit)) == limit


@given(text=st.text(max_size=30) | st.from_regex(r"[0-9a-z/% ._]{0,30}", fullmatch=True))
def test_any_text_is_parsed_or_raises_config_error(text):
    with suppress(ConfigError):
        parse_limit(text)


@pytest.mark.parametrize(
    ("text", "place", "fix"),
    [
        ("100/minte", "at 'minte', character 5", "did you mean 'minute'?"),
        ("", "at its end", "begin as in '100/minute'"),
        ("abc", "at 'abc', character 1", "begin as in '100/minute'"),
        ("-5/s", "at '-', character 1", "begin as in '100/minute'"),
        ("1.5/s", "at '1.5', character 1", "begin as in '100/minute'"),
        ("100", "at its end", "write '/' or 'per'"),
        ("100 perr minute", "at 'perr', character 5", "did you mean 'per'?"),
        ("20 concurent", "at 'concurent', character 4", "did you mean 'concurrent'?"),
        ("100/", "at its end", "use one of: second, minute"),
        ("100/xyzzy", "at 'xyzzy', character 5", "use one of: second, minute"),
        ("100/0s", "at 's', character 6", "use a longer period"),
        ("5/s burts 3", "at 'burts', character 5", "did you mean 'burst'?"),
        ("5/s burst", "at its end", "as in 'burst 20'"),
        ("5/s burst x", "at 'x', character 11", "as in 'burst 20'"),
        ("5/s burst 3 burst 4", "at 'burst', character 13", "keep one of them"),
        ("5/s queue meter", "at 'meter', character 11", "keep one of them"),
        ("5/s fixed_window token_bucket", "at 'token_bucket', character 18", "keep one of them"),
        ("5/s fixed_windw", "at 'fixed_windw', character 5", "did you mean 'fixed_window'?"),
        ("5/s soft 10", "at its end", "as in 'soft 10%'"),
        ("5/s soft x%", "at 'x', character 10", "as in 'soft 10%'"),
        ("5/s soft 0.01%", "0.1%", "round it"),
        ("5/s slots", "at its end", "as in 'slots 6'"),
        ("5/s timezone", "at its end", "as in 'timezone Europe/Berlin'"),
        ("5/s timezone Europe/Berlin", "calendar", "add 'calendar'"),
        ("5/hour calendar", "one day, week, month or year", "remove 'calendar'"),
        ("5/2 days calendar", "one day, week, month or year", "remove 'calendar'"),
        ("5_/s", "at '_', character 2", "write '/' or 'per'"),
        ("5 minute", "at 'minute', character 3", "write '/' or 'per' before a period, as in"),
        ("5/s 7", "at '7', character 5", "use one of: burst"),
        ("5/s;9/m", "at ';', character 4", "give several as a list, as in ['5/minute'"),
        ("5/s and 9/m", "at 'and', character 5", "give several as a list"),
        ("5 concurrent burst 3", "at 'burst', character 14", "use one of: ttl, soft"),
        ("5/s fixed_window burst 3", "burst", "token_bucket"),
        ("5/day calendar timezone Nowhere/Land", "Nowhere/Land", "IANA"),
        ("1" * 300 + "/s", "at most 200 characters", ""),
        ("1" * 30 + "/s", "character 1", "begin as in"),
        ("٣/s", "at '٣', character 1", "begin as in '100/minute'"),
    ],
)
def test_an_error_contains_the_position_and_the_fix(text, place, fix):
    with pytest.raises(ConfigError) as caught:
        parse_limit(text)

    assert place in str(caught.value)
    assert fix in str(caught.value)


@pytest.mark.parametrize("value", [5, None, b"5/minute"])
def test_a_limit_that_is_not_text_is_an_error(value):
    with pytest.raises(ConfigError, match="limit must be text such as '5/minute', got"):
        parse_limit(value)
