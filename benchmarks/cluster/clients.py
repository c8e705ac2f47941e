"""Cost of a check for a client on each runtime: trio, asyncio with and without uvloop, and
blocking.

All clients check the same keys at the same node, one after the other. The processor time of a
single check is then split into layers. The layer `echo` is the cost of trio, the QUIC library and
the sockets. The layer `client` is the cost that our client adds. It is negative where our transport
avoids work of the library. The other layers are the costs that another event loop and a waiting
thread add.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, thread_time_ns
from typing import TypeVar

import anyio
import trio
import uvloop
from msgspec import Struct

from benchmarks.cluster.cluster import RULES
from benchmarks.cluster.echo import RawEcho
from benchmarks.core.tables import START, new_table
from benchmarks.core.wire import answer_of, request_of
from benchmarks.reporting.figure import Figure, figure, interleaved, ratio
from node.demo.cluster import running_cluster
from ringfence import Limiter, blocking, connect
from ringfence.client.blocking.blocking_limiter import BlockingLimiter
from ringfence.limiter import NS_PER_SECOND, Algorithm, Limit
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import decode, encode

__all__ = ["run"]

_Result = TypeVar("_Result")

_LONE = 500
_TASKS = 64
_THREADS = 8
_SECONDS = 1.0
_KEYS = [{"user": f"user-{number}"} for number in range(10_000)]
_LOOPS = ("trio", "asyncio", "uvloop")
_LIMIT = Limit.of_ns(1_000_000_000, 3600 * NS_PER_SECOND, Algorithm.TOKEN_BUCKET)


def run(rounds: int) -> Iterator[Figure]:
    """Yield latency and throughput of each runtime, then the cost of each layer of a single
    check."""
    with tempfile.TemporaryDirectory() as directory:
        rules = Path(directory) / "bench.yaml"
        rules.write_text(RULES, "utf-8")
        with (
            running_cluster(rules, ["a"]) as nodes,
            RawEcho() as echo,
            blocking.connect(nodes.url, raise_on_outage=True) as limiter,
        ):
            lone = interleaved(_lone(nodes.url, limiter, echo), rounds)
            crowds = interleaved(_crowds(nodes.url, limiter), rounds)
    for name, found in lone.items():
        yield figure(f"clients.{name}_lone_us", "us", [each.wall_us for each in found])
        yield figure(f"clients.{name}_lone_cpu_us", "us", [each.cpu_us for each in found])
    for name, values in crowds.items():
        yield figure(f"clients.{name}", "1/s", values)
    yield ratio("clients.asyncio_vs_trio", crowds["asyncio_per_s_64"], crowds["trio_per_s_64"])
    yield ratio("clients.uvloop_vs_trio", crowds["uvloop_per_s_64"], crowds["trio_per_s_64"])
    yield from _layers({name: [each.cpu_us for each in found] for name, found in lone.items()})
    yield from _inside(rounds)


class _Lone(Struct, frozen=True):
    """Elapsed time and processor time of single checks that run one after the other."""

    wall_us: float
    """Median microseconds of one check."""
    cpu_us: float
    """Processor time of this process per check, in microseconds."""


def _lone(url: str, limiter: BlockingLimiter, echo: RawEcho) -> dict[str, Callable[[], _Lone]]:
    samples: dict[str, Callable[[], _Lone]] = {
        loop: partial(_on, loop, url, _one_by_one) for loop in _LOOPS
    }
    return {
        "echo": partial(_echo_lone, echo),
        **samples,
        "blocking": partial(_blocking_lone, limiter),
    }


def _crowds(url: str, limiter: BlockingLimiter) -> dict[str, Callable[[], float]]:
    tasks = {f"{loop}_per_s_{_TASKS}": partial(_on, loop, url, _crowd) for loop in _LOOPS}
    threads = {
        "blocking_per_s_1_thread": partial(_threads, limiter, 1),
        f"blocking_per_s_{_THREADS}_threads": partial(_threads, limiter, _THREADS),
    }
    return {**tasks, **threads}


def _layers(lone: dict[str, list[float]]) -> Iterator[Figure]:
    """Yield the cost that each layer (echo, client, event loop, thread) adds to a single check."""
    yield figure("clients.layer_echo_us", "us", lone["echo"])
    for layer, with_it, without in (
        ("client", "trio", "echo"),
        ("asyncio", "asyncio", "trio"),
        ("uvloop", "uvloop", "trio"),
        ("thread", "blocking", "trio"),
    ):
        pairs = zip(lone[with_it], lone[without], strict=True)
        yield figure(f"clients.layer_{layer}_us", "us", [more - less for more, less in pairs])


def _inside(rounds: int) -> Iterator[Figure]:
    """Yield the cost of three parts of a check: matching rules, counting, and encoding messages."""
    rules = load_text(RULES).rules
    table = new_table(_LIMIT, len(_KEYS))
    entries = [tuple(key.items()) for key in _KEYS]
    keys = [key["user"].encode() for key in _KEYS]
    messages = (request_of(1), answer_of(1))
    found = interleaved(
        {
            "match": partial(_us_each, lambda at: rules.counter("bench", entries[at])),
            "table": partial(_us_each, lambda at: table.check(keys[at], 1, START)),
            "frames": partial(_us_each, lambda _: [decode(encode(each)) for each in messages]),
        },
        rounds,
    )
    for name, values in found.items():
        yield figure(f"clients.layer_{name}_us", "us", values)


def _on(loop: str, url: str, measure: Callable[[Limiter], Awaitable[_Result]]) -> _Result:
    """Run a measurement with a new client on the event loop named `loop`."""

    async def work() -> _Result:
        async with connect(url, raise_on_outage=True) as limiter:
            return await measure(limiter)

    if loop == "trio":
        return trio.run(work)
    if loop == "uvloop":
        return uvloop.run(work())
    return asyncio.run(work())


def _echo_lone(echo: RawEcho) -> _Lone:
    """Measure single round trips to an echo server without our code, without the time to
    connect."""
    started_at = process_time()
    echo.lone(1)
    connected = process_time()
    samples = echo.lone(_LONE)
    used = process_time() - connected - (connected - started_at)
    return _Lone(median(samples) * 1e6, used / (_LONE - 1) * 1e6)


async def _one_by_one(limiter: Limiter) -> _Lone:
    await limiter.check("bench", _KEYS[0])
    samples, before = [], process_time()
    for key in _KEYS[:_LONE]:
        started_at = perf_counter()
        await limiter.check("bench", key)
        samples.append(perf_counter() - started_at)
    return _Lone(median(samples) * 1e6, (process_time() - before) / _LONE * 1e6)


async def _crowd(limiter: Limiter) -> float:
    done, started_at = 0, perf_counter()

    async def work(place: int) -> None:
        nonlocal done
        while perf_counter() < started_at + _SECONDS:
            decision = await limiter.check("bench", _KEYS[place % len(_KEYS)])
            done += decision.allowed
            place += _TASKS

    async with anyio.create_task_group() as tasks:
        for place in range(_TASKS):
            tasks.start_soon(work, place)
    return done / (perf_counter() - started_at)


def _blocking_lone(limiter: BlockingLimiter) -> _Lone:
    limiter.check("bench", _KEYS[0])
    samples, before = [], process_time()
    for key in _KEYS[:_LONE]:
        started_at = perf_counter()
        limiter.check("bench", key)
        samples.append(perf_counter() - started_at)
    return _Lone(median(samples) * 1e6, (process_time() - before) / _LONE * 1e6)


def _threads(limiter: BlockingLimiter, threads: int) -> float:
    started_at = perf_counter()

    def work(place: int) -> int:
        done = 0
        while perf_counter() < started_at + _SECONDS:
            done += limiter.check("bench", _KEYS[place % len(_KEYS)]).allowed
            place += threads
        return done

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(work, range(threads))) / (perf_counter() - started_at)


def _us_each(call: Callable[[int], object]) -> float:
    started_at = thread_time_ns()
    for at in range(len(_KEYS)):
        call(at)
    return (thread_time_ns() - started_at) / len(_KEYS) / 1000
