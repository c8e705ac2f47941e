"""Cost of a check and of a key on the nodes, and the number of nodes for a large service.

Measured with one node, and with two nodes, where every counter has a replica at a standby as in
production. Processor time and memory are those of the nodes only, because clients are part of
applications. Each key is checked rarely, which is the most expensive case for replication.
"""

import tempfile
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import islice
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

import trio

from benchmarks.cluster.cluster import connected
from benchmarks.reporting.figure import Figure, figure, interleaved
from benchmarks.reporting.rates import cpu_s_of, resident_bytes
from node.demo.cluster import DemoCluster, running_cluster
from ringfence import Limiter

__all__ = ["run"]

CHECKS_PER_S = 1_150_000
USERS = 100_000_000
"""Users per day: 1,150,000 checks a second are a thousand checks of each user."""
BUSY = 0.6
"""Share of a core that a node may use on average. The rest is for peaks and failures."""
RULES = """\
domain: bench
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 100, unit: day, algorithm: token_bucket}
"""
_KEYS = 1_000_000
_BATCH = 256
_LONE = 2_000
_CROWD = 20_000
_TASKS = 64
_MANY = 100_000
_SETTLED = 0.5
"""Seconds until the last replicas have been sent."""
_IDLE = 1.0


def run(rounds: int) -> Iterator[Figure]:
    """Yield costs per check and per key, then the resources for the example service of
    docs/operate/capacity.md."""
    with tempfile.TemporaryDirectory() as directory:
        rules = Path(directory) / "bench.yaml"
        rules.write_text(RULES, "utf-8")
        with running_cluster(rules, ["a"]) as nodes:
            alone_bytes, alone = _costs(nodes, {"many": _batches(_MANY)}, rounds)
        with running_cluster(rules, ["a", "b"]) as nodes:
            ways = {
                "lone": _tasks(_LONE, 1),
                f"{_TASKS}_tasks": _tasks(_CROWD, _TASKS),
                "many": _batches(_MANY),
            }
            copied_bytes, copied = _costs(nodes, ways, rounds)
    yield figure("capacity.bytes_per_key_without_copy", "B", [alone_bytes])
    yield figure("capacity.bytes_per_key", "B", [copied_bytes])
    yield figure("capacity.users_gib", "GiB", [copied_bytes * USERS / 2**30])
    yield figure("capacity.node_us_per_check_many_without_copy", "us", alone["many"])
    for name, values in copied.items():
        yield figure(f"capacity.node_us_per_check_{name}", "us", values)
    for name, values in copied.items():
        members = [ceil(CHECKS_PER_S * each / 1e6 / BUSY) for each in values]
        yield figure(f"capacity.members_{name}", "members", members)


_Way: TypeAlias = Callable[[Limiter], Awaitable[int]]


def _costs(
    nodes: DemoCluster, ways: dict[str, _Way], rounds: int
) -> tuple[float, dict[str, list[float]]]:
    """Return the nodes' memory per key in bytes, and their processor time per check for each kind
    of call."""
    before = _resident(nodes)
    trio.run(connected, nodes.url, _batches(_KEYS))
    per_key = (_resident(nodes) - before) / _KEYS
    found = interleaved(
        {
            name: partial(trio.run, connected, nodes.url, _timed(nodes, way))
            for name, way in ways.items()
        },
        rounds,
    )
    return per_key, found


def _timed(nodes: DemoCluster, way: _Way) -> Callable[[Limiter], Awaitable[float]]:
    """Return a function that measures the nodes' processor time per check in microseconds, minus
    that of idle nodes."""

    async def measure(limiter: Limiter) -> float:
        await limiter.check_many("bench", [_user(number) for number in range(_BATCH)])
        await trio.sleep(_SETTLED)
        started_at, idle = perf_counter(), _used_s(nodes)
        await trio.sleep(_IDLE)
        idle_share = (_used_s(nodes) - idle) / (perf_counter() - started_at)
        started_at, before = perf_counter(), _used_s(nodes)
        done = await way(limiter)
        used = _used_s(nodes) - before
        return (used - idle_share * (perf_counter() - started_at)) / done * 1e6

    return measure


def _used_s(nodes: DemoCluster) -> float:
    return sum([cpu_s_of(process.pid) for process in nodes.processes.values()])


def _tasks(checks: int, tasks: int) -> Callable[[Limiter], Awaitable[int]]:
    """Return a function that makes single checks in several concurrent tasks, with keys from the
    whole counter table."""

    async def measure(limiter: Limiter) -> int:
        async def work(place: int) -> None:
            for number in range(place, checks, tasks):
                await limiter.check("bench", _user(number * 7_919 % _KEYS))

        async with trio.open_nursery() as nursery:
            for place in range(tasks):
                nursery.start_soon(work, place)
        await trio.sleep(_SETTLED)
        return checks

    return measure


def _batches(checks: int) -> Callable[[Limiter], Awaitable[int]]:
    """Return a function that makes checks by `check_many`, with two batches in flight."""

    async def measure(limiter: Limiter) -> int:
        numbers = iter(range(checks))

        async def work() -> None:
            while users := [_user(number) for number in islice(numbers, _BATCH)]:
                await limiter.check_many("bench", users)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            nursery.start_soon(work)
        await trio.sleep(_SETTLED)
        return checks

    return measure


def _user(number: int) -> dict[str, str]:
    return {"user": f"user-{number:09}"}


def _resident(nodes: DemoCluster) -> int:
    """Return the resident memory of all nodes in bytes."""
    return sum([resident_bytes(process.pid) for process in nodes.processes.values()])
