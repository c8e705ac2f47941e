"""Encoding and decoding of a `Limit` as an array; trailing fields with default values are omitted.

`Limit` itself validates the combination of fields.
"""

from functools import lru_cache

from ringfence.limiter.limit import Algorithm, Calendar, InvalidLimit, Limit
from ringfence.wire.codecs.fields import bad_field, flag, integer, items, text
from ringfence.wire.errors import BadMessage

__all__ = ["read_limit", "write_limit"]

_ALGORITHMS = (
    Algorithm.SLIDING_WINDOW,
    Algorithm.TOKEN_BUCKET,
    Algorithm.LEAKY_BUCKET,
    Algorithm.FIXED_WINDOW,
    Algorithm.SLIDING_WINDOW_LOG,
    Algorithm.CONCURRENCY,
)
_CALENDARS = (Calendar.DAY, Calendar.WEEK, Calendar.MONTH, Calendar.YEAR)

_REQUIRED = 2
"""Number of fields that are always present: amount and period."""
_LIMITS_KEPT = 512
"""Number of limits in the cache of read limits."""
_DEFAULTS: tuple[object, ...] = (None, None, 0, None, False, 1, None, "UTC", 0, False)


def write_limit(limit: Limit) -> list[object]:
    """Convert a limit to the list of its fields."""
    fields: list[object] = [
        limit.amount,
        limit.period_ns,
        _ALGORITHMS.index(limit.algorithm),
        limit.burst,
        limit.queue,
        limit.slots,
        None if limit.calendar is None else _CALENDARS.index(limit.calendar),
        limit.timezone,
        limit.soft_permille,
        limit.first_hit,
    ]
    used = len(fields)
    while used > _REQUIRED and fields[used - 1] == _DEFAULTS[used - 1]:
        used -= 1
    return fields[:used]


def read_limit(wire: object, field: str) -> Limit:
    """Create a limit from the list of its fields. Equal limits are read once."""
    given = tuple(items(wire, field, len(_DEFAULTS)))
    try:
        # Values of different types may be equal, so the types are a part of the cache's key.
        return _read_known(given, tuple(map(type, given)), field)
    except TypeError:  # A field is an array or a map.
        return _read(given, field)


@lru_cache(_LIMITS_KEPT)
def _read_known(given: tuple[object, ...], types: tuple[type, ...], field: str) -> Limit:
    return _read(given, field)


def _read(given: tuple[object, ...], field: str) -> Limit:
    if len(given) < _REQUIRED:
        raise bad_field(field, f"an array of {_REQUIRED} to {len(_DEFAULTS)} fields")
    amount, period, algorithm, burst, queue, slots, calendar, timezone, soft, first = (
        *given,
        *_DEFAULTS[len(given) :],
    )
    try:
        return Limit.of_ns(
            integer(amount, f"{field}.amount"),
            integer(period, f"{field}.period_ns"),
            _ALGORITHMS[integer(algorithm, f"{field}.algorithm", 0, len(_ALGORITHMS) - 1)],
            None if burst is None else integer(burst, f"{field}.burst"),
            flag(queue, f"{field}.queue"),
            integer(slots, f"{field}.slots"),
            None
            if calendar is None
            else _CALENDARS[integer(calendar, f"{field}.calendar", 0, len(_CALENDARS) - 1)],
            text(timezone, f"{field}.timezone"),
            integer(soft, f"{field}.soft_permille"),
            flag(first, f"{field}.first_hit"),
        )
    except InvalidLimit as error:
        raise _bad_limit(field) from error


def _bad_limit(field: str) -> BadMessage:
    return bad_field(field, "a limit whose fields agree")
