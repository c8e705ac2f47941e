"""Shapes of load: at which times which clients check which keys.

A shape has two parts. Its segments describe the rate over time. Within a segment, arrivals are a
Poisson process. All rates are scaled so that their mean is the rate of the load. The second part
chooses the key of each arrival. Access logs are replayed instead.
"""

from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, count
from math import inf, isfinite, pi, sin
from random import Random
from typing import TypeAlias

from msgspec import Struct

from simulations.scenarios.scenario import Load

__all__ = ["SHAPES", "Arrival", "arrivals", "replayed"]


class Arrival(Struct, frozen=True):
    """One check that a client sends, with its time and key."""

    at: float
    """Seconds since the load began."""
    client: int
    """Number of the client, from 0."""
    key: str
    cost: int


_Segment: TypeAlias = tuple[float, float, float]
"""Start, end and relative rate of a segment; outside of all segments there is no load."""
_Numbers: TypeAlias = Mapping[str, float]
_Pick: TypeAlias = Callable[[Random], str]


class _Argument(Struct, frozen=True):
    default: float
    least: float = 0.0
    most: float = inf


class _Shape(Struct, frozen=True):
    arguments: Mapping[str, _Argument]
    segments: Callable[[_Numbers, float], Iterator[_Segment]]
    """Function from arguments and duration to segments, which are later limited to the duration."""
    keys: Callable[[_Numbers, int], _Pick]
    """Function from arguments and the number of keys to a choice of keys."""


def arrivals(load: Load, seconds: float, clients: int, random: Random) -> Iterator[Arrival]:
    """Yield the arrivals of `load` in `[0, seconds)`, sorted by time.

    The client of each arrival is drawn uniformly. The mean rate over the whole time is
    `load.per_second` in every shape. A flash crowd or a burst therefore lowers the rate of the
    rest. Keys are `k0`, `k1` and so on. The shapes and their arguments, which are optional numbers:

    - `poisson`: a constant rate and uniformly distributed keys.
    - `bursts`: load for `on_s` seconds, none for `off_s` seconds, repeatedly.
    - `flash`: `factor` times the usual rate for `for_s` seconds from second `at`.
    - `diurnal`: a sine around the mean with period `period_s` and amplitude `depth`, at most 1.
    - `edge`: load only near window edges, up to 5 % of a period before and after each,
          the worst case of fixed windows. Edges are `period_s` apart, one of them at `offset_s`.
    - `zipf`: frequency of each key in proportion to its rank to the power of `-exponent`.
    - `hot`: `k0` has `share` of all checks; the other keys follow `zipf` with `exponent`.
    - `attack`: `share` of all checks use random keys that never repeat.

    Raises `ValueError` immediately for an unknown shape or an invalid argument.
    """
    shape = _shape(load)
    numbers = _numbers(load, shape)
    if load.keys < 1 or clients < 1:
        raise ValueError(
            f"load must have at least 1 key and 1 client, got {load.keys} and {clients}"
        )
    if not (0 <= load.per_second < inf and 0 <= seconds < inf):
        raise ValueError(
            "rate and duration of a load must be finite and at least 0, "
            f"got {load.per_second} checks per second for {seconds} s"
        )
    if load.per_second * seconds == 0:
        return iter(())

    def segments() -> Iterator[_Segment]:
        return _within(shape.segments(numbers, seconds), seconds)

    whole = sum((end - start) * weight for start, end, weight in segments())
    if whole == 0:
        raise ValueError(
            f"load shape {load.shape!r} must have arrivals within {seconds} s, got none"
        )
    scale = load.per_second * seconds / whole
    pick = shape.keys(numbers, load.keys)
    return (
        Arrival(at, random.randrange(clients), pick(random), load.cost)
        for at in _instants(segments(), scale, random)
    )


def replayed(
    entries: Sequence[tuple[float, str]], seconds: float, clients: int
) -> Iterator[Arrival]:
    """Yield the entries of an access log as checks, compressed into `[0, seconds)`.

    The address is the key, and each address always has the same client. One mean interval remains
    after the last entry, so that consecutive replays keep the rate. Logs are written when a request
    ends, so a time may be earlier than the one before it. Such an entry gets the latest earlier
    time. Raises `ValueError` immediately if there is no client.
    """
    if clients < 1:
        raise ValueError(f"replay must have at least 1 client, got {clients}")
    times = accumulate((time for time, _ in entries), max)
    began = entries[0][0] if entries else 0.0
    span = max((time for time, _ in entries), default=began) - began
    used = seconds * (len(entries) - 1) / len(entries) if entries else 0.0
    return (
        Arrival(
            at=(time - began) / span * used if span else 0.0,
            client=_client_of(address, clients),
            key=address,
            cost=1,
        )
        for time, (_, address) in zip(times, entries, strict=True)
    )


def _client_of(address: str, clients: int) -> int:
    return int.from_bytes(blake2b(address.encode(), digest_size=8).digest(), "big") % clients


# Segments of the rate.


def _steady(_: _Numbers, seconds: float) -> Iterator[_Segment]:
    yield 0.0, seconds, 1.0


def _bursts(numbers: _Numbers, seconds: float) -> Iterator[_Segment]:
    on_s = numbers["on_s"]
    yield from _pulses(0.0, on_s, on_s + numbers["off_s"], seconds)


def _edge(numbers: _Numbers, seconds: float) -> Iterator[_Segment]:
    period_s = numbers["period_s"]
    # The second half of the edge before the first one may lie within the load.
    first = numbers["offset_s"] % period_s - period_s
    yield from _pulses(first - period_s / 20, period_s / 10, period_s, seconds)


def _pulses(first: float, width: float, period: float, seconds: float) -> Iterator[_Segment]:
    for number in count():
        # A product, since the rounding errors of a running sum would grow.
        start = first + number * period
        if start >= seconds:
            return
        yield start, start + width, 1.0


def _flash(numbers: _Numbers, seconds: float) -> Iterator[_Segment]:
    start, end = numbers["at"], numbers["at"] + numbers["for_s"]
    yield 0.0, start, 1.0
    yield start, end, numbers["factor"]
    yield end, seconds, 1.0


def _diurnal(numbers: _Numbers, seconds: float) -> Iterator[_Segment]:
    """Return segments that approximate a sine: 64 per period, each within 5 % of the curve."""
    period_s, depth = numbers["period_s"], numbers["depth"]
    for number in count():
        start, end = number * period_s / 64, (number + 1) * period_s / 64
        if start >= seconds:
            return
        yield start, end, 1.0 + depth * sin(2 * pi * (number + 0.5) / 64)


def _within(segments: Iterator[_Segment], seconds: float) -> Iterator[_Segment]:
    for start, end, weight in segments:
        cut_start, cut_end = max(start, 0.0), min(end, seconds)
        if cut_start < cut_end and weight > 0:
            yield cut_start, cut_end, weight


def _instants(segments: Iterator[_Segment], scale: float, random: Random) -> Iterator[float]:
    for start, end, weight in segments:
        # A Poisson process has no memory, so each segment may restart it.
        at = start + random.expovariate(scale * weight)
        while at < end:
            yield at
            at += random.expovariate(scale * weight)


# Choice of keys.


def _even(_: _Numbers, keys: int) -> _Pick:
    return lambda random: f"k{random.randrange(keys)}"


def _zipf(numbers: _Numbers, keys: int) -> _Pick:
    return _weighted(_zipf_weights(keys, numbers["exponent"]))


def _hot(numbers: _Numbers, keys: int) -> _Pick:
    share = numbers["share"]
    others = _zipf_weights(keys - 1, numbers["exponent"])
    whole = sum(others)
    return _weighted([share, *((1 - share) * weight / whole for weight in others)])


def _attack(numbers: _Numbers, keys: int) -> _Pick:
    normal, share, sprayed = _even(numbers, keys), numbers["share"], count()

    def pick(random: Random) -> str:
        if random.random() >= share:
            return normal(random)
        # A random part spreads the keys over the ring; a number makes each key unique.
        return f"x{random.getrandbits(64):016x}-{next(sprayed)}"

    return pick


def _zipf_weights(keys: int, exponent: float) -> list[float]:
    return [rank**-exponent for rank in range(1, keys + 1)]


def _weighted(weights: Sequence[float]) -> _Pick:
    sums = list(accumulate(weights))
    # The bound `hi` handles a draw that is rounded up to the total.
    return lambda random: f"k{bisect(sums, random.random() * sums[-1], hi=len(sums) - 1)}"


_DURATION = 0.001
"""Shortest period or duration; it bounds the number of segments."""
_EXPONENT = _Argument(1.1, most=10.0)
_SHARE = _Argument(0.5, most=1.0)

_SHAPES = {
    "poisson": _Shape({}, _steady, _even),
    "bursts": _Shape({"on_s": _Argument(1.0, _DURATION), "off_s": _Argument(4.0)}, _bursts, _even),
    "flash": _Shape(
        {"at": _Argument(10.0), "for_s": _Argument(5.0), "factor": _Argument(10.0, 1.0)},
        _flash,
        _even,
    ),
    "hot": _Shape({"share": _SHARE, "exponent": _EXPONENT}, _steady, _hot),
    "zipf": _Shape({"exponent": _EXPONENT}, _steady, _zipf),
    "attack": _Shape({"share": _SHARE}, _steady, _attack),
    "diurnal": _Shape(
        {"period_s": _Argument(60.0, _DURATION), "depth": _Argument(0.8, most=1.0)},
        _diurnal,
        _even,
    ),
    "edge": _Shape(
        {"period_s": _Argument(10.0, _DURATION), "offset_s": _Argument(0.0)}, _edge, _even
    ),
}

SHAPES = tuple(_SHAPES)
"""Names of all shapes that `arrivals` knows."""


def _shape(load: Load) -> _Shape:
    if load.shape == "log":
        raise ValueError(
            "load shape must not be 'log' here; pass the entries of the log to `replayed`"
        )
    if load.shape not in _SHAPES:
        known = ", ".join((*SHAPES, "listed", "log"))
        raise ValueError(f"load shape must be one of {known}, got {load.shape!r}")
    return _SHAPES[load.shape]


def _numbers(load: Load, shape: _Shape) -> dict[str, float]:
    """Validate the arguments of a shape and add the defaults."""
    for name, value in load.args.items():
        argument = shape.arguments.get(name)
        if argument is None:
            known = ", ".join(shape.arguments) or "none"
            raise ValueError(
                f"argument of load shape {load.shape!r} must be one of {known}, got {name!r}"
            )
        number = None if isinstance(value, str) or not isfinite(value) else value
        if number is None or not argument.least <= number <= argument.most:
            raise ValueError(
                f"{name} of load shape {load.shape!r} must be a number from {argument.least:g} to "
                f"{argument.most:g}, got {value!r}"
            )
    given = {name: float(value) for name, value in load.args.items()}
    return {name: given.get(name, known.default) for name, known in shape.arguments.items()}
