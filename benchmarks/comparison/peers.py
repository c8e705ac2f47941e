"""Comparison of Ringfence with other rate limiters: the same checks on the same machine in the same
run.

In process: `limits` and `throttled-py` in memory and a bare dict, beside our counter table and our
embedded limiter. Over the network: `limits`, a Lua GCRA script and `redis-benchmark` on a Redis
that the benchmark starts, beside one of our nodes over encrypted QUIC. Each round measures every
limiter, and ratios are computed per round. "Per core" means per second of processor time of client
and server together.
"""

import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from time import perf_counter

import trio
from msgspec.structs import replace

from benchmarks.cluster.cluster import RULES, batches, concurrent, connected
from benchmarks.comparison.in_process import in_process_samples
from benchmarks.comparison.over_redis import SECONDS, TASKS, OverRedis
from benchmarks.comparison.redis_server import redis_program, running_redis
from benchmarks.reporting.figure import Figure, figure, interleaved, ratio
from benchmarks.reporting.rates import Rate, paced_by
from node.demo.cluster import DemoCluster, running_cluster
from ringfence import Limiter, blocking

__all__ = ["run"]

_KEYS = [f"user-{number}" for number in range(10_000)]
_NETWORK = {
    "check": f"peers.check_per_s_{TASKS}",
    "check_many": "peers.check_many_per_s",
    "blocking": "peers.blocking_per_s",
    "async_coredis": "peers.limits_coredis_per_s",
    "async_redispy": "peers.limits_redispy_per_s",
    "sync": "peers.limits_sync_per_s",
    "sync_8": "peers.limits_sync_per_s_8_threads",
    "lua": "peers.lua_pipelined_per_s",
    "evalsha": "peers.redis_benchmark_per_s",
    "evalsha_16": "peers.redis_benchmark_per_s_p16",
}


def run(rounds: int) -> Iterator[Figure]:
    """Yield the rate of each limiter, then Ringfence's rates as multiples of the other rates.

    Raises `ConfigError` where Redis is not installed.
    """
    for program in ("redis-server", "redis-benchmark"):
        redis_program(program)
    yield from _in_process(rounds)
    with tempfile.TemporaryDirectory() as directory, running_redis() as server:
        rules = Path(directory) / "bench.yaml"
        rules.write_text(RULES, "utf-8")
        with running_cluster(rules, ["a"]) as nodes, closing(OverRedis(server, _KEYS)) as theirs:
            found = interleaved({**_ours(nodes), **_theirs(theirs)}, rounds)
    yield from _network(found)


def _in_process(rounds: int) -> Iterator[Figure]:
    found = interleaved(in_process_samples(), rounds)
    for name, values in found.items():
        yield figure(f"peers.memory_{name}_per_s", "1/s", values)
    yield ratio("peers.memory_table_vs_limits", found["table"], found["limits"])
    yield ratio("peers.memory_table_vs_throttled", found["table"], found["throttled"])
    yield ratio("peers.memory_table_vs_dict", found["table"], found["dict"])
    yield ratio("peers.memory_table_many_vs_dict", found["table_many"], found["dict"])
    yield ratio("peers.memory_local_vs_limits", found["local"], found["limits"])
    yield ratio("peers.memory_local_sync_vs_limits", found["local_sync"], found["limits"])


def _network(found: dict[str, list[Rate]]) -> Iterator[Figure]:
    wall = {name: [pace.per_s for pace in paces] for name, paces in found.items()}
    core = {name: [pace.per_core_s for pace in paces] for name, paces in found.items()}
    for name, label in _NETWORK.items():
        yield figure(label, "1/s", wall[name])
        yield figure(f"{label}_per_core", "1/s", core[name])
    for label, found_by in (("", wall), ("_per_core", core)):
        fastest_async = _best(found_by["async_coredis"], found_by["async_redispy"])
        fastest_sync = _best(found_by["sync"], found_by["sync_8"])
        yield ratio(f"peers.vs_limits_redis_async{label}", found_by["check"], fastest_async)
        yield ratio(f"peers.vs_limits_redis_sync{label}", found_by["check"], fastest_sync)
    yield ratio("peers.blocking_vs_limits_redis_sync", wall["blocking"], wall["sync"])
    yield ratio("peers.vs_lua_pipelined", wall["check_many"], wall["lua"])
    yield ratio("peers.vs_lua_pipelined_per_core", core["check_many"], core["lua"])
    yield ratio("peers.vs_redis_benchmark", wall["check_many"], wall["evalsha"])
    yield ratio("peers.vs_redis_benchmark_p16", wall["check_many"], wall["evalsha_16"])


def _best(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [max(pair) for pair in zip(one, other, strict=True)]


def _ours(nodes: DemoCluster) -> dict[str, Callable[[], Rate]]:
    pid = nodes.processes["a"].pid
    return {
        "check": partial(_asked, nodes.url, pid, concurrent(TASKS)),
        "check_many": partial(_asked, nodes.url, pid, batches),
        "blocking": partial(_blocked, nodes.url, pid),
    }


def _asked(url: str, pid: int, measure: Callable[[Limiter], Awaitable[float]]) -> Rate:
    """Return the rate of checks at one node; only the processor time includes the QUIC
    handshake."""
    rates: list[float] = []

    def work() -> int:
        rates.append(trio.run(connected, url, measure))
        return round(rates[0] * SECONDS)

    pace = paced_by(work, pid)
    return replace(pace, per_s=rates[0])


def _blocked(url: str, pid: int) -> Rate:
    """Measure our blocking client on one thread, like the package `limits` without asyncio."""
    with blocking.connect(url, raise_on_outage=True) as limiter:

        def work() -> int:
            until, done = perf_counter() + SECONDS, 0
            while perf_counter() < until:
                done += limiter.check("bench", {"user": f"user-{done % 10_000}"}).allowed
            return done

        return paced_by(work, pid)


def _theirs(theirs: OverRedis) -> dict[str, Callable[[], Rate]]:
    return {
        "async_coredis": partial(theirs.limits_async, "coredis"),
        "async_redispy": partial(theirs.limits_async, "redispy"),
        "sync": theirs.limits_sync,
        "sync_8": partial(theirs.limits_sync, 8),
        "lua": theirs.lua_pipelined,
        "evalsha": partial(theirs.evalsha, 1),
        "evalsha_16": partial(theirs.evalsha, 16),
    }
