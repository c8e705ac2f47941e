"""How far recorded decisions went beyond a limit: a judge that shares no code with the engines.

A recorder sees when a check was sent and when its answer came; the owner decided somewhere between.
Only what holds wherever in between that was counts as over-admission, so a clean cluster is never
accused. Whether a limit was reached too early, and how long callers waited, is judged elsewhere.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from itertools import accumulate
from zoneinfo import ZoneInfo

from ringfence.limiter.limit import NS_PER_SECOND, Algorithm, Calendar, Limit

__all__ = ["Recorded", "of_living_owners", "over_admitted"]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One check as the one who asked saw it."""

    key: bytes
    cost: int
    sent_ns: int
    """When the check left: nanoseconds since the Unix epoch, on the asker's clock."""
    received_ns: int
    """When its answer came, on the same clock."""
    admitted: bool
    """Charged, and not refunded since."""
    owner: str
    """The node that decided; empty when none did."""


def of_living_owners(records: Collection[Recorded], dead: Collection[str]) -> list[Recorded]:
    """Leave out every key that a node in `dead` ever decided: its counts may have died with it."""
    lost = {record.key for record in records if record.owner in dead}
    return [record for record in records if record.key not in lost]


def over_admitted(records: Iterable[Recorded], limit: Limit, *, slack_ns: int = 0) -> int:
    """Count the units that were admitted beyond `limit`, over all keys.

    Of each key it counts the excess of windows that share no record, chosen so that the sum is
    largest; an exact limiter would have denied at least as much. `slack_ns` is how far the asker's
    clock and an owner's may stand apart. Raises `ValueError` for `concurrency`, whose releases are
    not recorded. Cost: a sort of the records.
    """
    flights: defaultdict[bytes, list[_Flight]] = defaultdict(list)
    for record in records:
        if record.admitted and record.cost > 0:
            flights[record.key].append(
                _Flight(record.sent_ns - slack_ns, record.received_ns + slack_ns, record.cost)
            )
    judge = _judge(limit)
    return sum(judge(of_key) for of_key in flights.values())


@dataclass(frozen=True, slots=True)
class _Flight:
    """An admitted cost, charged at some instant from `start` to `end`."""

    start: int
    end: int
    cost: int


def _judge(limit: Limit) -> Callable[[list[_Flight]], int]:
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
            raise ValueError("how many were in flight cannot be told from admissions alone")


def _with_soft_margin(limit: Limit, amount: int) -> int:
    return amount * (1000 + limit.soft_permille) // 1000


def _over_bucket(flights: list[_Flight], size: int, amount: int, period_ns: int) -> int:
    """Excess over `size` units at once and `amount` more per period, in stretches of any length.

    One pass over starts and ends in order of time. A stretch begins with a start and ends with an
    end; certain to lie in it is what started and ended within. Costs and instants are scaled, by
    the period and by the amount, so that all terms stay integers.
    """
    starts = sorted({flight.start for flight in flights})
    place_of = {start: place for place, start in enumerate(starts)}
    open_stretches = _Stretches(len(starts))
    over = 0  # most excess of stretches that ended before the current instant
    events = [(start, 0, start, 0) for start in starts]
    events += [(flight.end, 1, flight.start, flight.cost) for flight in flights]
    for instant, is_end, start, cost in sorted(events):
        if not is_end:
            open_stretches.begin(place_of[start], over * period_ns + start * amount)
            continue
        open_stretches.charge(place_of[start], cost * period_ns)
        scaled = open_stretches.best - size * period_ns - instant * amount
        over = max(over, -(-scaled // period_ns))
    return over


class _Stretches:
    """The best of many open stretches, each the sum of its beginning and all charged since it.

    A tree over the beginnings in order of time: per node the sum of its charges, and its best
    beginning with the charges from there to the node's end. A change costs one path to the root.
    """

    _UNOPENED = -(1 << 200)
    """Below anything that instants and costs of 64 bits can make."""

    def __init__(self, count: int) -> None:
        self._leaves = 1 << (count - 1).bit_length()
        self._charged = [0] * (2 * self._leaves)
        self._best = [self._UNOPENED] * (2 * self._leaves)

    @property
    def best(self) -> int:
        """The largest sum of all stretches begun."""
        return self._best[1]

    def begin(self, place: int, value: int) -> None:
        """Open the stretch that begins at `place`, worth `value` so far."""
        self._best[self._leaves + place] = value
        self._climb(self._leaves + place)

    def charge(self, place: int, cost: int) -> None:
        """Add `cost` to every stretch that began at `place` or before it."""
        self._charged[self._leaves + place] += cost
        self._best[self._leaves + place] += cost
        self._climb(self._leaves + place)

    def _climb(self, at: int) -> None:
        charged, best = self._charged, self._best
        while at > 1:
            at //= 2
            left, right = 2 * at, 2 * at + 1
            charged[at] = charged[left] + charged[right]
            best[at] = max(best[left] + charged[right], best[right])


def _over_windows(flights: list[_Flight], window_of: Callable[[int], object], allowed: int) -> int:
    """Excess in windows that do not overlap; a flight across a boundary belongs to none."""
    charged: Counter[object] = Counter()
    for flight in flights:
        window = window_of(flight.start)
        if window == window_of(flight.end):
            charged[window] += flight.cost
    return sum(max(0, cost - allowed) for cost in charged.values())


def _window_namer(limit: Limit) -> Callable[[int], object]:
    """Give the function that names the window which an instant falls into."""
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
    """Excess in any span `[start, start + length)`: only spans that begin with a flight matter."""
    return _over_any(flights, sorted({flight.start for flight in flights}), length, allowed)


def _over_estimate(flights: list[_Flight], limit: Limit, allowed: int) -> int:
    """Excess over what weighted counters can promise.

    Their estimate holds all of the newest `slots` counters, so those never exceed the limit; any
    span of a period reaches into one counter more, whose weight may have fallen to nothing.
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
    """Most excess of spans `[start, start + length)`, begun at any of `starts`, without overlap."""
    certain = [flight for flight in flights if flight.end - flight.start < length]
    starting, started = _running_total((flight.start, flight.cost) for flight in certain)
    ending, ended = _running_total((flight.end, flight.cost) for flight in certain)
    # From the last start back: either no span begins here, or one does and the next comes after it.
    over = [0] * (len(starts) + 1)
    for place in range(len(starts) - 1, -1, -1):
        start, end = starts[place], starts[place] + length
        # No flight is as long as a span, so what began before it and ended within is all there is
        # to take off.
        charged = ended[bisect_left(ending, end)] - started[bisect_left(starting, start)]
        excess = max(0, charged - allowed)
        over[place] = max(over[place + 1], excess + over[bisect_left(starts, end)])
    return over[0]


def _running_total(costs: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Sort (instant, cost) and give the instants, and the cost before each and in all."""
    ordered = sorted(costs)
    return [at for at, _ in ordered], list(accumulate((cost for _, cost in ordered), initial=0))
