"""How much per which time, by which algorithm: the value every engine is built from."""

from dataclasses import dataclass
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

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
"""Most slots of a limit that comes with a check: a counter takes memory for each."""

_LARGEST_AMOUNT = 2**53 - 1
"""Every integer up to here is exact in JSON and in any other language's numbers."""
_LONGEST_NS = 2**62
"""146 years: any instant plus any answer stays inside 64 bits."""


class InvalidLimit(ValueError):
    """The numbers of a limit contradict each other; the message names the field and the mend."""


class Algorithm(StrEnum):
    """The counting rules, by their names in rule files."""

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


@dataclass(frozen=True, slots=True)
class Limit:
    """`amount` units of cost per `period_ns`, counted by `algorithm`.

    Raises `InvalidLimit` when the fields contradict each other.
    """

    amount: int
    """Units admitted per period; 0 refuses everything. For `concurrency`: units in flight."""
    period_ns: int
    """Length of the period; for a calendar window its nominal length; for `concurrency` the time
    to live of a lease whose holder is lost."""
    algorithm: Algorithm = Algorithm.SLIDING_WINDOW
    burst: int | None = None
    """Bucket or queue size of the two bucket algorithms; `amount` when None."""
    queue: bool = False
    """`leaky_bucket` only: admitted checks carry a delay and leave one per emission interval."""
    slots: int = 1
    """`sliding_window` only: how many finer counters a window is cut into."""
    calendar: Calendar | None = None
    """`fixed_window` only: windows begin with the day, week, month or year of `timezone`."""
    timezone: str = "UTC"
    soft_permille: int = 0
    """How far over the limit is still admitted, and marked: 100 is 10 %."""
    first_hit: bool = False
    """`fixed_window` only: each key's windows begin with its own first hit, instead of all at the
    clock's multiples of the period."""

    def __post_init__(self) -> None:
        self._check_amounts()
        self._check_bucket()
        self._check_windows()
        self._check_timezone()

    @property
    def bucket_size(self) -> int:
        """Most cost a rested bucket holds; 0 when the amount is, whatever the burst."""
        return self.amount if self.burst is None or self.amount == 0 else self.burst

    @property
    def ceiling(self) -> int:
        """Largest cost that could ever be admitted at once, the soft part included."""
        return self.hard_ceiling * (1000 + self.soft_permille) // 1000

    @property
    def hard_ceiling(self) -> int:
        """Largest cost that could be admitted at once without touching the soft margin."""
        return self.bucket_size if self.is_bucket else self.amount

    @property
    def is_bucket(self) -> bool:
        """Whether the algorithm is one of the two buckets, which share their arithmetic."""
        return self.algorithm in (Algorithm.TOKEN_BUCKET, Algorithm.LEAKY_BUCKET)

    def _check_amounts(self) -> None:
        if not 0 <= self.amount <= _LARGEST_AMOUNT:
            raise InvalidLimit(f"amount: {self.amount} is not between 0 and 2**53 - 1")
        if not 0 < self.period_ns <= _LONGEST_NS:
            raise InvalidLimit(
                f"period: {self.period_ns} ns is no period; give more than 0 and at most 146 years"
            )
        if not 0 <= self.soft_permille <= 10_000:
            raise InvalidLimit(
                f"soft: {self.soft_permille} permille is out of range; give 0 % to 1000 %"
            )

    def _check_bucket(self) -> None:
        if self.queue and self.algorithm is not Algorithm.LEAKY_BUCKET:
            raise InvalidLimit(
                f"queue: {self.algorithm} has none; use algorithm leaky_bucket or drop it"
            )
        if self.burst is not None and not self.is_bucket:
            raise InvalidLimit(
                f"burst: {self.algorithm} has none; use token_bucket or leaky_bucket, or drop it"
            )
        if self.burst is not None and not 1 <= self.burst <= _LARGEST_AMOUNT:
            raise InvalidLimit(
                f"burst: {self.burst} is not between 1 and 2**53 - 1; drop it for a bucket as large"
                " as the amount, or set the amount to 0 to refuse everything"
            )
        if self.is_bucket and self.ceiling * self.period_ns > _LONGEST_NS * max(self.amount, 1):
            raise InvalidLimit(
                f"burst: a bucket of {self.ceiling} would take more than 146 years to come back;"
                " lower the burst or raise the amount"
            )

    def _check_windows(self) -> None:
        if self.slots != 1 and self.algorithm is not Algorithm.SLIDING_WINDOW:
            raise InvalidLimit(
                f"slots: {self.algorithm} has none; use algorithm sliding_window or drop it"
            )
        if not 1 <= self.slots <= 3600:
            raise InvalidLimit(f"slots: {self.slots} is not between 1 and 3600")
        if self.period_ns % self.slots:
            raise InvalidLimit(
                f"slots: a period of {self.period_ns / 1e9:g} s does not divide into {self.slots}"
                " equal slots; choose a divisor of the period"
            )
        if self.calendar is not None and self.algorithm is not Algorithm.FIXED_WINDOW:
            raise InvalidLimit(
                f"align: {self.algorithm} cannot follow the calendar; use algorithm fixed_window"
            )
        if self.first_hit and self.algorithm is not Algorithm.FIXED_WINDOW:
            raise InvalidLimit(
                f"first_hit: {self.algorithm} has no windows to begin; use algorithm fixed_window"
            )
        if self.first_hit and self.calendar is not None:
            raise InvalidLimit(
                "first_hit: a window begins with the calendar or with a first hit; choose one"
            )

    def _check_timezone(self) -> None:
        if self.timezone == "UTC":
            return  # Known without any time zone database.
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            if not _has_time_zones():
                return  # A slim client only passes the name on; whoever counts knows the zone.
            raise InvalidLimit(
                f"timezone: {self.timezone!r} is not known here; give an IANA name such as"
                " Europe/Berlin (the package tzdata brings the database)"
            ) from error


def _has_time_zones() -> bool:
    """Whether this host has a time zone database at all."""
    try:
        ZoneInfo("Etc/UTC")
    except ZoneInfoNotFoundError:
        return False
    return True
