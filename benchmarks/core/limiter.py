"""Cost of decisions in the limiter, for single checks and for frames (batches) of checks.

Every sample visits keys in an order that jumps through the table, as real callers do. Times are
processor time of this thread, so other load on the machine has little effect. Ratios are computed
per round, against the reference engine in Python and the memory storage of the package `limits`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from time import thread_time_ns

from benchmarks.core.tables import MINUTE, START, key_of, new_table
from benchmarks.reporting.figure import Figure, figure, interleaved, ratio
from ringfence.limiter import (
    NS_PER_SECOND,
    Algorithm,
    Engine,
    EngineRule,
    Limit,
    Table,
    compiled_tables,
    why_not_compiled,
)

__all__ = ["run"]

FRAME = 256
FEW, MANY = 10_000, 1_000_000
ASKED = 50_000
"""Maximum number of checks in one sample."""
STRIDE = 7_919
"""A prime step, so that the sequence visits every key."""
BUCKET = Limit.of_ns(100, MINUTE, Algorithm.TOKEN_BUCKET)


def run(rounds: int) -> Iterator[Figure]:
    """Measure the compiled engine, the Python engine and the package `limits`, then each algorithm,
    then checks of two rules."""
    engine = Asker(new_table(BUCKET, FEW), FEW)
    many = Asker(new_table(BUCKET, MANY), MANY)
    reference = Asker(Table(BUCKET, max_keys=FEW), FEW)
    samples: dict[str, Callable[[], float]] = {
        "single": engine.single_ns,
        "batch": many.batch_ns,
        "few": engine.batch_ns,
        "reference": reference.single_ns,
        "reference_batch": reference.batch_ns,
    }
    peer = limits_single_ns()
    if peer is not None:
        samples["limits"] = peer
    found = interleaved(samples, rounds)
    yield figure("limiter.single_ns", "ns", found["single"])
    yield figure("limiter.batch_ns", "ns", found["batch"])
    yield figure("limiter.batch_ns.10k_keys", "ns", found["few"])
    yield figure("limiter.reference_single_ns", "ns", found["reference"])
    yield figure("limiter.reference_batch_ns", "ns", found["reference_batch"])
    yield ratio("limiter.single_vs_reference", found["reference"], found["single"])
    yield ratio("limiter.batch_vs_reference", found["reference"], found["batch"])
    if "limits" in found:
        yield figure("limiter.limits_single_ns", "ns", found["limits"])
        yield ratio("limiter.single_vs_limits", found["limits"], found["single"])
    for algorithm in Algorithm:
        limit = Limit.of_ns(100, MINUTE, algorithm)
        asker = Asker(new_table(limit, FEW), FEW)
        values = interleaved({"single": asker.single_ns, "batch": asker.batch_ns}, rounds)
        yield figure(f"limiter.single_ns.{algorithm}", "ns", values["single"])
        yield figure(f"limiter.batch_ns.{algorithm}", "ns", values["batch"])
    denied = Asker(new_table(Limit.of_ns(1, 3600 * NS_PER_SECOND), FEW), FEW)
    yield figure("limiter.batch_ns.denied", "ns", [denied.batch_ns() for _ in range(rounds)])
    yield from _frames(rounds)


class Asker:
    """Counter table in which all keys exist, with a clock that advances between batches."""

    def __init__(self, table: Table, keys: int) -> None:
        self._keys = [key_of(i * STRIDE % keys) for i in range(keys)]
        self._table = table
        self._clock = count(START, NS_PER_SECOND // 1000)
        self._next = 0
        for at in range(0, keys, FRAME):
            frame = self._keys[at : at + FRAME]
            table.check_many(frame, [1] * len(frame), START)

    def _some_keys(self) -> list[bytes]:
        """Return the keys of the next sample; the samples rotate through all keys of the table."""
        if self._next >= len(self._keys):
            self._next = 0
        asked = self._keys[self._next : self._next + ASKED]
        self._next += ASKED
        return asked

    def single_ns(self) -> float:
        """Check each key in a separate call; return nanoseconds per check."""
        check, now, keys = self._table.check, next(self._clock), self._some_keys()
        begin = thread_time_ns()
        for key in keys:
            check(key, 1, now)
        return (thread_time_ns() - begin) / len(keys)

    def batch_ns(self) -> float:
        """Check keys in frames (batches); return nanoseconds per check."""
        check_many, costs, keys = self._table.check_many, [1] * FRAME, self._some_keys()
        frames = [keys[at : at + FRAME] for at in range(0, len(keys) - FRAME + 1, FRAME)]
        begin = thread_time_ns()
        for frame in frames:
            check_many(frame, costs, next(self._clock))
        return (thread_time_ns() - begin) / (len(frames) * FRAME)


def limits_single_ns() -> Callable[[], float] | None:
    """Return a function that measures the package `limits` in its fastest configuration; None if it
    is not installed."""
    try:
        from limits import RateLimitItemPerMinute
        from limits.storage import MemoryStorage
        from limits.strategies import FixedWindowRateLimiter
    except ImportError:
        return None
    hit = FixedWindowRateLimiter(MemoryStorage()).hit
    item = RateLimitItemPerMinute(1_000_000)
    keys = [f"client-{number:011}" for number in range(FEW)]
    for key in keys:
        hit(item, key)

    def sample() -> float:
        begin = thread_time_ns()
        for key in keys:
            hit(item, key)
        return (thread_time_ns() - begin) / len(keys)

    return sample


def _frames(rounds: int) -> Iterator[Figure]:
    """Measure batches whose requests match two rules, as independent checks and as all-or-nothing
    groups."""
    rules = {0: EngineRule(BUCKET), 1: EngineRule(Limit.of_ns(100, MINUTE))}
    reference = Engine(max_keys=MANY)
    tables = None if why_not_compiled() else compiled_tables(bytes(16), keeps_keys=True)
    compiled = Engine(max_keys=MANY, tables=tables)
    keys = [key_of(number // 2, rule=number % 2) for number in range(FRAME)]
    clock = count(START, NS_PER_SECOND // 1000)

    def sample(engine: Engine, groups: list[int]) -> float:
        begin = thread_time_ns()
        for _ in range(20):
            engine.decide(keys, [1] * FRAME, groups, [], [], next(clock))
        return (thread_time_ns() - begin) / (20 * FRAME)

    for engine in (reference, compiled):
        engine.set_rules(rules)
    kinds: list[tuple[str, list[int]]] = [("two_rules", []), ("groups_of_two", [2] * (FRAME // 2))]
    for name, groups in kinds:
        found = interleaved(
            {
                "compiled": partial(sample, compiled, groups),
                "reference": partial(sample, reference, groups),
            },
            rounds,
        )
        yield figure(f"limiter.batch_ns.{name}", "ns", found["compiled"])
        yield ratio(f"limiter.batch_vs_reference.{name}", found["reference"], found["compiled"])
