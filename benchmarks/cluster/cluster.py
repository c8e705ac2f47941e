"""Cost of a check over real QUIC to a node process, beside an echo server on the same QUIC library.

Checks and echoes alternate in one run, so both have the same conditions. Every decision is
inspected: only allowed checks count.
"""

import gc
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TypeVar

import trio

from benchmarks.cluster.echo import RawEcho
from benchmarks.reporting.figure import Figure
from node.demo.cluster import running_cluster
from ringfence.client.connect import connect
from ringfence.client.limiter import Limiter

__all__ = ["RULES", "batches", "connected", "concurrent", "paced", "run", "share"]

T = TypeVar("T")

RULES = """\
domain: bench
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 1000000000, unit: day, algorithm: fixed_window}
"""
_LONE = 1000
_SECONDS = 1.0
_BATCH = 256
_PACE = 0.0005
"""Seconds between two computations of how many checks are due."""
_KEYS = [{"user": f"user-{number}"} for number in range(10_000)]


def run(rounds: int) -> Iterator[Figure]:
    """Yield latency, idle and under load, and throughput of one client, each beside that of an echo
    server."""
    with tempfile.TemporaryDirectory() as directory:
        rules = Path(directory) / "bench.yaml"
        rules.write_text(RULES, "utf-8")
        with running_cluster(rules, ["a"]) as nodes, RawEcho() as echo:
            yield from _latency(nodes.url, echo, rounds)
            most = 0.0
            for tasks in (64, 1024):
                ours: list[float] = []
                bare: list[float] = []
                for _ in range(rounds):
                    ours.append(trio.run(connected, nodes.url, concurrent(tasks)))
                    bare.append(echo.concurrent(tasks, _SECONDS))
                ratios = [one / other for one, other in zip(ours, bare, strict=True)]
                yield _figure(f"cluster.check_per_s_{tasks}", ours, "1/s")
                yield _figure(f"cluster.echo_per_s_{tasks}", bare, "1/s")
                yield _figure(f"cluster.check_vs_echo_{tasks}", ratios, "ratio")
                most = median(ours)
            many = [trio.run(connected, nodes.url, batches) for _ in range(rounds)]
            yield _figure("cluster.check_many_per_s", many, "1/s")
            yield from _loaded(nodes.url, most / 5, rounds)


def _latency(url: str, echo: RawEcho, rounds: int) -> Iterator[Figure]:
    ours: list[list[float]] = []
    bare: list[list[float]] = []
    for _ in range(rounds):
        ours.append(trio.run(connected, url, _lone))
        bare.append(echo.lone(_LONE))
    for part, name in ((0.5, "p50"), (0.99, "p99")):
        checks = [share(samples, part) * 1e6 for samples in ours]
        echoes = [share(samples, part) * 1e6 for samples in bare]
        ratios = [one / other for one, other in zip(checks, echoes, strict=True)]
        yield _figure(f"cluster.lone_{name}_us", checks, "us")
        yield _figure(f"cluster.echo_{name}_us", echoes, "us")
        ratio = "cluster.lone_vs_echo" if name == "p50" else "cluster.lone_p99_vs_echo"
        yield _figure(ratio, ratios, "ratio")


def _loaded(url: str, per_s: float, rounds: int) -> Iterator[Figure]:
    """Measure the latency of checks at a steady rate: a fifth of the rate that 1024 tasks reach."""
    gc.collect()
    gc.freeze()  # Without this, a full collection of the load generator may determine the p99.
    samples = [trio.run(connected, url, paced(per_s)) for _ in range(rounds)]
    middle = [share(each, 0.5) * 1e6 for each in samples]
    slow = [share(each, 0.99) * 1e6 for each in samples]
    yield _figure("cluster.loaded_p50_us", middle, "us")
    yield _figure("cluster.loaded_p99_us", slow, "us")
    ratios = [one / other for one, other in zip(slow, middle, strict=True)]
    yield _figure("cluster.loaded_p99_vs_p50", ratios, "ratio")


async def connected(url: str, measure: Callable[[Limiter], Awaitable[T]]) -> T:
    """Connect a new client to a cluster, and run a measurement with it."""
    async with connect(url, raise_on_outage=True) as limiter:
        return await measure(limiter)


async def _lone(limiter: Limiter) -> list[float]:
    samples = []
    for number in range(_LONE):
        started_at = perf_counter()
        await limiter.check("bench", _KEYS[number])
        samples.append(perf_counter() - started_at)
    return samples


def concurrent(count: int) -> Callable[[Limiter], Awaitable[float]]:
    """Return decisions per second of `count` tasks, each of which makes one check after the
    other."""

    async def measure(limiter: Limiter) -> float:
        async def work(place: int) -> int:
            decision = await limiter.check("bench", _KEYS[place % len(_KEYS)])
            return int(decision.allowed)

        return await _rate(work, count)

    return measure


def paced(per_s: float) -> Callable[[Limiter], Awaitable[list[float]]]:
    """Return latencies of checks that start at a fixed rate, whether earlier checks are answered or
    not."""

    async def measure(limiter: Limiter) -> list[float]:
        samples: list[float] = []

        async def check(place: int) -> None:
            started_at = perf_counter()
            await limiter.check("bench", _KEYS[place % len(_KEYS)])
            samples.append(perf_counter() - started_at)

        made = 0
        started_at = perf_counter()
        async with trio.open_nursery() as nursery:
            while (passed := perf_counter() - started_at) < _SECONDS:
                while made < passed * per_s:
                    nursery.start_soon(check, made)
                    made += 1
                await trio.sleep(_PACE)
        return samples[len(samples) // 10 :]  # The first ones connect and warm up.

    return measure


async def batches(limiter: Limiter) -> float:
    """Return decisions per second of `check_many` with four batches in flight."""

    async def work(place: int) -> int:
        start = place * _BATCH % (len(_KEYS) - _BATCH)
        decisions = await limiter.check_many("bench", _KEYS[start : start + _BATCH])
        return sum([decision.allowed for decision in decisions])

    return await _rate(work, 4)


async def _rate(work: Callable[[int], Awaitable[int]], tasks: int) -> float:
    done = 0
    started_at = perf_counter()
    until = started_at + _SECONDS

    async def worker(place: int) -> None:
        nonlocal done
        while perf_counter() < until:
            made = await work(place)
            done += made  # Two statements: `done` must be read after the wait.
            place += tasks

    async with trio.open_nursery() as nursery:
        for place in range(tasks):
            nursery.start_soon(worker, place)
    return done / (perf_counter() - started_at)


def share(samples: list[float], part: float) -> float:
    """Return the quantile `part` (from 0 to 1) of some samples."""
    ordered = sorted(samples)
    return ordered[int(part * (len(ordered) - 1))]


def _figure(name: str, samples: list[float], unit: str) -> Figure:
    return Figure(name, median(samples), unit, min(samples), max(samples), len(samples))
