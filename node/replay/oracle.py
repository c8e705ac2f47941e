"""Computation of over-admission from recorded decisions, without any code of the limiter.

Each record has the times of a check and of its answer; the owner decided between them. Units count
as over-admitted only if they exceed the limit for every possible time of the decisions. So a
correct cluster is never accused. Wrong denials and waiting times are checked elsewhere.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, tzinfo
from itertools import accumulate
from zoneinfo import ZoneInfo

from msgspec import Struct

from ringfence.limiter.limit import NS_PER_SECOND, Algorithm, Calendar, Limit

__all__ = ["Recorded", "of_living_owners", "over_admitted"]


class Recorded(Struct, frozen=True):
    """Recorded check: its times and result, as the caller saw them."""

    key: bytes
    cost: int
    sent_ns: int
    """Time of the check in nanoseconds since the Unix epoch, on the caller's clock."""
    received_ns: int
    """Time of the answer on the same clock."""
    admitted: bool
    """Whether it was charged and not refunded."""
    owner: str
    """The node that decided; empty when none did."""


def of_living_owners(records: Collection[Recorded], dead: Collection[str]) -> list[Recorded]:
    """Remove the records of every key that a killed node decided, because its counts may be
    lost."""
    lost = {record.key for record in records if record.owner in dead}
    return [record for record in records if record.key not in lost]


def over_admitted(records: Iterable[Recorded], limit: Limit, *, slack_ns: int = 0) -> int:
    """Count the units that were admitted beyond `limit`, over all keys.

    For each key, the excess of several disjoint windows is added, chosen so that the sum is
    maximal. An exact limiter would have denied at least as much. `slack_ns` is the maximum
    difference between the caller's and an owner's clock. Raises `ValueError` for `concurrency`,
    whose releases are not recorded. Cost: a sort of the records.
    """
    flights: defaultdict[bytes, list[_Flight]] = defaultdict(list)
    for record in records:
        if record.admitted and record.cost > 0:
            flights[record.key].append(
                _Flight(record.sent_ns - slack_ns, record.received_ns + slack_ns, record.cost)
            )
    count_excess = _excess_counter(limit)
    return sum(count_excess(of_key) for of_key in flights.values())


class _Flight(Struct, frozen=True):
    """Cost of one admitted check, which was charged at an unknown instant between `start` and
    `end`."""

    start: int
    end: int
    cost: int


def _excess_counter(limit: Limit) -> Callable[[list[_Flight]], int]:
    allowed = _with_soft_margin(limit, limit.amount)
    match limit.algorithm:
        case Algorithm.TOKEN_BUCKET | Algorithm.LEAKY_BUCKET:
            size = _with_soft_margin(limit, limit.bucket_size)
            return lambda flights: _over_bucket(flights, size, limit.amount, limit.period_ns)
        case Algorithm.FIXED_WINDOW:
            window_of = _window_namer(limit)
            return lambda flights: _over_windows(flights, window_of, allowed)
        case Algorithm.SLIDING_WINDOW_LOG:
            return lambda flights: _over_spans(flights, limit.period_ns, allowed)
        case Algorithm.SLIDING_WINDOW:
            return lambda flights: _over_estimate(flights, limit, allowed)
        case Algorithm.CONCURRENCY:
            raise ValueError("the number of held slots does not follow from admissions alone")


def _with_soft_margin(limit: Limit, amount: int) -> int:
    return amount * (1000 + limit.soft_permille) // 1000


def _over_bucket(flights: list[_Flight], size: int, amount: int, period_ns: int) -> int:
    """Return the units admitted beyond a token bucket of size `size` that regains `amount` units
    per period.

    One pass over starts and ends in order of time. A stretch of time begins at a start and ends at
    an end; only costs that start and end inside it count. Costs and instants are scaled by the
    period and by the amount, so that all terms are integers.
    """
    starts = sorted({flight.start for flight in flights})
    place_of = {start: place for place, start in enumerate(starts)}
    open_segments = _MaxSumTree(len(starts))
    over = 0  # most excess of stretches that ended before the current instant
    events = [(start, 0, start, 0) for start in starts]
    events += [(flight.end, 1, flight.start, flight.cost) for flight in flights]
    for instant, is_end, start, cost in sorted(events):
        if not is_end:
            open_segments.begin(place_of[start], over * period_ns + start * amount)
            continue
        open_segments.charge(place_of[start], cost * period_ns)
        scaled = open_segments.best - size * period_ns - instant * amount
        over = max(over, -(-scaled // period_ns))
    return over


class _MaxSumTree:
    """Set of stretches of time without an end yet, which finds the one with the largest value.

    The value of a stretch is its initial value and the sum of all later charges. The data structure
    is a tree over the starts in order of time. Each tree node has the sum of its charges, and the
    best start with the charges from there to its end. An update changes one path to the root.
    """

    _UNOPENED = -(1 << 200)
    """Below every value from instants and costs of 64 bits."""

    def __init__(self, count: int) -> None:
        self._leaves = 1 << (count - 1).bit_length()
        self._charged = [0] * (2 * self._leaves)
        self._best = [self._UNOPENED] * (2 * self._leaves)

    @property
    def best(self) -> int:
        """Return the largest value of all stretches of time in this set."""
        return self._best[1]

    def begin(self, place: int, value: int) -> None:
        """Add the period that begins at index `place` of the list of period starts, with `value` as
        its first value."""
        self._best[self._leaves + place] = value
        self._update_ancestors(self._leaves + place)

    def charge(self, place: int, cost: int) -> None:
        """Add the cost of a check to every stretch of time whose start number is at most
        `place`."""
        self._charged[self._leaves + place] += cost
        self._best[self._leaves + place] += cost
        self._update_ancestors(self._leaves + place)

    def _update_ancestors(self, at: int) -> None:
        charged, best = self._charged, self._best
        while at > 1:
            at //= 2
            left, right = 2 * at, 2 * at + 1
            charged[at] = charged[left] + charged[right]
            best[at] = max(best[left] + charged[right], best[right])


def _over_windows(flights: list[_Flight], window_of: Callable[[int], object], allowed: int) -> int:
    """Return the units admitted beyond the limit in fixed windows; a cost that may belong to two
    windows is ignored."""
    charged: Counter[object] = Counter()
    for flight in flights:
        window = window_of(flight.start)
        if window == window_of(flight.end):
            charged[window] += flight.cost
    return sum(max(0, cost - allowed) for cost in charged.values())


def _window_namer(limit: Limit) -> Callable[[int], object]:
    """Return a function that maps an instant to the identifier of its window."""
    if limit.calendar is None:
        return lambda instant: instant // limit.period_ns
    zone: tzinfo = UTC if limit.timezone == "UTC" else ZoneInfo(limit.timezone)
    name = _CALENDAR_NAMES[limit.calendar]
    return lambda instant: name(datetime.fromtimestamp(instant // NS_PER_SECOND, zone))


_CALENDAR_NAMES: dict[Calendar, Callable[[datetime], tuple[int, ...]]] = {
    Calendar.DAY: lambda local: (local.year, local.month, local.day),
    Calendar.WEEK: lambda local: tuple(local.isocalendar()[:2]),
    Calendar.MONTH: lambda local: (local.year, local.month),
    Calendar.YEAR: lambda local: (local.year,),
}


def _over_spans(flights: list[_Flight], length: int, allowed: int) -> int:
    """Return the units admitted beyond the limit in the worst sliding windows of this length."""
    return _over_any(flights, sorted({flight.start for flight in flights}), length, allowed)


def _over_estimate(flights: list[_Flight], limit: Limit, allowed: int) -> int:
    """Return the units admitted beyond what the sliding-window estimate guarantees.

    The estimate contains the newest `slots` counters completely, so those never exceed the limit. A
    span of one period includes a part of one more counter, whose weight may be zero.
    """
    slots, length = limit.slots, limit.period_ns
    over = _over_spans(flights, length, 2 * allowed)
    if length % slots == 0:
        slot = length // slots
        firsts = {flight.start // slot for flight in flights}
        starts = sorted({(first - back) * slot for first in firsts for back in range(slots)})
        over = max(over, _over_any(flights, starts, length, allowed))
    return over


def _over_any(flights: list[_Flight], starts: list[int], length: int, allowed: int) -> int:
    """Return the most units admitted beyond the limit in disjoint spans of time that begin at
    `starts`."""
    certain = [flight for flight in flights if flight.end - flight.start < length]
    starting, started = _running_total((flight.start, flight.cost) for flight in certain)
    ending, ended = _running_total((flight.end, flight.cost) for flight in certain)
    # Go backwards from the last start. Either a span begins here and the next one comes after it,
    # or none begins here.
    over = [0] * (len(starts) + 1)
    for place in range(len(starts) - 1, -1, -1):
        start, end = starts[place], starts[place] + length
        # No cost interval is as long as a span, so only costs that began before it and ended inside
        # are subtracted.
        charged = ended[bisect_left(ending, end)] - started[bisect_left(starting, start)]
        excess = max(0, charged - allowed)
        over[place] = max(over[place + 1], excess + over[bisect_left(starts, end)])
    return over[0]


def _running_total(costs: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Sort pairs of instant and cost; return the instants and the cumulative costs."""
    ordered = sorted(costs)
    return [at for at, _ in ordered], list(accumulate((cost for _, cost in ordered), initial=0))
