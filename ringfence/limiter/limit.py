"""Rate limit: an amount of units per period, counted by an algorithm."""

from dataclasses import dataclass, field, fields
from decimal import Decimal
from enum import StrEnum
from math import isfinite
from typing import Self, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ringfence.errors import InvalidLimit

__all__ = [
    "Algorithm",
    "Calendar",
    "InvalidLimit",
    "Limit",
    "MAX_CARRIED_SLOTS",
    "NS_PER_SECOND",
]

NS_PER_SECOND = 1_000_000_000
MAX_CARRIED_SLOTS = 60
"""Maximum number of slots of a limit in a request, because each slot needs memory."""

_LARGEST_AMOUNT = 2**53 - 1
"""Maximum integer that is exact in JSON and in the number types of all languages."""
_LONGEST_NS = 2**62
"""Maximum period, 146 years. An instant plus any duration in an answer then fits into 64 bits."""


class Algorithm(StrEnum):
    """Counting algorithms, with their names in rule files."""

    TOKEN_BUCKET = "token_bucket"  # noqa: S105 - a name, not a secret
    LEAKY_BUCKET = "leaky_bucket"
    FIXED_WINDOW = "fixed_window"
    SLIDING_WINDOW_LOG = "sliding_window_log"
    SLIDING_WINDOW = "sliding_window"
    CONCURRENCY = "concurrency"


class Calendar(StrEnum):
    """Periods that follow the calendar of a time zone instead of a fixed number of seconds."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    YEAR = "year"


_REFUND_ALLOWANCE_NS = 50_000_000
"""Longest allowance for a refund that takes longer to its owner than its check took."""
_PART_OF_PERIOD = 20
"""The allowance may always be one twentieth of the period, because a refund of a hit that is so
much older makes little difference."""
_EXAMPLES = {"period": "seconds, such as 60", "soft": "a share, such as 0.1 for 10 %"}
_Name = TypeVar("_Name", Algorithm, Calendar)


@dataclass(frozen=True, slots=True, repr=False)
class Limit:
    """A limit: `amount` units of cost per `period` seconds, counted by `algorithm`.

    Equal limits have equal exact numbers: `period_ns` and `soft_permille`. Raises `InvalidLimit`
    when the fields contradict each other.
    """

    amount: int
    """Units admitted per period; 0 denies everything. For `concurrency`: number of slots."""
    period: float = field(compare=False)
    """Length of the period in seconds. For a calendar window: its nominal length. For
    `concurrency`: time to live of a slot whose holder is lost."""
    algorithm: Algorithm = Algorithm.SLIDING_WINDOW
    """Counting algorithm; text such as `"token_bucket"` is converted."""
    burst: int | None = None
    """Bucket or queue size of the two bucket algorithms; `amount` when None."""
    queue: bool = False
    """`leaky_bucket` only: an allowed check has a delay, so that checks leave at a steady rate."""
    slots: int = 1
    """`sliding_window` only: number of finer counters per window."""
    calendar: Calendar | None = None
    """`fixed_window` only: windows begin with the day, week, month or year of `timezone`."""
    timezone: str = "UTC"
    """IANA name of the time zone of `calendar`."""
    soft: float = field(default=0.0, compare=False)
    """Share above the limit that is still admitted, with a mark; 0.1 is 10 %. Precision: 0.1 %."""
    first_hit: bool = False
    """`fixed_window` only: the windows of each key begin with its own first hit, instead of at
    multiples of the period."""
    period_ns: int = field(init=False)
    """`period` in integer nanoseconds, as the algorithms count it."""
    soft_permille: int = field(init=False)
    """`soft` in whole permille, as the algorithms count it."""

    def __post_init__(self) -> None:
        for name in ("amount", "slots", *(() if self.burst is None else ("burst",))):
            _require_integer(name, getattr(self, name))
        convert = object.__setattr__
        convert(self, "algorithm", _named(Algorithm, "algorithm", self.algorithm))
        if self.calendar is not None:
            convert(self, "calendar", _named(Calendar, "calendar", self.calendar))
        convert(self, "period_ns", _scaled("period", self.period, NS_PER_SECOND))
        convert(self, "soft_permille", _scaled("soft", self.soft, 1000))
        convert(self, "period", float(self.period))
        convert(self, "soft", float(self.soft))
        self._validate()

    @classmethod
    def of_ns(
        cls,
        amount: int,
        period_ns: int,
        algorithm: Algorithm = Algorithm.SLIDING_WINDOW,
        burst: int | None = None,
        queue: bool = False,
        slots: int = 1,
        calendar: Calendar | None = None,
        timezone: str = "UTC",
        soft_permille: int = 0,
        first_hit: bool = False,
    ) -> Self:
        """Create a limit from the exact integers that rule files and messages contain."""
        limit = object.__new__(cls)
        period, soft = period_ns / NS_PER_SECOND, soft_permille / 1000
        values = (
            *(amount, period, algorithm, burst, queue, slots, calendar, timezone, soft, first_hit),
            *(period_ns, soft_permille),
        )
        for name, value in zip(cls.__slots__, values, strict=True):
            object.__setattr__(limit, name, value)
        limit._validate()
        return limit

    def __repr__(self) -> str:
        given = []
        for each in fields(self):
            value = getattr(self, each.name)
            if each.init and value != each.default:
                shown = value.value if isinstance(value, StrEnum) else value
                given.append(f"{each.name}={shown!r}")
        return f"Limit({', '.join(given)})"

    @property
    def bucket_size(self) -> int:
        """Maximum cost that a full bucket admits; 0 when the limit's amount is 0."""
        return self.amount if self.burst is None or self.amount == 0 else self.burst

    @property
    def ceiling(self) -> int:
        """Maximum cost that one check can be allowed, including the soft margin above the limit."""
        return self.hard_ceiling * (1000 + self.soft_permille) // 1000

    @property
    def hard_ceiling(self) -> int:
        """Maximum cost that one check can be allowed, without the soft margin above the limit."""
        return self.bucket_size if self.is_bucket else self.amount

    @property
    def is_bucket(self) -> bool:
        """Whether the algorithm is one of the two bucket algorithms."""
        return self.algorithm in (Algorithm.TOKEN_BUCKET, Algorithm.LEAKY_BUCKET)

    def refund_age_ns(self, age_ns: int) -> int:
        """Return the age of a refund whose units were spent `age_ns` before it is sent; both in ns.

        A log removes only hits that are not older than the refund says. So its refunds get an
        allowance, because a refund may take longer to its owner than its check took. With the
        allowance, the age may reach the period: units that may expire before the refund arrives are
        not refunded. Age 0 stands for an unknown time.
        """
        if self.algorithm is not Algorithm.SLIDING_WINDOW_LOG or not age_ns:
            return age_ns
        allowance_ns = max(age_ns, self.period_ns // _PART_OF_PERIOD)
        return age_ns + min(allowance_ns, _REFUND_ALLOWANCE_NS)

    def _validate(self) -> None:
        self._check_amounts()
        self._check_bucket()
        self._check_windows()
        self._check_timezone()

    def _check_amounts(self) -> None:
        if not 0 <= self.amount <= _LARGEST_AMOUNT:
            raise InvalidLimit(
                f"amount must be from 0 to 2**53 - 1, got {self.amount}; count in a larger unit, "
                "or use 0 to deny everything",
                field="amount",
            )
        if not 0 < self.period_ns <= _LONGEST_NS:
            raise InvalidLimit(
                f"period must be more than 0 s and at most 146 years, got {self.period:g} s; use "
                "a period such as 60 s",
                field="period",
            )
        if not 0 <= self.soft_permille <= 10_000:
            raise InvalidLimit(
                f"soft must be from 0 % to 1000 %, got {self.soft_permille / 10:g} %; a Limit "
                "takes a share, such as 0.1 for 10 %",
                field="soft",
            )

    def _check_bucket(self) -> None:
        if self.queue and self.algorithm is not Algorithm.LEAKY_BUCKET:
            raise InvalidLimit(
                f"queue must be used with algorithm leaky_bucket, got {self.algorithm}; change the "
                "algorithm or remove queue",
                field="queue",
            )
        if self.burst is not None and not self.is_bucket:
            raise InvalidLimit(
                "burst must be used with algorithm token_bucket or leaky_bucket, got "
                f"{self.algorithm}; change the algorithm or remove burst",
                field="burst",
            )
        if self.burst is not None and not 1 <= self.burst <= _LARGEST_AMOUNT:
            raise InvalidLimit(
                f"burst must be from 1 to 2**53 - 1, got {self.burst}; remove it for a bucket as "
                "large as the amount, or set the amount to 0 to deny everything",
                field="burst",
            )
        if self.is_bucket and self.ceiling * self.period_ns > _LONGEST_NS * max(self.amount, 1):
            raise InvalidLimit(
                "burst must be small enough that the bucket refills within 146 years, got a bucket "
                f"of {self.ceiling}; lower the burst or raise the amount",
                field="burst",
            )

    def _check_windows(self) -> None:
        if self.slots != 1 and self.algorithm is not Algorithm.SLIDING_WINDOW:
            raise InvalidLimit(
                f"slots must be used with algorithm sliding_window, got {self.algorithm}; change "
                "the algorithm or remove slots",
                field="slots",
            )
        if not 1 <= self.slots <= 3600:
            raise InvalidLimit(
                f"slots must be from 1 to 3600, got {self.slots}; use 1 for the usual window",
                field="slots",
            )
        if self.period_ns % self.slots:
            raise InvalidLimit(
                f"slots must divide the period of {self.period:g} s into equal parts, got "
                f"{self.slots}; choose a divisor of the period",
                field="slots",
            )
        is_fixed = self.algorithm is Algorithm.FIXED_WINDOW
        if self.calendar is not None and not is_fixed:
            raise InvalidLimit(
                f"calendar must be used with algorithm fixed_window, got {self.algorithm}; change "
                "the algorithm or use a period of fixed length",
                field="calendar",
            )
        if self.first_hit and not is_fixed:
            raise InvalidLimit(
                f"first_hit must be used with algorithm fixed_window, got {self.algorithm}; change "
                "the algorithm or remove first_hit",
                field="first_hit",
            )
        if self.first_hit and self.calendar is not None:
            raise InvalidLimit(
                f"first_hit must be off for calendar windows, got calendar {self.calendar}; remove "
                "one of the two",
                field="first_hit",
            )

    def _check_timezone(self) -> None:
        if self.timezone == "UTC":
            return  # UTC needs no time zone database.
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            if not _has_time_zones():
                return  # A client without the database sends the name unchecked; nodes check it.
            raise InvalidLimit(
                f"timezone must be an IANA name that this host knows, got {self.timezone!r}; write "
                "it as in Europe/Berlin, or install the package tzdata",
                field="timezone",
            ) from error


def _named(kind: type[_Name], name: str, value: str) -> _Name:
    """Return the algorithm or calendar with the given name. Raises `InvalidLimit` for an unknown
    name."""
    try:
        return kind(value)
    except ValueError as error:
        known = ", ".join(kind)
        raise InvalidLimit(
            f"{name} must be one of {known}, got {value!r}; correct the name", field=name
        ) from error


def _require_integer(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidLimit(
            f"{name} must be a whole number, got {value!r}; use a smaller unit for fractions",
            field=name,
        )


def _scaled(name: str, value: object, factor: int) -> int:
    """Convert a decimal number to a whole number of thousandths or nanoseconds, without rounding
    errors."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise InvalidLimit(
            f"{name} must be a number, got {value!r}; give {_EXAMPLES[name]}", field=name
        )
    return round(Decimal(repr(value)) * factor)


def _has_time_zones() -> bool:
    """Return whether this host has a time zone database."""
    try:
        ZoneInfo("Etc/UTC")
    except ZoneInfoNotFoundError:
        return False
    return True
