"""Lost and over-admitted units while five node processes are restarted, and while one is killed.

A client sends a steady load. Every decision is recorded, and afterwards every counter is read.
Units that were admitted and not counted are lost; units admitted beyond the limit are
over-admitted. The limit is an exact log whose period is longer than the run, so the comparison is
exact. The longest turn is the processor time for which one task of a node held the event loop, so
that checks had to wait. Only nodes that have all their shards are measured. The longest move is the
part of a turn in which a node took over, sent or received shards.
"""

import gc
import random
import signal
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from time import monotonic

import trio
from msgspec import Struct, field

from benchmarks.members.admissions import Admissions, counted, owned_by
from benchmarks.members.timed_node import longest_turns
from benchmarks.members.timed_nodes import TimedNodes
from benchmarks.reporting.figure import Figure
from ringfence.client.connect import open_cluster
from ringfence.client.limiter import Limiter
from ringfence.client.url import parse_url

__all__ = ["run"]

_NAMES = ("a", "b", "c", "d", "e")
_RULES = """\
domain: bench
descriptors:
  - key: graceful
    rate_limit: {requests_per_unit: 10, unit: hour, algorithm: sliding_window_log}
  - key: crash
    rate_limit: {requests_per_unit: 1000, unit: hour, algorithm: sliding_window_log}
"""
_LIMITS = {"graceful": 10, "crash": 1000}
_KILLED = "c"
_KEYS = 10_000
_PER_SECOND = 2000
_MOST_IN_FLIGHT = 1000
"""Most checks in flight, as of a server with a bounded number of requests. Only an overloaded
machine reaches it."""
_SETTLED = 4.0
"""Seconds of load after each change."""
_CALM = 2.0
_TICK = 0.01
"""Seconds between two bursts of checks."""


def run(rounds: int) -> Iterator[Figure]:
    """Yield errors, lost units and over-admission of one rolling restart and of one crash."""
    with (
        tempfile.TemporaryDirectory() as directory,
        TimedNodes(Path(directory), _RULES, _NAMES) as nodes,
    ):
        yield from trio.run(_measure, nodes)


class _Ledger(Struct):
    """Record of the decisions that one client received."""

    admissions: Admissions = field(default_factory=Admissions)
    by_source: Counter[str] = field(default_factory=Counter)
    checks: int = 0
    in_flight: int = 0
    not_sent: int = 0
    wrongly_denied: int = 0
    began: float = field(default_factory=monotonic)


async def _measure(nodes: TimedNodes) -> list[Figure]:
    figures: list[Figure] = []
    gc.collect()
    gc.freeze()  # A pause of the load generator does not count.
    async with open_cluster(parse_url(nodes.url)) as cluster:
        limiter = Limiter(cluster)
        graceful = _Ledger()
        await _under_load(limiter, "graceful", graceful, lambda: _rolling(nodes))
        figures += _longest_turns(nodes, "graceful", graceful)
        figures += await _audit(limiter, "graceful", graceful)
        crash = _Ledger()
        owned = owned_by(cluster, _KILLED, "crash")
        await _under_load(limiter, "crash", crash, lambda: _crash(nodes, crash))
        figures += _longest_turns(nodes, "crash", crash)
        figures += await _audit(limiter, "crash", crash)
        used = await counted(limiter, "crash", _LIMITS["crash"], [*crash.admissions.by_key])
    loss = crash.admissions.compare(used, owned)
    figures.append(_figure("restarts.crash_may_lose", loss.may_lose, "hits"))
    figures.append(_figure("restarts.crash_oldest_lost_ms", loss.oldest_s * 1000, "ms"))
    return figures


async def _rolling(nodes: TimedNodes) -> None:
    for name in _NAMES:
        await trio.sleep(_SETTLED)
        await trio.to_thread.run_sync(nodes.stop, name, signal.SIGTERM)
        nodes.start(name)
        words = f"view of {len(_NAMES)} members"
        await trio.to_thread.run_sync(nodes.wait_for, name, words)
    await trio.sleep(_SETTLED)


async def _crash(nodes: TimedNodes, ledger: _Ledger) -> None:
    await trio.sleep(_SETTLED)
    ledger.admissions.crash(trio.current_time())
    nodes.stop(_KILLED, signal.SIGKILL)
    await trio.sleep(3 * _SETTLED)


async def _under_load(
    limiter: Limiter, rule: str, ledger: _Ledger, change: Callable[[], Awaitable[None]]
) -> None:
    chance = random.Random(7)
    started_at = trio.current_time()
    sent = 0
    async with trio.open_nursery() as nursery:
        over = trio.Event()

        async def end() -> None:
            await change()
            over.set()

        nursery.start_soon(end)
        while not over.is_set():
            due = int((trio.current_time() - started_at) * _PER_SECOND)
            while sent < due:
                sent += 1
                key = str(chance.randrange(_KEYS))
                if ledger.in_flight < _MOST_IN_FLIGHT:
                    ledger.in_flight += 1
                    nursery.start_soon(_check, limiter, rule, key, ledger)
                else:
                    ledger.not_sent += 1
            await trio.sleep(_TICK)
    await trio.sleep(_CALM)


async def _check(limiter: Limiter, rule: str, key: str, ledger: _Ledger) -> None:
    started_at = trio.current_time()
    decision = await limiter.check("bench", {rule: key})
    now, admissions = trio.current_time(), ledger.admissions
    admissions.add(key, decision.source, started_at, now, is_allowed=decision.allowed)
    ledger.checks += 1
    ledger.in_flight -= 1
    ledger.by_source[decision.source.name.lower()] += 1
    if not decision.allowed and admissions.by_key[key] < _LIMITS[rule] - 20:
        ledger.wrongly_denied += 1


async def _audit(limiter: Limiter, rule: str, ledger: _Ledger) -> list[Figure]:
    limit, by_key = _LIMITS[rule], ledger.admissions.by_key
    used = await counted(limiter, rule, limit, [*by_key])
    lost = sum(max(0, min(admitted, limit) - used[key]) for key, admitted in by_key.items())
    counted_twice = (used - by_key).total()
    over = sum(max(0, admitted - limit) for admitted in by_key.values())
    rows = {
        "checks": (ledger.checks, "checks"),
        "not_sent": (ledger.not_sent, "checks"),
        "errors": (ledger.admissions.undecided, "checks"),
        "lost": (lost, "hits"),
        "counted_twice": (counted_twice, "hits"),
        "over_admitted": (over, "hits"),
        "wrongly_denied": (ledger.wrongly_denied, "checks"),
        "slowest_ms": (ledger.admissions.slowest_s * 1000, "ms"),
        "by_standby": (ledger.by_source["standby"], "checks"),
    }
    return [_figure(f"restarts.{rule}_{name}", value, unit) for name, (value, unit) in rows.items()]


def _longest_turns(nodes: TimedNodes, rule: str, ledger: _Ledger) -> list[Figure]:
    longest = longest_turns(nodes.home, ledger.began, monotonic())
    rows = {"turn": longest.any_ms, "move": longest.moves_ms}
    return [_figure(f"restarts.{rule}_longest_{name}_ms", ms, "ms") for name, ms in rows.items()]


def _figure(name: str, value: float, unit: str) -> Figure:
    return Figure(name, value, unit, value, value, 1)
