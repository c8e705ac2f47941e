import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import ConfigError
from ringfence.limiter.limit import NS_PER_SECOND
from ringfence.rules.periods import (
    UNIT_NS,
    format_period,
    format_share,
    parse_period,
    parse_share,
    suggest,
    unit_named,
    unit_of,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("15m", 900), (" 2 hours ", 7200), ("1.5h", 5400), ("1_000 s", 1000)],
)
def test_a_period_is_parsed(text, seconds):
    assert parse_period(text) == seconds * NS_PER_SECOND


@pytest.mark.parametrize("text", ["", "s", "-1s", "1e3", "0", "0.1 ns", "1 blink", "9" * 200])
def test_an_invalid_period_is_rejected_with_a_fix(text):
    with pytest.raises(ConfigError, match=";"):
        parse_period(text)


@given(period_ns=st.integers(1, 10**18))
def test_parsing_a_formatted_period_returns_the_same_period(period_ns):
    written = format_period(period_ns)

    assert parse_period(written if written[0].isdigit() else f"1 {written}") == period_ns


@given(permille=st.integers(0, 10**6))
def test_parsing_a_formatted_share_returns_the_same_share(permille):
    assert parse_share(format_share(permille)) == permille


@pytest.mark.parametrize("text", ["", "10", "-10%", "0.05%", "10%%", "1" * 200 + "%"])
def test_an_invalid_percentage_is_rejected_with_a_fix(text):
    with pytest.raises(ConfigError, match=";"):
        parse_share(text)


def test_units_have_short_and_plural_names_in_any_case():
    words = ["S", "secs", "Minutes", "min", "hrs", "D", "weeks", "Month", "y", "ms"]

    assert [unit_named(word) for word in words] == [
        *("second", "second", "minute", "minute", "hour", "day", "week", "month", "year"),
        "millisecond",
    ]
    assert unit_named("sols") is None


def test_a_length_of_exactly_one_unit_has_the_name_of_the_unit():
    assert [unit_of(length) for length in UNIT_NS.values()] == list(UNIT_NS)
    assert unit_of(90 * NS_PER_SECOND) == ""


def test_an_unknown_word_gets_the_nearest_known_word_or_all_known_words():
    assert suggest("Minuet", UNIT_NS) == "did you mean 'minute'?"
    assert suggest("blink", ["day", "hour"]) == "use one of: day, hour"
