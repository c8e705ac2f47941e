"""Limits as text: `100/minute`, `5 per second burst 20`, `20 concurrent ttl 60s`.

    AMOUNT / [N] UNIT [OPTION ...]        also with `per` for the `/`
    AMOUNT concurrent [ttl PERIOD] [OPTION ...]

Options, in any order: the name of an algorithm, `burst N`, `slots N`, `soft P%`, `queue`, `meter`,
`calendar`, `first_hit`, `timezone NAME`. An option that belongs to one algorithm selects it:
`burst` the token bucket, `slots` the sliding window, `calendar` and `first_hit` the fixed window,
`queue` and `meter` the leaky bucket. `Limit` validates the combination of numbers.
"""

import re

from msgspec import Struct

from ringfence.errors import ConfigError
from ringfence.limiter.limit import NS_PER_SECOND, Algorithm, Calendar, InvalidLimit, Limit
from ringfence.rules.periods import (
    UNIT_NS,
    format_period,
    format_share,
    in_nanoseconds,
    parse_share,
    suggest,
    unit_named,
    unit_of,
)

__all__ = ["DEFAULT_SLOT_TTL_NS", "LONGEST_TEXT", "format_limit", "parse_limit"]

DEFAULT_SLOT_TTL_NS = 60 * NS_PER_SECOND
"""Time to live of a `concurrent` slot when the text has no `ttl`."""

_TOKEN = re.compile(
    r"(?P<number>\d+(?:_\d+)*(?:\.\d+)?)|(?P<word>[A-Za-z_]+)|(?P<mark>[/%])|(?P<other>\S)",
    re.ASCII,
)
_ZONE = re.compile(r"\s*(\S+)")
_ALGORITHMS = {algorithm.value: algorithm for algorithm in Algorithm}
_RATE_ALGORITHMS = tuple(name for name in _ALGORITHMS if name != Algorithm.CONCURRENCY)
_RATE_OPTIONS = ("burst", "slots", "soft", "queue", "meter", "calendar", "first_hit", "timezone")
_SEPARATORS = (";", ",", "|", "and")
_SEVERAL = "a text is one limit; give several as a list, as in ['5/minute', '100/hour']"
LONGEST_TEXT = 200
"""Maximum characters of the text of a limit."""
_LONGEST_NUMBER = 20


def parse_limit(text: str) -> Limit:
    """Parse the text of a limit. Raises `ConfigError` with the position in the text and the fix."""
    if not isinstance(text, str):
        raise ConfigError(f"limit must be text such as '5/minute', got {text!r}; write it as text")
    if len(text) > LONGEST_TEXT:
        raise ConfigError(
            f"limit must have at most {LONGEST_TEXT} characters, got {text[:40]!r}...; shorten it"
        )
    return _Reader(text).read()


def format_limit(limit: Limit) -> str:
    """Format a limit so that `parse_limit` returns an equal limit."""
    period = format_period(limit.period_ns)
    words = [f"{limit.amount}/{period}"]
    implied = Algorithm.SLIDING_WINDOW
    if limit.algorithm is Algorithm.CONCURRENCY:
        ttl = period if period[0].isdigit() else f"1 {period}"
        words = [f"{limit.amount} concurrent ttl {ttl}"]
        implied = Algorithm.CONCURRENCY
    elif limit.queue or limit.calendar is not None or limit.first_hit:
        implied = Algorithm.LEAKY_BUCKET if limit.queue else Algorithm.FIXED_WINDOW
    elif limit.burst is not None:
        implied = Algorithm.TOKEN_BUCKET
    if limit.burst is not None:
        words.append(f"burst {limit.burst}")
    if limit.slots != 1:
        words.append(f"slots {limit.slots}")
    if limit.algorithm is not implied:
        words.append(limit.algorithm.value)
    if limit.queue:
        words.append("queue")
    if limit.calendar is not None:
        words.append("calendar")
    if limit.first_hit:
        words.append("first_hit")
    if limit.timezone != "UTC":
        words.append(f"timezone {limit.timezone}")
    if limit.soft_permille:
        words.append(f"soft {format_share(limit.soft_permille)}")
    return " ".join(words)


class _Token(Struct, frozen=True):
    kind: str
    """`number`, `word`, `mark`, `other`, or `end`."""
    text: str
    at: int

    @property
    def lower(self) -> str:
        return self.text.lower()


class _Reader:
    """Parser of the text of one limit, with one token of look-ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._next = self._scan()
        self._amount = 0
        self._period_ns = 0
        self._algorithm: Algorithm | None = None
        self._implied = Algorithm.SLIDING_WINDOW
        self._burst: int | None = None
        self._slots = 1
        self._queue = False
        self._calendar = False
        self._first_hit = False
        self._timezone = "UTC"
        self._soft = 0

    def read(self) -> Limit:
        self._amount = self._whole("the amount", "begin as in '100/minute'")
        is_rate = self._read_span()
        seen: set[str] = set()
        while self._next.kind != "end":
            option = self._next
            if self._kind_of(option) in seen:
                raise self._error(option, "given twice", "keep one of them")
            seen.add(self._kind_of(option))
            self._read_option(option, is_rate)
        return self._limit()

    def _read_span(self) -> bool:
        """Parse the period of a limit, or the word `concurrent`; return whether the limit is a
        rate."""
        link = self._take()
        if link.lower == "concurrent":
            self._algorithm = Algorithm.CONCURRENCY
            self._period_ns = DEFAULT_SLOT_TTL_NS
            return False
        if link.lower not in ("/", "per"):
            hint = suggest(link.text, ("per", "concurrent")) if link.kind == "word" else ""
            fix = hint if hint.startswith("did") else "write '/' or 'per' before a period,"
            fix += " as in '100/minute' or '4 concurrent'"
            raise self._error(link, "no period follows the amount", fix)
        self._period_ns = self._period()
        return True

    def _read_option(self, option: _Token, is_rate: bool) -> None:
        options = (*_RATE_OPTIONS, *_RATE_ALGORITHMS) if is_rate else ("ttl", "soft")
        if option.lower not in options:
            is_end = option.lower in _SEPARATORS
            fix = _SEVERAL if is_end else suggest(option.text, options)
            raise self._error(option, "unknown option", fix)
        self._take()
        match option.lower:
            case "burst":
                self._burst = self._whole("a number after 'burst'", "as in 'burst 20'")
                self._imply(Algorithm.TOKEN_BUCKET)
            case "slots":
                self._slots = self._whole("a number after 'slots'", "as in 'slots 6'")
            case "soft":
                self._soft = self._share()
            case "queue" | "meter":
                self._queue = option.lower == "queue"
                self._implied = Algorithm.LEAKY_BUCKET
            case "calendar":
                self._calendar = True
                self._imply(Algorithm.FIXED_WINDOW)
            case "first_hit":
                self._first_hit = True
                self._imply(Algorithm.FIXED_WINDOW)
            case "timezone":
                self._timezone = self._zone()
            case "ttl":
                self._period_ns = self._period()
            case name:
                self._algorithm = _ALGORITHMS[name]

    def _imply(self, algorithm: Algorithm) -> None:
        if self._implied is Algorithm.SLIDING_WINDOW:
            self._implied = algorithm

    def _kind_of(self, option: _Token) -> str:
        if option.lower in _ALGORITHMS:
            return "algorithm"
        return "mode" if option.lower in ("queue", "meter") else option.lower

    def _limit(self) -> Limit:
        calendar = None
        if self._calendar:
            unit = unit_of(self._period_ns)
            if unit not in tuple(Calendar):
                raise ConfigError(
                    f"limit {self._text!r}: 'calendar' needs a period of one day, week, month or "
                    "year; remove 'calendar' or change the period"
                )
            calendar = Calendar(unit)
        elif self._timezone != "UTC":
            raise ConfigError(
                f"limit {self._text!r}: 'timezone' has no effect without calendar periods; "
                "add 'calendar' or remove it"
            )
        try:
            return Limit.of_ns(
                self._amount,
                self._period_ns,
                self._algorithm or self._implied,
                burst=self._burst,
                queue=self._queue,
                slots=self._slots,
                calendar=calendar,
                timezone=self._timezone,
                soft_permille=self._soft,
                first_hit=self._first_hit,
            )
        except InvalidLimit as error:
            raise ConfigError(f"limit {self._text!r}: {error}") from error

    def _period(self) -> int:
        number = self._take().text if self._next.kind == "number" else "1"
        word = self._take()
        unit = unit_named(word.text) if word.kind == "word" else None
        if unit is None:
            what = "a unit of time is missing" if word.kind != "word" else "unknown unit"
            raise self._error(word, what, suggest(word.text, UNIT_NS))
        period = in_nanoseconds(number, unit)
        if not period:
            raise self._error(
                word, "the period must be a whole number of ns, at least 1", "use a longer period"
            )
        return period

    def _whole(self, what: str, fix: str) -> int:
        token = self._take()
        if token.kind != "number" or "." in token.text or len(token.text) > _LONGEST_NUMBER:
            raise self._error(token, f"{what} must be a whole number", fix)
        return int(token.text)

    def _share(self) -> int:
        number, percent = self._take(), self._take()
        if number.kind != "number" or percent.text != "%":
            unexpected = percent if number.kind == "number" else number
            raise self._error(unexpected, "a percentage must follow 'soft'", "as in 'soft 10%'")
        try:
            return parse_share(number.text + "%")
        except ConfigError as error:
            raise ConfigError(f"limit {self._text!r}: {error}") from error

    def _zone(self) -> str:
        found = _ZONE.match(self._text, self._next.at)
        if found is None:
            raise self._error(
                self._next, "a zone must follow 'timezone'", "as in 'timezone Europe/Berlin'"
            )
        self._at = found.end()
        self._next = self._scan()
        return found[1]

    def _take(self) -> _Token:
        token = self._next
        self._next = self._scan()
        return token

    def _scan(self) -> _Token:
        found = _TOKEN.search(self._text, self._at)
        if found is None or found.lastgroup is None:
            self._at = len(self._text)
            return _Token("end", "", self._at)
        self._at = found.end()
        return _Token(found.lastgroup, found[0], found.start())

    def _error(self, token: _Token, what: str, fix: str) -> ConfigError:
        at = "at its end" if token.kind == "end" else f"at {token.text!r}, character"
        number = "" if token.kind == "end" else f" {token.at + 1}"
        return ConfigError(f"limit {self._text!r}, {at}{number}: {what}; {fix}")
