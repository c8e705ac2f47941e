from email.utils import formatdate

import pytest

from ringfence.integrations._core.retry_after import RetryPauses, parse_retry_after


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("٣", None),
        ("7", 7),
        (" 7 ", 7),
        ("0", 1),
    ],
)
def test_retry_after_seconds_are_parsed_and_invalid_values_ignored(value, seconds):
    assert parse_retry_after(value) == seconds


def test_a_retry_after_date_is_converted_to_seconds(clock):
    assert parse_retry_after(formatdate(clock.seconds + 90, usegmt=True)) == pytest.approx(
        90, abs=1
    )
    assert parse_retry_after(formatdate(clock.seconds - 90, usegmt=True)) == 1


def test_a_shorter_pause_does_not_end_a_longer_one():
    pauses = RetryPauses()
    pauses.begin("a", 100.0, 10)
    pauses.begin("a", 101.0, 2)

    assert [pauses.left("a", now) for now in (101.0, 110.0, 120.0)] == [9, 0, 0]
    assert pauses.left("b", 101.0) == 0


def test_the_oldest_pauses_are_evicted_first():
    pauses = RetryPauses()
    for number in range(1001):
        pauses.begin(str(number), 0.0, 10)

    assert (pauses.left("0", 1.0), pauses.left("1", 1.0)) == (0, 9)
