"""Shapes of load: who asks for which key, and when.

A shape is two choices. Its stretches say how the rate rises and falls over time: within each of
them arrivals are a Poisson process, and all are scaled so that the mean over the whole time is
what the load says. Its keys say what each arrival asks for. A real log is replayed instead.
"""

from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, count
from math import inf, isfinite, pi, sin
from random import Random
from typing import TypeAlias

from simulations.scenarios.scenario import Load

__all__ = ["SHAPES", "Arrival", "arrivals", "replayed"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One check that a client asks for."""

    at: float
    """Seconds since the load began."""
    client: int
    """Which of the clients asks, from 0."""
    key: str
    cost: int


_Stretch: TypeAlias = tuple[float, float, float]
"""Start, end, and the rate between them in any unit; outside of all stretches nobody asks."""
_Numbers: TypeAlias = Mapping[str, float]
_Pick: TypeAlias = Callable[[Random], str]


@dataclass(frozen=True, slots=True)
class _Argument:
    default: float
    least: float = 0.0
    most: float = inf


@dataclass(frozen=True, slots=True)
class _Shape:
    arguments: Mapping[str, _Argument]
    stretches: Callable[[_Numbers, float], Iterator[_Stretch]]
    """Takes the arguments and the seconds; what lies outside of these seconds is cut off later."""
    keys: Callable[[_Numbers, int], _Pick]
    """Takes the arguments and the number of keys."""


def arrivals(load: Load, seconds: float, clients: int, random: Random) -> Iterator[Arrival]:
    """Give the arrivals of `load` in `[0, seconds)` lazily, sorted by time.

    Each comes from a client drawn evenly. In every shape the mean rate over these seconds is
    `load.per_second`, so a flash crowd or a burst leaves less for the rest of the time. Keys are
    `k0`, `k1` and so on. The shapes and their arguments, all of which are optional numbers:

    - `poisson`: the same rate all the time, all keys alike.
    - `bursts`: asks for `on_s` seconds, rests for `off_s`, and again.
    - `flash`: from second `at`, for `for_s` seconds, `factor` times as much as before and after.
    - `diurnal`: a sine around the mean with period `period_s`; `depth` is its height, 1 at most.
    - `edge`: asks only close to window edges, up to a twentieth of a period before and after each,
      the worst case for fixed windows. Edges are `period_s` apart, one of them at `offset_s`.
    - `zipf`: `k0` most, and each key in proportion to its rank to the power of `-exponent`.
    - `hot`: `k0` gets `share` of all; the others are like `zipf`, with its `exponent`.
    - `attack`: `share` of all goes to random keys that never come twice.

    Raises `ValueError` at once for a shape or argument that it does not know or cannot do.
    """
    shape = _shape(load)
    numbers = _numbers(load, shape)
    if load.keys < 1 or clients < 1:
        raise ValueError(f"a load needs a key and a client; it has {load.keys} and {clients}")
    if not (0 <= load.per_second < inf and 0 <= seconds < inf):
        raise ValueError(f"no load can be {load.per_second} checks per second for {seconds} s")
    if load.per_second * seconds == 0:
        return iter(())

    def stretches() -> Iterator[_Stretch]:
        return _within(shape.stretches(numbers, seconds), seconds)

    whole = sum((end - start) * weight for start, end, weight in stretches())
    if whole == 0:
        raise ValueError(f"load shape {load.shape!r} asks for nothing within {seconds} s")
    scale = load.per_second * seconds / whole
    pick = shape.keys(numbers, load.keys)
    return (
        Arrival(at, random.randrange(clients), pick(random), load.cost)
        for at in _instants(stretches(), scale, random)
    )


def replayed(
    entries: Sequence[tuple[float, str]], seconds: float, clients: int
) -> Iterator[Arrival]:
    """Squeeze a log of (time, client address) into `[0, seconds)`, lazily and in its order.

    An address is the key, and always comes from the same client. After the last entry the time
    that lies between two on average is left, so that replays can follow each other at one rate.
    Logs are written when a request ends, so times may step back: such an entry comes together with
    the latest before it. Raises `ValueError` at once when there is no client.
    """
    if clients < 1:
        raise ValueError(f"a replay needs a client; it has {clients}")
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


# How the rate goes up and down.


def _steady(_: _Numbers, seconds: float) -> Iterator[_Stretch]:
    yield 0.0, seconds, 1.0


def _bursts(numbers: _Numbers, seconds: float) -> Iterator[_Stretch]:
    on_s = numbers["on_s"]
    yield from _pulses(0.0, on_s, on_s + numbers["off_s"], seconds)


def _edge(numbers: _Numbers, seconds: float) -> Iterator[_Stretch]:
    period_s = numbers["period_s"]
    # The edge before the first one may still have its later half in the time of the load.
    first = numbers["offset_s"] % period_s - period_s
    yield from _pulses(first - period_s / 20, period_s / 10, period_s, seconds)


def _pulses(first: float, width: float, period: float, seconds: float) -> Iterator[_Stretch]:
    for number in count():
        # A product, since a running sum would drift away from the edges that it must meet.
        start = first + number * period
        if start >= seconds:
            return
        yield start, start + width, 1.0


def _flash(numbers: _Numbers, seconds: float) -> Iterator[_Stretch]:
    start, end = numbers["at"], numbers["at"] + numbers["for_s"]
    yield 0.0, start, 1.0
    yield start, end, numbers["factor"]
    yield end, seconds, 1.0


def _diurnal(numbers: _Numbers, seconds: float) -> Iterator[_Stretch]:
    """Follow the sine in 64 steps per period: the middle of each is within 5 % of its ends."""
    period_s, depth = numbers["period_s"], numbers["depth"]
    for number in count():
        start, end = number * period_s / 64, (number + 1) * period_s / 64
        if start >= seconds:
            return
        yield start, end, 1.0 + depth * sin(2 * pi * (number + 0.5) / 64)


def _within(stretches: Iterator[_Stretch], seconds: float) -> Iterator[_Stretch]:
    for start, end, weight in stretches:
        cut_start, cut_end = max(start, 0.0), min(end, seconds)
        if cut_start < cut_end and weight > 0:
            yield cut_start, cut_end, weight


def _instants(stretches: Iterator[_Stretch], scale: float, random: Random) -> Iterator[float]:
    for start, end, weight in stretches:
        # A Poisson process has no memory, so a stretch may begin it anew.
        at = start + random.expovariate(scale * weight)
        while at < end:
            yield at
            at += random.expovariate(scale * weight)


# Which key is asked for.


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
        # Random, so that they fall anywhere on the ring; numbered, so that none comes twice.
        return f"x{random.getrandbits(64):016x}-{next(sprayed)}"

    return pick


def _zipf_weights(keys: int, exponent: float) -> list[float]:
    return [rank**-exponent for rank in range(1, keys + 1)]


def _weighted(weights: Sequence[float]) -> _Pick:
    sums = list(accumulate(weights))
    # The bound `hi` is for a draw that is rounded up to the whole.
    return lambda random: f"k{bisect(sums, random.random() * sums[-1], hi=len(sums) - 1)}"


_DURATION = 0.001
"""The shortest that makes sense, and keeps the number of stretches within reason."""
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
        raise ValueError("load shape 'log' has no arrivals of its own: replay it with `replayed`")
    if load.shape not in _SHAPES:
        raise ValueError(f"unknown load shape {load.shape!r}; known are {', '.join(SHAPES)}")
    return _SHAPES[load.shape]


def _numbers(load: Load, shape: _Shape) -> dict[str, float]:
    """Check the arguments and fill in those that are not given."""
    for name, value in load.args.items():
        argument = shape.arguments.get(name)
        if argument is None:
            known = ", ".join(shape.arguments) or "none"
            raise ValueError(f"load shape {load.shape!r} has no {name!r}; known are {known}")
        number = None if isinstance(value, str) or not isfinite(value) else value
        if number is None or not argument.least <= number <= argument.most:
            raise ValueError(
                f"load shape {load.shape!r}: {name} is a number from {argument.least:g} to "
                f"{argument.most:g}, not {value!r}"
            )
    given = {name: float(value) for name, value in load.args.items()}
    return {name: given.get(name, known.default) for name, known in shape.arguments.items()}
