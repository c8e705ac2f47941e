"""The limiter: what the owner pays to decide, one check at a time and a frame at a time.

Every sample asks about every key once, in an order that leaps through the table as callers do.
"""

from collections.abc import Iterator
from itertools import count
from time import perf_counter_ns

from benchmarks.figure import Figure, measure
from ringfence.limiter import NS_PER_SECOND, Algorithm, Limit, Table

__all__ = ["run"]

FRAME = 256
FEW, MANY = 10_000, 100_000
STRIDE = 7_919
"""A prime, so that stepping by it meets every key."""
START = 1_700_000_000 * NS_PER_SECOND
MINUTE = 60 * NS_PER_SECOND


def run(rounds: int) -> Iterator[Figure]:
    """Measure the default algorithm with few and many keys, then each algorithm with few."""
    default = Limit(100, MINUTE)
    single = measure("limiter.single_ns", "ns", Asker(default, FEW).single_ns, rounds)
    batch = measure("limiter.batch_ns", "ns", Asker(default, FEW).batch_ns, rounds)
    yield single
    yield batch
    yield _ratio("limiter.batch_vs_single", batch, single)
    many = Asker(default, MANY)
    yield measure("limiter.single_ns.100k_keys", "ns", many.single_ns, rounds)
    yield measure("limiter.batch_ns.100k_keys", "ns", many.batch_ns, rounds)
    for algorithm in Algorithm:
        asker = Asker(Limit(100, MINUTE, algorithm), FEW)
        yield measure(f"limiter.single_ns.{algorithm}", "ns", asker.single_ns, rounds)
        yield measure(f"limiter.batch_ns.{algorithm}", "ns", asker.batch_ns, rounds)
    slotted = Asker(Limit(100, MINUTE, slots=10), FEW)
    yield measure("limiter.batch_ns.sliding_window_10_slots", "ns", slotted.batch_ns, rounds)
    denied = Asker(Limit(1, 3600 * NS_PER_SECOND), FEW)
    yield measure("limiter.batch_ns.denied", "ns", denied.batch_ns, rounds)


class Asker:
    """A table that knows all its keys, and a clock that moves on between frames."""

    def __init__(self, limit: Limit, keys: int) -> None:
        self._keys = [b"\0\0\0\0\0\0\0\1client-%011d" % (i * STRIDE % keys) for i in range(keys)]
        self._table = Table(limit, max_keys=keys)
        self._clock = count(START, NS_PER_SECOND // 1000)
        self.batch_ns()

    def single_ns(self) -> float:
        """Ask about each key in a call of its own; nanoseconds per check."""
        check, now = self._table.check, next(self._clock)
        begin = perf_counter_ns()
        for key in self._keys:
            check(key, 1, now)
        return (perf_counter_ns() - begin) / len(self._keys)

    def batch_ns(self) -> float:
        """Ask about all keys in frames; nanoseconds per check."""
        check_many, costs = self._table.check_many, [1] * FRAME
        frames = [self._keys[at : at + FRAME] for at in range(0, len(self._keys), FRAME)]
        begin = perf_counter_ns()
        for frame in frames:
            check_many(frame, costs[: len(frame)], next(self._clock))
        return (perf_counter_ns() - begin) / len(self._keys)


def _ratio(name: str, part: Figure, whole: Figure) -> Figure:
    """Compare two figures: below 1 when `part` is the cheaper one."""
    return Figure(
        name,
        part.value / whole.value,
        "x",
        part.min / whole.max,
        part.max / whole.min,
        part.rounds,
    )
