import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgpack import packb, unpackb

from ringfence.limiter.limit import NS_PER_SECOND, Algorithm, Calendar, Limit
from ringfence.wire.codecs.limit_codec import read_limit, write_limit
from ringfence.wire.errors import BadMessage

HOUR = 3600 * NS_PER_SECOND

sizes = st.fixed_dictionaries(
    {
        "amount": st.integers(1, 2**53 - 1),
        "period_ns": st.integers(1, 366 * 24).map(lambda hours: hours * HOUR),
        "soft_permille": st.integers(0, 10_000),
    }
)
limits = st.one_of(
    st.builds(
        lambda size, algorithm: Limit.of_ns(**size, algorithm=algorithm),
        sizes,
        st.sampled_from(Algorithm),
    ),
    st.builds(
        lambda size, burst, queue: Limit.of_ns(
            **{**size, "amount": 100}, algorithm=Algorithm.LEAKY_BUCKET, burst=burst, queue=queue
        ),
        sizes,
        st.integers(1, 500) | st.none(),
        st.booleans(),
    ),
    st.builds(
        lambda size, slots: Limit.of_ns(**size, slots=slots), sizes, st.sampled_from([1, 2, 60])
    ),
    st.builds(
        lambda size: Limit.of_ns(**size, algorithm=Algorithm.FIXED_WINDOW, first_hit=True), sizes
    ),
    st.builds(
        lambda size, calendar, timezone: Limit.of_ns(
            **size, algorithm=Algorithm.FIXED_WINDOW, calendar=calendar, timezone=timezone
        ),
        sizes,
        st.sampled_from(Calendar),
        st.sampled_from(["UTC", "Europe/Berlin"]),
    ),
)


@given(limit=limits)
def test_reading_a_written_limit_returns_an_equal_limit(limit):
    assert read_limit(unpackb(packb(write_limit(limit))), "field") == limit


def test_a_limit_with_default_settings_has_two_fields():
    assert write_limit(Limit.of_ns(100, HOUR)) == [100, HOUR]


def test_trailing_fields_with_default_values_are_omitted():
    limit = Limit.of_ns(100, HOUR, Algorithm.TOKEN_BUCKET, burst=20)

    assert write_limit(limit) == [100, HOUR, 1, 20]


def test_trailing_fields_with_default_values_are_accepted():
    wire = [100, HOUR, 0, None, False, 1, None, "UTC", 0, False]

    assert read_limit(wire, "field") == Limit.of_ns(100, HOUR)


@pytest.mark.parametrize("field", range(10))
@pytest.mark.parametrize("value", [True, -1, 1.0, b"", [], {}, 2**64 - 1, "Mars/Olympus\0"])
def test_an_invalid_field_of_a_limit_is_rejected(field, value):
    wire = [100, HOUR, 0, None, False, 1, None, "UTC", 0, False]
    read_limit([*wire], "field")  # A cached limit must not hide an invalid, equal value.
    if field == 4 and value is True:
        wire[2] = 1  # A token bucket has no queue.
    wire[field] = value

    with pytest.raises(BadMessage, match="field"):
        read_limit(wire, "field")


@pytest.mark.parametrize("wire", [None, 5, "100/minute", {}, [], [100], [1] * 11])
def test_a_limit_must_be_an_array_of_two_to_ten_fields(wire):
    with pytest.raises(BadMessage, match="field must be"):
        read_limit(wire, "field")


@given(timezone=st.text(max_size=12) | st.sampled_from(["", ".", "/", "..", "Europe", "a/../b"]))
def test_any_text_is_a_time_zone_or_is_rejected(timezone):
    wire = [100, HOUR, 3, None, False, 1, 0, timezone]

    try:
        limit = read_limit(wire, "field")
    except BadMessage as error:
        assert error.reason == "field must be a limit whose fields agree"  # noqa: PT017
    else:
        assert limit.timezone == timezone
