"""Periods and percentages as text: `minute`, `3 hours`, `90s`, `10%`; suggestions for typos.

A month has 30 days and a year 365 days, as in Envoy's rule files.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from fractions import Fraction

from ringfence.errors import ConfigError
from ringfence.limiter.limit import NS_PER_SECOND

__all__ = [
    "UNIT_NS",
    "format_period",
    "format_share",
    "in_nanoseconds",
    "parse_period",
    "parse_share",
    "suggest",
    "unit_named",
    "unit_of",
]

UNIT_NS = {
    "second": NS_PER_SECOND,
    "minute": 60 * NS_PER_SECOND,
    "hour": 3_600 * NS_PER_SECOND,
    "day": 86_400 * NS_PER_SECOND,
    "week": 604_800 * NS_PER_SECOND,
    "month": 2_592_000 * NS_PER_SECOND,
    "year": 31_536_000 * NS_PER_SECOND,
}
"""Lengths of the units of rule files."""

_MILLISECOND = 1_000_000
_SHORT = {
    "s": "second",
    "sec": "second",
    "secs": "second",
    "m": "minute",
    "min": "minute",
    "mins": "minute",
    "h": "hour",
    "hr": "hour",
    "hrs": "hour",
    "d": "day",
    "w": "week",
    "y": "year",
    "ms": "millisecond",
    "millisecond": "millisecond",
}
_PERIOD = re.compile(r"\s*(\d+(?:_\d+)*(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*", re.ASCII)
_LONGEST_TEXT = 100


def unit_named(word: str) -> str | None:
    """Return the time unit for a word: any case, singular, plural or short; None when unknown."""
    lower = word.lower()
    for candidate in (lower, lower.removesuffix("s")):
        if candidate in UNIT_NS:
            return candidate
        if candidate in _SHORT:
            return _SHORT[candidate]
    return None


def unit_of(period_ns: int) -> str:
    """Return the name of the time unit with exactly this length; empty when there is none."""
    return next((unit for unit, length in UNIT_NS.items() if length == period_ns), "")


def in_nanoseconds(number: str, unit: str) -> int | None:
    """Convert a number of time units to nanoseconds; None when the result is not a whole number."""
    length = _MILLISECOND if unit == "millisecond" else UNIT_NS[unit]
    product = Fraction(number.replace("_", "")) * length
    return product.numerator if product.denominator == 1 else None


def parse_period(text: str) -> int:
    """Parse `90s`, `15m`, `1.5 hours`, or a number of seconds, to nanoseconds. Raises
    `ConfigError`."""
    found = _PERIOD.fullmatch(text[:_LONGEST_TEXT])
    if found is None or len(text) > _LONGEST_TEXT:
        raise ConfigError(f"must be a period, got {_cut(text)}; write it as `90s` or `15m`")
    number, word = found.groups()
    unit = unit_named(word) if word else "second"
    if unit is None:
        raise ConfigError(f"unknown unit {word!r}; {suggest(word, UNIT_NS)}")
    period = in_nanoseconds(number, unit)
    if not period:
        raise ConfigError(f"must be whole ns, at least 1, got {_cut(text)}; use a longer period")
    return period


def format_period(period_ns: int) -> str:
    """Format a period for use after `per`: `minute`, `3 hours`, `250ms`, `1.5s`."""
    for unit, length in reversed(UNIT_NS.items()):
        count, rest = divmod(period_ns, length)
        if rest == 0 and count:
            return unit if count == 1 else f"{count} {unit}s"
    if period_ns % _MILLISECOND == 0:
        return f"{period_ns // _MILLISECOND}ms"
    whole, rest = divmod(period_ns, NS_PER_SECOND)
    return f"{whole}.{rest:09d}".rstrip("0") + "s"


def parse_share(text: str) -> int:
    """Parse a percentage such as `10%` or `12.5%` to thousandths. Raises `ConfigError`."""
    found = _SHARE.fullmatch(text[:_LONGEST_TEXT])
    if found is None or len(text) > _LONGEST_TEXT:
        raise ConfigError(f"must be a percentage, got {_cut(text)}; write it as `10%`")
    permille = Fraction(found[1]) * 10
    if permille.denominator != 1:
        raise ConfigError(f"must be a multiple of 0.1%, got {_cut(text)}; round it")
    return permille.numerator


def format_share(permille: int) -> str:
    """Format thousandths as `10%` or `12.5%`."""
    whole, tenths = divmod(permille, 10)
    return f"{whole}.{tenths}%" if tenths else f"{whole}%"


def suggest(word: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown word: the most similar known word, or else all of them."""
    options = list(known)
    near = get_close_matches(word.lower()[:_LONGEST_TEXT], options, n=1)
    return f"did you mean '{near[0]}'?" if near else f"use one of: {', '.join(options)}"


def _cut(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "...")
