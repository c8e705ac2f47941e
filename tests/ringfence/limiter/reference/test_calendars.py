from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.limiter import NS_PER_SECOND, Calendar
from ringfence.limiter.reference.calendars import CalendarWindows

HOUR = 3600 * NS_PER_SECOND
ZONES = ["UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kathmandu", "Pacific/Apia"]
instants = st.integers(0, 4_000_000_000 * NS_PER_SECOND)


@given(
    unit=st.sampled_from(Calendar), zone=st.sampled_from(ZONES), other=instants, instant=instants
)
def test_windows_meet_without_gap_or_overlap(
    unit: Calendar, zone: str, other: int, instant: int
) -> None:
    windows = CalendarWindows(unit, zone)
    windows.window(other)

    start, end = windows.window(instant)

    assert start <= instant < end
    assert windows.window(start) == windows.window(end - 1) == (start, end)
    assert windows.window(end)[0] == end


@pytest.mark.parametrize(
    ("unit", "start", "end"),
    [
        (Calendar.DAY, "2024-02-29T00:00", "2024-03-01T00:00"),
        (Calendar.WEEK, "2024-02-26T00:00", "2024-03-04T00:00"),
        (Calendar.MONTH, "2024-02-01T00:00", "2024-03-01T00:00"),
        (Calendar.YEAR, "2024-01-01T00:00", "2025-01-01T00:00"),
    ],
)
def test_a_window_is_that_of_the_local_date(unit: Calendar, start: str, end: str) -> None:
    zone = "America/New_York"
    evening = at("2024-02-29T23:30", zone)

    assert CalendarWindows(unit, zone).window(evening) == (at(start, zone), at(end, zone))


@pytest.mark.parametrize(("day", "hours"), [("2024-03-31", 23), ("2024-10-27", 25)])
def test_a_day_on_which_clocks_change_is_an_hour_shorter_or_longer(day: str, hours: int) -> None:
    noon = at(f"{day}T12:00", "Europe/Berlin")

    start, end = CalendarWindows(Calendar.DAY, "Europe/Berlin").window(noon)

    assert end - start == hours * HOUR


def test_a_day_whose_midnight_is_skipped_begins_with_the_change() -> None:
    windows = CalendarWindows(Calendar.DAY, "America/Sao_Paulo")
    before = at("2018-11-03T23:59", "America/Sao_Paulo")

    _, change = windows.window(before)

    assert windows.window(change) == (change, change + 23 * HOUR)


def test_a_date_that_a_time_zone_skipped_has_no_length() -> None:
    windows = CalendarWindows(Calendar.DAY, "Pacific/Apia")
    days = [windows.window(at(f"2011-12-{day}T12:00", "Pacific/Apia")) for day in (28, 29, 31)]

    assert all(left[1] == right[0] for left, right in pairwise(days))


def at(local: str, zone: str) -> int:
    moment = datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone))
    return int(moment.astimezone(UTC).timestamp()) * NS_PER_SECOND
