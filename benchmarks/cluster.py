"""A check over real QUIC to a node process, beside a bare echo on the same library in the same run.

Lone checks and lone echoes alternate, so that what the machine does to one it does to the other.
"""

import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TypeVar

import trio

from benchmarks.echo import RawEcho
from benchmarks.figure import Figure
from node.demo.cluster import running_cluster
from ringfence.client import Limiter, connect

T = TypeVar("T")

_RULES = """\
domain: bench
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 1000000000, unit: hour, algorithm: token_bucket}
"""
_LONE = 1000
_SECONDS = 1.0
_BATCH = 256
_KEYS = [{"user": f"user-{number}"} for number in range(10_000)]


def run(rounds: int) -> Iterator[Figure]:
    """Yield latency of lone checks against the echo, and throughput of one client."""
    with tempfile.TemporaryDirectory() as directory:
        rules = Path(directory) / "bench.yaml"
        rules.write_text(_RULES, "utf-8")
        with running_cluster(rules, ["a"]) as nodes, RawEcho() as echo:
            yield from _latency(nodes.url, echo, rounds)
            for tasks in (64, 1024):
                per_s = [trio.run(_connected, nodes.url, _tasks(tasks)) for _ in range(rounds)]
                yield _figure(f"cluster.check_per_s_{tasks}", per_s, "1/s")
            many = [trio.run(_connected, nodes.url, _batches) for _ in range(rounds)]
            yield _figure("cluster.check_many_per_s", many, "1/s")


def _latency(url: str, echo: RawEcho, rounds: int) -> Iterator[Figure]:
    ours: list[list[float]] = []
    bare: list[list[float]] = []
    for _ in range(rounds):
        ours.append(trio.run(_connected, url, _lone))
        bare.append(echo.lone(_LONE))
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        checks = [_share(samples, share) * 1e6 for samples in ours]
        echoes = [_share(samples, share) * 1e6 for samples in bare]
        ratios = [one / other for one, other in zip(checks, echoes, strict=True)]
        yield _figure(f"cluster.lone_{name}_us", checks, "us")
        yield _figure(f"cluster.echo_{name}_us", echoes, "us")
        ratio = "cluster.lone_vs_echo" if name == "p50" else "cluster.lone_p99_vs_echo"
        yield _figure(ratio, ratios, "ratio")


async def _connected(url: str, measure: Callable[[Limiter], Awaitable[T]]) -> T:
    async with connect(url, raise_on_outage=True) as limiter:
        return await measure(limiter)


async def _lone(limiter: Limiter) -> list[float]:
    samples = []
    for number in range(_LONE):
        begun = perf_counter()
        await limiter.check("bench", _KEYS[number])
        samples.append(perf_counter() - begun)
    return samples


def _tasks(count: int) -> Callable[[Limiter], Awaitable[float]]:
    """Decisions per second when `count` tasks each check one key after the other."""

    async def measure(limiter: Limiter) -> float:
        async def work(place: int) -> int:
            await limiter.check("bench", _KEYS[place % len(_KEYS)])
            return 1

        return await _rate(work, count)

    return measure


async def _batches(limiter: Limiter) -> float:
    """Decisions per second by `check_many`, four batches on their way."""

    async def work(place: int) -> int:
        start = place * _BATCH % (len(_KEYS) - _BATCH)
        return len(await limiter.check_many("bench", _KEYS[start : start + _BATCH]))

    return await _rate(work, 4)


async def _rate(work: Callable[[int], Awaitable[int]], tasks: int) -> float:
    done = 0
    begun = perf_counter()
    until = begun + _SECONDS

    async def worker(place: int) -> None:
        nonlocal done
        while perf_counter() < until:
            made = await work(place)
            done += made  # Not in one line: `done` must be read after the wait.
            place += tasks

    async with trio.open_nursery() as nursery:
        for place in range(tasks):
            nursery.start_soon(worker, place)
    return done / (perf_counter() - begun)


def _share(samples: list[float], share: float) -> float:
    ordered = sorted(samples)
    return ordered[int(share * (len(ordered) - 1))]


def _figure(name: str, samples: list[float], unit: str) -> Figure:
    return Figure(name, median(samples), unit, min(samples), max(samples), len(samples))
