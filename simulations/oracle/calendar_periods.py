"""Calendar periods: which instants belong to one local day, week, month or year.

A period begins at the first instant whose local date belongs to it. The oracle searches for this
instant among the dates that the time zone gives, and does no arithmetic with offsets.
"""

from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

__all__ = ["calendar_period"]

_NS = 1_000_000_000
_DAY_S = 86_400


@lru_cache(maxsize=4096)
def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)


def calendar_period(unit: str, timezone: str, now: int) -> tuple[int, int]:
    """Return the first instant of the period that contains `now`, and the first one after it."""
    return _period_of(unit, timezone, _local_date(timezone, now // _NS))


@lru_cache(maxsize=4096)
def _period_of(unit: str, timezone: str, day: date) -> tuple[int, int]:
    """Return the first instant of the period of a local day, and the first one after it."""
    first = _first_day(unit, day)
    return _begin(timezone, first) * _NS, _begin(timezone, _next_first_day(unit, first)) * _NS


def _local_date(timezone: str, second: int) -> date:
    return datetime.fromtimestamp(second, _zone(timezone)).date()


def _first_day(unit: str, day: date) -> date:
    """Return the first day of the period that contains `day`."""
    while not _is_first(unit, day):
        day -= timedelta(days=1)
    return day


def _next_first_day(unit: str, day: date) -> date:
    """Return the first day of the next period; `day` is the first day of a period."""
    day += timedelta(days=1)
    while not _is_first(unit, day):
        day += timedelta(days=1)
    return day


def _is_first(unit: str, day: date) -> bool:
    if unit == "day":
        return True
    if unit == "week":
        return day.isoweekday() == 1
    if unit == "month":
        return day.day == 1
    if unit == "year":
        return (day.month, day.day) == (1, 1)
    raise ValueError(f"calendar must be day, week, month or year, got {unit!r}")


def _begin(timezone: str, day: date) -> int:
    """Return the first second at which the local date is `day` or later."""
    noon = int(datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp())
    before, after = noon - 2 * _DAY_S, noon + 2 * _DAY_S
    while after - before > 1:
        middle = (before + after) // 2
        if _local_date(timezone, middle) >= day:
            after = middle
        else:
            before = middle
    return after
