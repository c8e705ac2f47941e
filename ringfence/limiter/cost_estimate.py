"""Estimates of the memory and the over-admission of a limit, for `ringfence rules check`.

Both are for one node without failures, and without other data centers.
"""

from typing import assert_never

from msgspec import Struct

from ringfence.limiter.limit import NS_PER_SECOND, Algorithm, Calendar, Limit

__all__ = ["OverAdmission", "bytes_per_key", "over_admission"]

_HOUR_NS = 3600 * NS_PER_SECOND
_SHORTEST_NS = {
    Calendar.DAY: 24 * _HOUR_NS,
    Calendar.WEEK: 7 * 24 * _HOUR_NS,
    Calendar.MONTH: 28 * 24 * _HOUR_NS,
    Calendar.YEAR: 365 * 24 * _HOUR_NS,
}
"""The shortest window of each calendar unit, where clocks are never changed."""


class OverAdmission(Struct, frozen=True):
    """Most units that an algorithm admits in one period, for evenly spread and for worst-timed
    requests."""

    usual: int
    """Units admitted in a period when the hits of a caller above its limit are evenly spaced."""
    worst: int
    """Maximum units admitted in any `(t - period, t]`; for `concurrency`, units in flight."""
    reason: str
    """Explanation of the worst case."""


def bytes_per_key(limit: Limit, *, is_compiled: bool) -> int:
    """Estimate the bytes of one busy key, in the compiled engine or in the reference engine.

    Measured with CPython 3.11 on 64 bits, for keys of 27 bytes, without replicas. In the compiled
    engine, a few thousand recent keys of some limits need ten times as much. The slots of a
    concurrency limit and the hits of a log are counted up to the ceiling, which only a key at its
    limit reaches.
    """
    if is_compiled:
        return _compiled_bytes(limit)
    entry = 120
    match limit.algorithm:
        case Algorithm.TOKEN_BUCKET | Algorithm.LEAKY_BUCKET:
            return entry + 66
        case Algorithm.FIXED_WINDOW:
            return entry + 42
        case Algorithm.SLIDING_WINDOW:
            return entry + 112 + 8 * (limit.slots - 1)
        case Algorithm.SLIDING_WINDOW_LOG:
            return entry + 290 + 16 * limit.ceiling
        case Algorithm.CONCURRENCY:
            return entry + 330 + 210 * limit.ceiling
        case _:
            assert_never(limit.algorithm)


def _compiled_bytes(limit: Limit) -> int:
    match limit.algorithm:
        case Algorithm.TOKEN_BUCKET | Algorithm.LEAKY_BUCKET | Algorithm.FIXED_WINDOW:
            return 52
        case Algorithm.SLIDING_WINDOW:
            return 60 if limit.slots == 1 else 45 + limit.slots
        case Algorithm.SLIDING_WINDOW_LOG:
            return 128 + 5 * limit.ceiling
        case Algorithm.CONCURRENCY:
            return 600 + 200 * limit.ceiling
        case _:
            assert_never(limit.algorithm)


def over_admission(limit: Limit) -> OverAdmission:
    """Return the most units that any interval of one period admits.

    The result has one value for evenly spread requests and one for the worst timing.
    """
    ceiling = limit.ceiling
    if ceiling == 0:
        return OverAdmission(0, 0, "Everything is refused.")
    match limit.algorithm:
        case Algorithm.TOKEN_BUCKET | Algorithm.LEAKY_BUCKET:
            return _bucket(limit)
        case Algorithm.FIXED_WINDOW:
            touched = _windows_touched(limit)
            return OverAdmission(
                ceiling,
                touched * ceiling,
                f"A period can touch {touched} windows, and each admits {ceiling}.",
            )
        case Algorithm.SLIDING_WINDOW:
            part = "window" if limit.slots == 1 else f"slot (1/{limit.slots} of the period)"
            return OverAdmission(
                ceiling,
                2 * ceiling,
                f"The counter assumes that the hits of the oldest {part} came evenly. If all came"
                f" at its end, up to {ceiling} more pass.",
            )
        case Algorithm.SLIDING_WINDOW_LOG:
            return OverAdmission(ceiling, ceiling, "Every hit is counted exactly for one period.")
        case Algorithm.CONCURRENCY:
            return OverAdmission(
                ceiling,
                ceiling,
                "Units in flight are counted exactly; a holder that outlives its slot is no"
                " longer counted.",
            )
        case _:
            assert_never(limit.algorithm)


def _bucket(limit: Limit) -> OverAdmission:
    """Return the size of a full bucket plus the units that it regains in a period."""
    comes_back = (limit.period_ns - 1) * limit.amount // limit.period_ns
    reason = (
        f"A rested bucket gives {limit.ceiling} at once, and {comes_back} more come back before"
        " the period is over."
    )
    if limit.queue:
        reason = (
            f"The queue takes {limit.ceiling} at once and {comes_back} more as it drains; they"
            " leave it evenly spaced."
        )
    return OverAdmission(limit.amount, limit.ceiling + comes_back, reason)


def _windows_touched(limit: Limit) -> int:
    """Return the number of windows that one period can overlap, even across a clock change."""
    if limit.calendar is None:
        return 2
    shortest = _SHORTEST_NS[limit.calendar]
    if limit.timezone != "UTC":
        shortest -= _HOUR_NS
    return 1 - (-limit.period_ns // shortest)
