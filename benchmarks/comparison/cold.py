"""Cost of checks as users run them: three nodes with replicas, keys and tokens, and cold keys.

A million distinct keys of a fixed window of a day are checked in turn. In the first five rounds,
every check creates a counter, which is then copied to the standby. The same rounds also measure one
node, and echoes over plain UDP. They measure the package `limits` and a Lua script on Redis, with
and without a Redis replica. `client` and `node` are microseconds of processor time per check.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import TypeAlias

import trio
from msgspec import Struct
from msgspec.structs import replace

from benchmarks.cluster.cluster import connected, share
from benchmarks.comparison.over_redis import SECONDS, TASKS, THREADS, OverRedis
from benchmarks.comparison.redis_server import RedisServer, redis_program, running_redis
from benchmarks.comparison.udp_echo import UdpEcho
from benchmarks.gateway.gateway import children_of, ports, program, wait_up
from benchmarks.gateway.gateway_load import call
from benchmarks.reporting.figure import Figure, figure, interleaved, ratio
from benchmarks.reporting.rates import Rate, cpu_s_of, paced_by
from node.demo.cluster import DemoCluster, running_cluster
from ringfence import Limiter, blocking

__all__ = ["run"]

RULES = """\
domain: bench
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 1000000000, unit: day, algorithm: fixed_window}
  - key: client
    rate_limit: {requests_per_unit: 1000000000, unit: day, algorithm: fixed_window, leases: false}
"""
_KEYS = [f"user-{number:07}" for number in range(1_000_000)]
_BATCH = 256
_CHECKS = {"tasks": 60_000, "many": 500 * _BATCH}
"""Checks in one sample, about those of a second on three nodes. One node must make as many: a later
check of the same key costs it less."""
_BATCHES = 4
"""Batches of `check_many` in flight."""
_LONE = 500
_RLS_CALLERS = 50
_SETTLED = 0.5
"""Seconds until the last replicas have been sent; their cost belongs to the checks."""

_Samples: TypeAlias = Mapping[str, Callable[[], Rate]]
_Latencies: TypeAlias = Mapping[str, Callable[[], list[float]]]


class _Cluster(Struct, frozen=True):
    """Running nodes, and the next key that no check has used."""

    nodes: DemoCluster
    order: "count[int]"

    @property
    def pids(self) -> list[int]:
        """Return the process ids of all nodes."""
        return [process.pid for process in self.nodes.processes.values()]

    def next_key(self) -> dict[str, str]:
        """Return the descriptor of the next key."""
        return {"user": _KEYS[next(self.order) % len(_KEYS)]}

    def by_tasks(self) -> Rate:
        """Measure single checks by 64 tasks."""
        return self._asked(self._crowd)

    def by_batches(self) -> Rate:
        """Measure `check_many` with several batches in flight."""
        return self._asked(self._many)

    def lone(self) -> list[float]:
        """Return the seconds of single checks, one after the other, on trio."""
        return trio.run(connected, self.nodes.url, self._lone)

    def blocking_lone(self) -> list[float]:
        """Return the seconds of single checks by the blocking client."""
        with blocking.connect(self.nodes.url, raise_on_outage=True) as limiter:
            return _timed(lambda: limiter.check("bench", self.next_key()), _LONE)

    def blocking_threads(self) -> Rate:
        """Measure the blocking client with eight threads."""
        with (
            blocking.connect(self.nodes.url, raise_on_outage=True) as limiter,
            ThreadPoolExecutor(THREADS) as pool,
        ):

            def ask(_: int) -> int:
                until, done = time.perf_counter() + SECONDS, 0
                while time.perf_counter() < until:
                    done += limiter.check("bench", self.next_key()).allowed
                return done

            return paced_by(lambda: sum(pool.map(ask, range(THREADS))), *self.pids)

    def _asked(self, measure: Callable[[Limiter], Awaitable[int]]) -> Rate:
        """Run `measure` on a new connection; return its rate, with the cost of replication."""
        rates: list[float] = []

        async def timed(limiter: Limiter) -> int:
            started_at = time.perf_counter()
            done = await measure(limiter)
            rates.append(done / (time.perf_counter() - started_at))
            await trio.sleep(_SETTLED)
            return done

        rate = paced_by(lambda: trio.run(connected, self.nodes.url, timed), *self.pids)
        return replace(rate, per_s=rates[0])

    async def _crowd(self, limiter: Limiter) -> int:
        todo, done = iter(range(_CHECKS["tasks"])), 0

        async def work() -> None:
            nonlocal done
            for _ in todo:
                is_allowed = (await limiter.check("bench", self.next_key())).allowed
                done += is_allowed

        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(work)
        return done

    async def _many(self, limiter: Limiter) -> int:
        todo, done = iter(range(_CHECKS["many"] // _BATCH)), 0

        async def work() -> None:
            nonlocal done
            for _ in todo:
                keys = [self.next_key() for _ in range(_BATCH)]
                decisions = await limiter.check_many("bench", keys)
                done += sum([decision.allowed for decision in decisions])

        async with trio.open_nursery() as nursery:
            for _ in range(_BATCHES):
                nursery.start_soon(work)
        return done

    async def _lone(self, limiter: Limiter) -> list[float]:
        samples = []
        for _ in range(_LONE):
            started_at = time.perf_counter()
            await limiter.check("bench", self.next_key())
            samples.append(time.perf_counter() - started_at)
        return samples


def run(rounds: int) -> Iterator[Figure]:
    """Yield costs, rates and latencies of cold checks, and their ratios to the alternatives.

    Raises `ConfigError` where Redis is not installed.
    """
    redis_program("redis-server")
    with ExitStack() as stack:
        rules = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "bench.yaml"
        rules.write_text(RULES, "utf-8")
        one, three = (
            _Cluster(stack.enter_context(running_cluster(rules, names)), count())
            for names in ("a", "abc")
        )
        alone = stack.enter_context(running_redis())
        copied = stack.enter_context(running_redis())
        replica = stack.enter_context(running_redis(copy_of=copied.port))
        theirs = {"redis": _over(stack, alone), "redis_copied": _over(stack, copied, replica)}
        echo = stack.enter_context(UdpEcho())
        gateways = {f"rls_{workers}_workers": _Gateway(stack, three, workers) for workers in (1, 2)}
        rates = interleaved(
            {
                **_our_rates("one", one),
                **_our_rates("three", three),
                "three_blocking_threads": three.blocking_threads,
                **_their_rates(theirs),
                **{name: gateway.called for name, gateway in gateways.items()},
            },
            rounds,
        )
        latencies = interleaved(_latencies(one, three, theirs["redis"], echo), rounds)
    yield from _costs(rates)
    yield from _waits(latencies)
    yield from _ratios(rates, latencies)
    for name, gateway in gateways.items():
        yield figure(f"cold.{name}_gateway_us", "us", gateway.worker_us)
    first, second = (gateways[f"rls_{workers}_workers"].worker_us for workers in (1, 2))
    yield ratio("cold.rls_two_workers_capacity_vs_one", [2 * each for each in first], second)


def _over(stack: ExitStack, server: RedisServer, *replicas: RedisServer) -> OverRedis:
    limiter = OverRedis(server, _KEYS, *replicas)
    stack.callback(limiter.close)
    return limiter


def _our_rates(name: str, cluster: _Cluster) -> _Samples:
    return {f"{name}_tasks64": cluster.by_tasks, f"{name}_many": cluster.by_batches}


def _their_rates(theirs: Mapping[str, OverRedis]) -> _Samples:
    found: dict[str, Callable[[], Rate]] = {}
    for name, limiter in theirs.items():
        found[f"{name}_limits_async"] = partial(limiter.limits_async, "coredis")
        found[f"{name}_limits_sync"] = limiter.limits_sync
        found[f"{name}_limits_sync_threads"] = partial(limiter.limits_sync, THREADS)
        found[f"{name}_lua_pipelined"] = limiter.lua_pipelined
    return found


def _latencies(one: _Cluster, three: _Cluster, redis: OverRedis, echo: UdpEcho) -> _Latencies:
    return {
        "one_async": one.lone,
        "one_blocking": one.blocking_lone,
        "three_async": three.lone,
        "three_blocking": three.blocking_lone,
        "limits_redis": partial(redis.lone_s, _LONE),
        "udp_blocking": partial(echo.blocking_lone, _LONE),
        "udp_trio": partial(echo.trio_lone, _LONE),
    }


class _Gateway:
    """Gateway in front of a cluster, and its cost per call of Envoy's rate limit service."""

    def __init__(self, stack: ExitStack, cluster: _Cluster, workers: int) -> None:
        http, self._port = ports(2)
        words = ["gateway", "--listen", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{self._port}"]
        words += ["--workers", str(workers), "--log-level", "error", "--cluster", cluster.nodes.url]
        main = stack.enter_context(program("node.entry", *words))
        wait_up(http, self._port)
        self._workers, self._nodes = children_of(main), cluster.pids
        self.worker_us: list[float] = []
        """Microseconds of processor time of all workers per call, by round."""

    def called(self) -> Rate:
        """Measure calls of 10,000 clients over 50 connections; the servers are gateway and
        nodes."""
        rates: list[float] = []

        def work() -> int:
            before = sum(map(cpu_s_of, self._workers))
            took, failed = asyncio.run(
                call(self._port, _RLS_CALLERS, SECONDS, channels=_RLS_CALLERS)
            )
            assert not failed, f"{failed} calls failed"
            rates.append(len(took) / SECONDS)
            spent = sum(map(cpu_s_of, self._workers)) - before
            self.worker_us.append(spent / len(took) * 1e6)
            return len(took)

        return replace(paced_by(work, *self._workers, *self._nodes), per_s=rates[0])


def _costs(found: Mapping[str, list[Rate]]) -> Iterator[Figure]:
    for name, rates in found.items():
        servers = "redis" if name.startswith("redis") else "node"
        yield figure(f"cold.{name}_per_s", "1/s", [rate.per_s for rate in rates])
        yield figure(f"cold.{name}_client_us", "us", [rate.client_us for rate in rates])
        yield figure(f"cold.{name}_{servers}_us", "us", [rate.server_us for rate in rates])


def _waits(found: Mapping[str, list[list[float]]]) -> Iterator[Figure]:
    for name, samples in found.items():
        for part, label in ((0.5, "p50"), (0.99, "p99")):
            yield figure(
                f"cold.lone_{name}_{label}_us", "us", [share(each, part) * 1e6 for each in samples]
            )


def _ratios(
    rates: Mapping[str, list[Rate]], latencies: Mapping[str, list[list[float]]]
) -> Iterator[Figure]:
    cpu = {
        name: [each.client_us + each.server_us for each in found] for name, found in rates.items()
    }
    speed = {name: [each.per_s for each in found] for name, found in rates.items()}
    nodes = {name: [each.server_us for each in found] for name, found in rates.items()}
    p50 = {name: [median(each) for each in found] for name, found in latencies.items()}
    yield figure("cold.many_node_us", "us", nodes["three_many"])
    yield ratio("cold.many_three_vs_one_node", nodes["three_many"], nodes["one_many"])
    for label, redis in (("", "redis"), ("_copied", "redis_copied")):
        yield ratio(
            f"cold.tasks64_vs_limits_redis_async{label}",
            cpu["three_tasks64"],
            cpu[f"{redis}_limits_async"],
        )
        yield ratio(
            f"cold.many_vs_lua_pipelined{label}", cpu["three_many"], cpu[f"{redis}_lua_pipelined"]
        )
    yield ratio("cold.lone_async_vs_trio_udp_echo", p50["one_async"], p50["udp_trio"])
    yield ratio("cold.lone_blocking_vs_limits_redis", p50["one_blocking"], p50["limits_redis"])
    yield ratio(
        "cold.blocking_threads_vs_limits_redis",
        speed["three_blocking_threads"],
        speed["redis_limits_sync_threads"],
    )
    yield figure("cold.rls_us", "us", nodes["rls_1_workers"])
    yield ratio("cold.rls_two_workers_vs_one", speed["rls_2_workers"], speed["rls_1_workers"])


def _timed(ask: Callable[[], object], times: int) -> list[float]:
    samples = []
    for _ in range(times):
        started_at = time.perf_counter()
        ask()
        samples.append(time.perf_counter() - started_at)
    return samples
