"""Comparison of rate limiters in one process, without a network: checks per second of one thread.

Each limiter is called through its public interface, with the same names, under a limit that no
caller reaches. A bare dict with GCRA arithmetic is the lower bound of the cost.
"""

from collections.abc import Callable, Sequence
from itertools import count
from time import thread_time_ns

import trio
from limits import RateLimitItemPerHour
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from throttled import MemoryStore, Throttled

import ringfence
from benchmarks.cluster.cluster import RULES
from benchmarks.core.tables import START, new_table
from ringfence.limiter import NS_PER_SECOND, Algorithm, Code, Limit
from ringfence.rules.loading.yaml_files import load_text

__all__ = ["in_process_samples"]

_NAMES = [f"user-{number}" for number in range(10_000)]
_LIMIT = 1_000_000_000
_HOUR_NS = 3600 * NS_PER_SECOND
_FRAME = 256
_PASSES = 10
"""Checks of each name in one sample. The first pass creates the counters."""
_BUCKET = Limit.of_ns(_LIMIT, _HOUR_NS, Algorithm.TOKEN_BUCKET)


def in_process_samples() -> dict[str, Callable[[], float]]:
    """Return one sample function per limiter; each returns checks per second of processor time."""
    return {
        "limits": _limits,
        "throttled": _throttled(),
        "dict": _bare_dict(),
        "table": _table(),
        "table_many": _table_many(),
        "local": _local,
        "local_sync": _local_sync,
    }


def _limits() -> float:
    hit, item = FixedWindowRateLimiter(MemoryStorage()).hit, RateLimitItemPerHour(_LIMIT)
    return _per_s(lambda names: [hit(item, name) for name in names])


def _throttled() -> Callable[[], float]:
    store = MemoryStore(options={"MAX_SIZE": 2 * len(_NAMES)})
    limit = Throttled(using="fixed_window", quota=f"{_LIMIT}/h", store=store).limit
    return lambda: _per_s(lambda names: [not limit(name).limited for name in names])


def _bare_dict() -> Callable[[], float]:
    interval, burst_ns, tats, clock = _HOUR_NS / _LIMIT, _HOUR_NS, dict[str, float](), count(START)

    def check(name: str) -> bool:
        now = next(clock)
        tat = max(tats.get(name, 0), now) + interval
        if tat - burst_ns > now:
            return False
        tats[name] = tat
        return True

    return lambda: _per_s(lambda names: [check(name) for name in names])


def _table() -> Callable[[], float]:
    check, clock = new_table(_BUCKET, len(_NAMES)).check, count(START)
    keys = [name.encode() for name in _NAMES]
    denied = Code.DENIED
    return lambda: _per_s(lambda _: [check(key, 1, next(clock)).code is not denied for key in keys])


def _table_many() -> Callable[[], float]:
    check_many, clock = new_table(_BUCKET, len(_NAMES)).check_many, count(START)
    keys = [name.encode() for name in _NAMES]
    frames = [keys[at : at + _FRAME] for at in range(0, len(keys) - _FRAME + 1, _FRAME)]
    ones = [1] * _FRAME

    def sample() -> float:
        started_at = thread_time_ns()
        for _ in range(_PASSES):
            for frame in frames:
                check_many(frame, ones, next(clock))
        return _PASSES * len(frames) * _FRAME / (thread_time_ns() - started_at) * 1e9

    return sample


def _local() -> float:
    """Measure our embedded limiter without a network; a check includes rule matching, a task switch
    and a `Decision`."""

    async def work() -> float:
        async with ringfence.local(load_text(RULES).rules) as limiter:
            started_at = thread_time_ns()
            for name in _PASSES * _NAMES:
                decision = await limiter.check("bench", {"user": name})
                assert decision.allowed
            return _PASSES * len(_NAMES) / (thread_time_ns() - started_at) * 1e9

    return trio.run(work)


def _local_sync() -> float:
    """Measure our embedded limiter with blocking calls."""
    with ringfence.blocking.local(load_text(RULES).rules) as limiter:
        check = limiter.check
        return _per_s(lambda names: [check("bench", {"user": name}).allowed for name in names])


def _per_s(ask: Callable[[Sequence[str]], Sequence[object]]) -> float:
    started_at = thread_time_ns()
    for _ in range(_PASSES):
        assert all(ask(_NAMES)), "a limit that nobody can meet has denied"
    return _PASSES * len(_NAMES) / (thread_time_ns() - started_at) * 1e9
