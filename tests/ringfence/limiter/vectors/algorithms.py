"""Worked examples of every algorithm as plain data, for engines and APIs that decide checks.

Each vector is the history of one key with one limit: instants in nanoseconds from the start, and
the expected answers. A field that is None is not part of the example.
"""

from dataclasses import dataclass
from decimal import Decimal

from ringfence.limiter import NS_PER_SECOND, Algorithm, Calendar, Limit

__all__ = ["CHARGE_VECTORS", "VECTORS", "Step", "Vector"]

SECOND = NS_PER_SECOND
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def ns(seconds: str) -> int:
    """Convert decimal seconds exactly to nanoseconds."""
    return int(Decimal(seconds) * SECOND)


@dataclass(frozen=True)
class Step:
    """One check or charge, and its expected answer."""

    at_ns: int
    cost: int
    """Cost of the check; 0 for a peek."""
    is_admitted: bool
    """Whether the check is admitted. For a peek: whether cost 1 would be admitted."""
    remaining: int | None = None
    retry_after_ns: int | None = None
    reset_after_ns: int | None = None
    delay_ns: int | None = None
    is_permanent: bool = False
    """Whether the check is denied and could never be admitted."""
    is_over_soft: bool = False
    is_charge: bool = False
    """Whether the cost is charged also beyond the limit; admitted when the limit still holds."""


@dataclass(frozen=True)
class Vector:
    """History of one key with one limit."""

    name: str
    limit: Limit
    steps: tuple[Step, ...]


def admit(
    at: str,
    cost: int = 1,
    *,
    remaining: int | None = None,
    reset: str | None = None,
    delay: str | None = None,
    over_soft: bool = False,
) -> Step:
    return Step(
        ns(at),
        cost,
        True,
        remaining=remaining,
        retry_after_ns=0,
        reset_after_ns=None if reset is None else ns(reset),
        delay_ns=None if delay is None else ns(delay),
        is_over_soft=over_soft,
    )


def deny(at: str, cost: int = 1, *, retry: str | None = None, remaining: int | None = None) -> Step:
    return Step(
        ns(at),
        cost,
        False,
        remaining=remaining,
        retry_after_ns=None if retry is None else ns(retry),
    )


def charge(at: str, cost: int, *, remaining: int = 0, over_soft: bool = False) -> Step:
    return Step(
        ns(at),
        cost,
        True,
        remaining=remaining,
        retry_after_ns=0,
        is_over_soft=over_soft,
        is_charge=True,
    )


def overdraw(at: str, cost: int, *, retry: str, reset: str | None = None) -> Step:
    return Step(
        ns(at),
        cost,
        False,
        remaining=0,
        retry_after_ns=ns(retry),
        reset_after_ns=None if reset is None else ns(reset),
        is_charge=True,
    )


def never(at: str, cost: int, *, remaining: int) -> Step:
    return Step(ns(at), cost, False, remaining=remaining, retry_after_ns=0, is_permanent=True)


def repeat(step: Step, times: int) -> tuple[Step, ...]:
    return (step,) * times


_SLIDING_50 = Limit.of_ns(50, MINUTE, Algorithm.SLIDING_WINDOW)
_REDIS_CELL = Limit.of_ns(5, 5 * SECOND, Algorithm.TOKEN_BUCKET, burst=5)

VECTORS = (
    Vector(
        "fixed window: in each second the fourth and later requests are denied",
        Limit.of_ns(3, SECOND, Algorithm.FIXED_WINDOW),
        (
            *repeat(admit("0.1"), 3),
            deny("0.1", retry="0.9"),
            deny("0.999999999", retry="0.000000001"),
            *repeat(admit("1.0"), 3),
            deny("1.5", retry="0.5"),
            deny("1.9", retry="0.1"),
        ),
    ),
    Vector(
        "fixed window: ten pass in a minute that straddles the edge",
        Limit.of_ns(5, MINUTE, Algorithm.FIXED_WINDOW),
        (
            *(admit(at) for at in ("30", "37", "44", "51", "59")),
            *(admit(at) for at in ("60", "67", "74", "81", "89")),
            deny("89.5", retry="30.5"),
        ),
    ),
    Vector(
        "sliding window: does not allow ten in a minute that straddles the edge",
        Limit.of_ns(5, MINUTE, Algorithm.SLIDING_WINDOW),
        (
            *(admit(at) for at in ("30", "37", "44", "51", "59")),
            deny("60"),
            admit("67", remaining=0),
            deny("67"),
        ),
    ),
    Vector(
        "sliding window log: does not allow six in a minute that straddles the edge",
        Limit.of_ns(5, MINUTE, Algorithm.SLIDING_WINDOW_LOG),
        (
            *(admit(at) for at in ("30", "37", "44", "51", "59")),
            deny("60", retry="30"),
            deny("89.999999999", retry="0.000000001"),
            admit("90"),
        ),
    ),
    Vector(
        "sliding window log: a denied hit is not stored",
        Limit.of_ns(2, MINUTE, Algorithm.SLIDING_WINDOW_LOG),
        (admit("1"), admit("30"), deny("50", retry="11"), admit("100")),
    ),
    Vector(
        "rolling window: both hits count for a whole second",
        Limit.of_ns(2, SECOND, Algorithm.SLIDING_WINDOW_LOG),
        (
            admit("0.3"),
            admit("0.4"),
            deny("0.5", retry="0.8"),
            deny("1.0", retry="0.3"),
            deny("1.299999999"),
            admit("1.3"),
            deny("1.3", retry="0.1"),
        ),
    ),
    Vector(
        "sliding window: 3 and 70 % of 5, rounded down, leave room for one of 7",
        Limit.of_ns(7, MINUTE, Algorithm.SLIDING_WINDOW),
        (*repeat(admit("10"), 5), *repeat(admit("78"), 3), admit("78", remaining=0), deny("78")),
    ),
    Vector(
        "sliding window: retry_after is the instant at which the carried-over part falls to 30",
        _SLIDING_50,
        (
            admit("20", 42),
            admit("75", 18),
            admit("75", remaining=0),
            deny("75", retry="0.714285715"),
            deny("75.714285714", retry="0.000000001"),
            admit("75.714285715", remaining=0),
        ),
    ),
    Vector(
        "sliding window in slots: only the oldest slot is weighed",
        Limit.of_ns(10, MINUTE, Algorithm.SLIDING_WINDOW, slots=6),
        (
            admit("5", 4),
            admit("15", 6, remaining=0),
            deny("60", retry="0.000000001"),
            deny("62.5", 2, retry="0.000000001"),
            admit("65", 2, remaining=0),
            deny("69.999999999", 3, retry="0.000000002"),
            admit("70", 2, remaining=0),
        ),
    ),
    Vector(
        "token bucket of 4 per minute: a token every 15 s, never more than 4",
        Limit.of_ns(4, MINUTE, Algorithm.TOKEN_BUCKET),
        (
            *repeat(admit("0"), 4),
            deny("0", retry="15"),
            deny("14.999999999", retry="0.000000001"),
            admit("15", remaining=0),
            deny("15", retry="15"),
            *(admit("135", remaining=left) for left in (3, 2, 1, 0)),
            deny("135", retry="15"),
        ),
    ),
    Vector(
        "token bucket: the redis-cell case",
        _REDIS_CELL,
        (
            never("0", 6, remaining=5),
            *(admit("0", remaining=4 - used, reset=str(used + 1)) for used in range(5)),
            deny("0", retry="1", remaining=0),
            admit("3.0", remaining=2, reset="3"),
            admit("3.1", remaining=1, reset="3.9"),
            admit("4.0", remaining=1, reset="4"),
            admit("8.0", remaining=4, reset="1"),
            admit("9.5", remaining=4, reset="1"),
            admit("9.5", 0, remaining=4, reset="1"),
            admit("9.5", 2, remaining=2, reset="3"),
            deny("9.5", 5, retry="3", remaining=2),
        ),
    ),
    Vector(
        "token bucket: a third of a second is kept exactly",
        Limit.of_ns(3, SECOND, Algorithm.TOKEN_BUCKET),
        (
            admit("0", 3, reset="1"),
            deny("0", retry="0.333333334"),
            admit("0.333333334"),
            deny("0.666666666", retry="0.000000001"),
            admit("0.666666667"),
            admit("1"),
            deny("1", 3, retry="1"),
            admit("2", 3),
        ),
    ),
    Vector(
        "leaky bucket as a queue: requests leave one every 2 s, and a full queue denies",
        Limit.of_ns(30, MINUTE, Algorithm.LEAKY_BUCKET, burst=3, queue=True),
        (
            admit("0", delay="0"),
            admit("0", delay="2"),
            admit("1", delay="3"),
            deny("1", retry="1"),
            admit("2", delay="4", remaining=0),
            admit("20", delay="0"),
        ),
    ),
    Vector(
        "leaky bucket as a meter: the same arithmetic without any wait",
        Limit.of_ns(30, MINUTE, Algorithm.LEAKY_BUCKET, burst=3),
        (admit("0", 3, delay="0"), deny("1", retry="1"), admit("2", delay="0")),
    ),
    Vector(
        "soft limit of 100 per minute plus 10 %: the 110th hit passes, the 111th does not",
        Limit.of_ns(100, MINUTE, Algorithm.FIXED_WINDOW, soft_permille=100),
        (
            admit("0", 99, remaining=11),
            admit("0", remaining=10),
            *(admit("0", remaining=9 - over, over_soft=True) for over in range(10)),
            deny("0", retry="60"),
            never("0", 111, remaining=0),
        ),
    ),
    Vector(
        "race: of two checks for the last unit exactly one is admitted",
        Limit.of_ns(4, MINUTE, Algorithm.FIXED_WINDOW),
        (admit("1", 3), admit("2"), deny("2")),
    ),
    Vector(
        "a first request larger than the limit leaves the key untouched",
        Limit.of_ns(10, MINUTE, Algorithm.SLIDING_WINDOW),
        (never("0", 11, remaining=10), admit("0", 10, remaining=0)),
    ),
    Vector(
        "a limit of 0 refuses everything for good",
        Limit.of_ns(0, MINUTE, Algorithm.TOKEN_BUCKET),
        (never("0", 0, remaining=0), never("0", 1, remaining=0)),
    ),
    Vector(
        "concurrency: a lost holder frees itself when its lease ends",
        Limit.of_ns(2, 10 * SECOND, Algorithm.CONCURRENCY),
        (
            admit("0", remaining=1),
            admit("4", remaining=0, reset="10"),
            deny("5", retry="5"),
            deny("5", 2, retry="9"),
            never("5", 3, remaining=0),
            deny("9.999999999"),
            admit("10", remaining=0),
        ),
    ),
    Vector(
        "calendar day: the count ends at midnight, not after 24 hours",
        Limit.of_ns(2, DAY, Algorithm.FIXED_WINDOW, calendar=Calendar.DAY),
        (admit("82800", 2), deny("82800", retry="3600"), admit("86400", 2)),
    ),
)

CHARGE_VECTORS = (
    Vector(
        "fixed window: answers of 300 close a budget of 1000 with the fourth",
        Limit.of_ns(1000, MINUTE, Algorithm.FIXED_WINDOW),
        (
            *(
                step
                for left in (700, 400, 100)
                for step in (admit("1", 0), charge("2", 300, remaining=left))
            ),
            admit("3", 0, remaining=100),
            overdraw("4", 300, retry="56", reset="56"),
            deny("5", 0, retry="55", remaining=0),
            deny("5", retry="55", remaining=0),
            overdraw("6", 300, retry="54"),
            admit("60", remaining=999),
        ),
    ),
    Vector(
        "fixed window: a charge of 0 is within a limit that is just used up, a peek is denied",
        Limit.of_ns(2, MINUTE, Algorithm.FIXED_WINDOW),
        (
            charge("0", 0, remaining=2),
            charge("0", 2),
            charge("1", 0),
            deny("1", 0, retry="59", remaining=0),
            overdraw("2", 1, retry="58"),
            overdraw("2", 0, retry="58"),
        ),
    ),
    Vector(
        "first hit: a charge begins the window, past the limit too",
        Limit.of_ns(5, 10 * SECOND, Algorithm.FIXED_WINDOW, first_hit=True),
        (overdraw("3", 9, retry="10"), deny("12.999999999", retry="0.000000001"), admit("13", 5)),
    ),
    Vector(
        "token bucket: debt is repaid by time, a unit a second",
        Limit.of_ns(10, 10 * SECOND, Algorithm.TOKEN_BUCKET),
        (
            overdraw("0", 15, retry="6", reset="15"),
            deny("0", 5, retry="10", remaining=0),
            never("0", 11, remaining=0),
            deny("5.9", retry="0.1", remaining=0),
            admit("6", remaining=0),
            overdraw("6", 20, retry="21"),
            admit("36", 10, remaining=0),
        ),
    ),
    Vector(
        "leaky bucket: the queue is entered again once the debt has drained",
        Limit.of_ns(5, 5 * SECOND, Algorithm.LEAKY_BUCKET, queue=True),
        (overdraw("0", 7, retry="3"), deny("2.5", retry="0.5"), admit("3", delay="4")),
    ),
    Vector(
        "sliding window: debt weighs on the next window until enough of it has slid out",
        Limit.of_ns(100, MINUTE, Algorithm.SLIDING_WINDOW),
        (
            overdraw("0", 250, retry="96.000000001"),
            deny("59", retry="37.000000001", remaining=0),
            deny("96", retry="0.000000001", remaining=0),
            admit("96.000000001", remaining=0),
        ),
    ),
    Vector(
        "sliding window log: each charge is over a period after it was made",
        Limit.of_ns(5, 10 * SECOND, Algorithm.SLIDING_WINDOW_LOG),
        (
            overdraw("0", 7, retry="10", reset="10"),
            overdraw("4", 1, retry="6", reset="10"),
            deny("4", 4, retry="6", remaining=0),
            deny("4", 5, retry="10", remaining=0),
            admit("10", 4, remaining=0),
        ),
    ),
    Vector(
        "soft margin: charges inside it are marked, beyond it the limit is overdrawn",
        Limit.of_ns(10, SECOND, Algorithm.FIXED_WINDOW, soft_permille=200),
        (charge("0", 11, remaining=1, over_soft=True), overdraw("0", 2, retry="1")),
    ),
)
"""Histories with charges."""
