"""Memory per key, including all overhead, and the effect of a flood of new keys.

Each figure comes from a separate process: its resident memory before and after it created the keys.
The process keeps the keys nowhere else. `python -m benchmarks.core.memory ALGORITHM KEYS` is such a
process.
"""

import gc
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from random import Random

from benchmarks.core.tables import MINUTE, START, key_of, new_table
from benchmarks.reporting.figure import Figure, measure
from ringfence.limiter import Algorithm, Code, Limit

__all__ = ["run"]

MILLION = 1_000_000
FRAME = 1_000
LOG_HITS = 500
LOG_KEYS = 20_000
"""Number of full logs to measure; a million would take two gigabytes."""
ATTACK = 10 * MILLION
THROTTLED = 10_000
PAGE = 4096
SIZES = (
    (Algorithm.TOKEN_BUCKET, MILLION, ""),
    (Algorithm.FIXED_WINDOW, MILLION, ""),
    (Algorithm.SLIDING_WINDOW, MILLION, ""),
    (Algorithm.LEAKY_BUCKET, MILLION, ""),
    (Algorithm.SLIDING_WINDOW_LOG, LOG_KEYS, ""),
    (Algorithm.CONCURRENCY, MILLION // 10, ""),
    (Algorithm.TOKEN_BUCKET, 10 * MILLION, ".10m_keys"),
    (Algorithm.FIXED_WINDOW, 10 * MILLION, ".10m_keys"),
    (Algorithm.SLIDING_WINDOW, 10 * MILLION, ".10m_keys"),
)


def run(rounds: int) -> Iterator[Figure]:
    """Measure every algorithm, with and without stored keys, then the flood of keys."""
    for algorithm, keys, suffix in SIZES:
        name = f"memory.{algorithm}_bytes_per_key{suffix}"
        often = 1 if suffix else rounds
        yield measure(name, "B", partial(_ask, algorithm, str(keys)), often)
    kept = measure("", "B", lambda: _ask("token_bucket", str(MILLION), "keep"), rounds)
    yield Figure(
        "memory.token_bucket_bytes_per_key.with_keys", kept.value, "B", kept.min, kept.max, rounds
    )
    freed, per_key = map(float, _output("attack").split())
    yield Figure("memory.attack_throttled_keys_evicted", freed, "keys", freed, freed, 1)
    yield Figure("memory.attack_bytes_per_key", per_key, "B", per_key, per_key, 1)


def _ask(*arguments: str) -> float:
    return float(_output(*arguments))


def _output(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks.core.memory", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _resident() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def _bytes_per_key(algorithm: Algorithm, keys: int, *, keeps_keys: bool) -> float:
    """Create `keys` keys and return the memory of each in bytes. A sliding-window log is filled
    until it reaches the limit."""
    is_log = algorithm is Algorithm.SLIDING_WINDOW_LOG
    limit = Limit.of_ns(LOG_HITS if is_log else 100, MINUTE, algorithm)
    random, ones = Random(1), [1] * FRAME
    stamps = sorted(random.randrange(MINUTE) for _ in range(LOG_HITS if is_log else 1))
    before = _resident()
    table = new_table(limit, 2 * keys, keeps_keys=keeps_keys)
    for stamp in stamps:
        for first in range(0, keys, FRAME):
            frame = [key_of(number) for number in range(first, first + FRAME)]
            table.check_many(frame, ones, START + stamp)
    assert len(table) == keys
    return (_resident() - before) / keys


def _attack() -> tuple[int, float]:
    """Flood a counter table full of throttled keys with new keys; count the evicted throttled
    keys."""
    table, random, ones = new_table(Limit.of_ns(10, 60 * MINUTE), MILLION), Random(2), [1] * FRAME
    throttled = [key_of(number, rule=2) for number in range(THROTTLED)]
    before = _resident()
    table.check_many(throttled, [10] * THROTTLED, START)
    for _ in range(ATTACK // FRAME):
        table.check_many([random.randbytes(16) for _ in range(FRAME)], ones, START)
        assert len(table) <= MILLION
    codes = table.check_many(throttled, [1] * THROTTLED, START).codes
    return THROTTLED - codes.count(Code.DENIED), (_resident() - before) / MILLION


if __name__ == "__main__":
    if sys.argv[1] == "attack":
        print(*_attack())
    else:
        print(
            _bytes_per_key(
                Algorithm(sys.argv[1]), int(sys.argv[2]), keeps_keys="keep" in sys.argv[3:]
            )
        )
