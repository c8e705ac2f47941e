"""Calendar windows: the starts of days, weeks, months and years in a time zone.

A window starts at the local midnight of its first day and ends at the start of the next window, so
days of 23 and 25 hours are correct.
"""

from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import assert_never
from zoneinfo import ZoneInfo

from ringfence.limiter.limit import NS_PER_SECOND, Calendar

__all__ = ["CalendarWindows"]


class CalendarWindows:
    """Windows of one calendar unit, such as days or months, in one time zone.

    The window of the last call is cached, since most calls are for the present time.
    """

    __slots__ = ("_latest", "_unit", "_zone")

    def __init__(self, unit: Calendar, timezone: str) -> None:
        self._unit = unit
        self._zone: tzinfo = UTC if timezone == "UTC" else ZoneInfo(timezone)
        self._latest = (0, 0)

    def window(self, now: int) -> tuple[int, int]:
        """Return the window that contains `now`: its first instant, and the start of the next
        window."""
        start, end = self._latest
        if not start <= now < end:
            day = datetime.fromtimestamp(now // NS_PER_SECOND, self._zone).date()
            first, following = _span(self._unit, day)
            start, end = self._latest = self._midnight(first), self._midnight(following)
        return start, end

    def _midnight(self, day: date) -> int:
        """Return the first instant of a local day; if midnight is skipped, the instant of that
        clock change."""
        midnight = datetime(day.year, day.month, day.day, tzinfo=self._zone)
        return int(midnight.timestamp()) * NS_PER_SECOND


def _span(unit: Calendar, day: date) -> tuple[date, date]:
    """Return the first day of the window that contains `day`, and the first day of the next
    window."""
    match unit:
        case Calendar.DAY:
            return day, day + timedelta(days=1)
        case Calendar.WEEK:
            monday = day - timedelta(days=day.weekday())
            return monday, monday + timedelta(days=7)
        case Calendar.MONTH:
            first = day.replace(day=1)
            return first, (first + timedelta(days=31)).replace(day=1)
        case Calendar.YEAR:
            return date(day.year, 1, 1), date(day.year + 1, 1, 1)
        case _:
            assert_never(unit)
