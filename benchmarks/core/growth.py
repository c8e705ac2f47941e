"""Cost of a check as the number of keys and members grows, and the longest time of one check.

Times are processor time of this thread. They include page faults, but no waits for a core.
"""

from collections.abc import Iterator
from functools import partial
from random import Random
from time import perf_counter_ns, thread_time_ns

from benchmarks.core.growth_members import members_figures
from benchmarks.core.tables import MINUTE, START, key_of, new_table
from benchmarks.reporting.figure import Figure, figure, interleaved, ratio
from ringfence.limiter import Algorithm, Limit, Table

__all__ = ["run"]

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
FRAME = 256
FRAMES = 200
BUCKET = Limit.of_ns(100, MINUTE, Algorithm.TOKEN_BUCKET)
PAUSE_KEYS = 1_000_000
BOUNDS_US = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def run(rounds: int) -> Iterator[Figure]:
    """Measure batches in counter tables of each size, clients of small and large clusters, and a
    growing table."""
    tables = {size: _filled(size) for size in SIZES}
    random = Random(1)
    found = interleaved(
        {str(size): partial(_batch_ns, tables[size], size, random) for size in SIZES},
        rounds,
    )
    for size in SIZES:
        yield figure(f"growth.keys_{size}_ns", "ns", found[str(size)])
    yield ratio("growth.keys", found[str(SIZES[-1])], found[str(SIZES[0])])
    tables.clear()
    yield from members_figures(rounds)
    pauses = [_pauses() for _ in range(rounds)]
    yield figure("pause.max_ms", "ms", [each[-1] / 1e6 for each, _ in pauses])
    yield figure("pause.wall_max_ms", "ms", [wall / 1e6 for _, wall in pauses])
    for share in (50, 99, 99.9, 99.99):
        name = f"pause.p{share:g}_us".replace(".9", "_9") if share > 99 else f"pause.p{share}_us"
        yield figure(name, "us", [e[int(len(e) * share / 100)] / 1e3 for e, _ in pauses])
    for bound in BOUNDS_US:
        beyond = [sum(wait > bound * 1000 for wait in each) for each, _ in pauses]
        yield figure(f"pause.checks_over_{bound}_us", "checks", beyond)


def _filled(keys: int) -> Table:
    table, ones = new_table(BUCKET, 2 * keys), [1] * 1000
    for first in range(0, keys, 1000):
        table.check_many([key_of(number) for number in range(first, first + 1000)], ones, START)
    return table


def _batch_ns(table: Table, size: int, random: Random) -> float:
    """Check random keys of a counter table in batches; return nanoseconds per check."""
    frames = [[key_of(random.randrange(size)) for _ in range(FRAME)] for _ in range(FRAMES)]
    ones = [1] * FRAME
    begin = thread_time_ns()
    for frame in frames:
        table.check_many(frame, ones, START)
    return (thread_time_ns() - begin) / (FRAME * FRAMES)


def _pauses() -> tuple[list[int], int]:
    """Measure the time of every check while a million keys are added, expire and are replaced.

    Returns the sorted processor times in ns, and the longest elapsed time.
    """
    table = new_table(BUCKET, 2 * PAUSE_KEYS)
    waits: list[int] = []
    longest = 0
    for first, now in ((0, START), (PAUSE_KEYS, START), (2 * PAUSE_KEYS, START + 2 * MINUTE)):
        for number in range(first, first + PAUSE_KEYS // 2):
            key = key_of(number)
            wall = perf_counter_ns()
            begin = thread_time_ns()
            table.check(key, 1, now)
            waits.append(thread_time_ns() - begin)
            longest = max(longest, perf_counter_ns() - wall)
    return sorted(waits), longest
