"""Latency of checks while two data centers exchange the counts of a limit with `scope: global`.

Each data center has one node. A client checks new keys in one data center at a steady rate. In each
data center, another client makes a lone check every few milliseconds. The latencies of lone checks
include the work of this process. The counts are sent during the load, and digests of them every ten
seconds.
"""

import gc
import tempfile
from bisect import bisect_left
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from time import monotonic

import trio
from msgspec import Struct, field

from benchmarks.cluster.cluster import share
from benchmarks.members.timed_node import longest_turns
from benchmarks.members.timed_nodes import TimedNodes
from benchmarks.reporting.figure import Figure, figure
from benchmarks.reporting.rates import cpu_s_of, resident_bytes
from ringfence.client.cluster.cluster import Cluster
from ringfence.client.connect import connect, open_cluster
from ringfence.client.limiter import Limiter
from ringfence.client.url import parse_url

__all__ = ["Probes", "run"]

_KEYS = 60_000
_PER_S = 5_000
_BATCH = 250
_LIMIT = 1_000_000
_RULES = f"""\
domain: bench
defaults: {{leases: false}}
descriptors:
  - key: user
    rate_limit: {{requests_per_unit: {_LIMIT}, unit: day, algorithm: sliding_window, scope: global}}
  - key: probe
    rate_limit: {{requests_per_unit: {_LIMIT}, unit: day, algorithm: fixed_window}}
"""
_PLACES = {"loaded": "eu", "other": "us"}
"""Data centers by node."""
_PROBES_OF = 50
"""Keys of the lone checks."""
_PROBE_EVERY_S = 0.005
_IDLE_S = 4.0
"""Seconds of lone checks alone, whose processor time is subtracted."""
_AFTER_S = 15.0
_LOOK_EVERY_S = 0.1
_LONGEST_S = 120.0


class Probes(Struct):
    """Latencies of lone checks at one node, in the order of their ends."""

    ends: list[float] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)

    def add(self, asked_at: float, now: float) -> None:
        """Record one check."""
        self.ends.append(now)
        self.latencies_ms.append((now - asked_at) * 1e3)

    def between(self, since: float, until: float) -> list[float]:
        """Return the latencies of the checks that ended in an interval."""
        return self.latencies_ms[bisect_left(self.ends, since) : bisect_left(self.ends, until)]


def run(rounds: int) -> Iterator[Figure]:
    """Yield latencies, turns and costs of the nodes of two data centers, new ones in each round."""
    found: list[dict[str, tuple[float, str]]] = []
    flags = {name: ("--datacenter", place) for name, place in _PLACES.items()}
    for _ in range(rounds):
        with (
            tempfile.TemporaryDirectory() as directory,
            TimedNodes(Path(directory), _RULES, [*_PLACES], flags) as nodes,
        ):
            found.append(trio.run(_measure, nodes))
    for name, (_, unit) in found[0].items():
        yield figure(f"global.{name}", unit, [each[name][0] for each in found])


async def _measure(nodes: TimedNodes) -> dict[str, tuple[float, str]]:
    probes = {name: Probes() for name in _PLACES}
    gc.collect()
    gc.freeze()  # A pause of the load generator does not count.
    async with trio.open_nursery() as nursery:
        for name in _PLACES:
            nursery.start_soon(_probe, _url(nodes, name), probes[name])
        async with (
            connect(_url(nodes, "loaded"), raise_on_outage=True) as limiter,
            open_cluster(parse_url(_url(nodes, "other"))) as other,
        ):
            await trio.sleep(_IDLE_S)  # The first checks connect.
            idle_s, memory = _cpu_s(nodes), _resident(nodes)
            await trio.sleep(_IDLE_S)
            before_s = _cpu_s(nodes)
            began = monotonic()
            await _load(limiter)
            loaded = monotonic()
            await _until_received(other)
            received = monotonic()
            await trio.sleep(max(0.0, loaded + _AFTER_S - received))
            ended = monotonic()
            used_s = _cpu_s(nodes) - before_s
            used_s -= (before_s - idle_s) / _IDLE_S * (ended - began)
            memory = _resident(nodes) - memory
            missing = await _missing(Limiter(other))
        nursery.cancel_scope.cancel()
    rows: dict[str, tuple[float, str]] = {}
    for phase, since, until in (("load", began, loaded), ("after", loaded, ended)):
        for name in _PLACES:
            samples = probes[name].between(since, until)
            rows[f"{phase}_{name}_p99_ms"] = share(samples, 0.99), "ms"
            rows[f"{phase}_{name}_slowest_ms"] = max(samples), "ms"
        rows[f"{phase}_longest_turn_ms"] = longest_turns(nodes.home, since, until).any_ms, "ms"
    return rows | {
        "received_s": (received - loaded, "s"),
        "missing": (missing, "keys"),
        "nodes_us_per_check": (used_s / _KEYS * 1e6, "us"),
        "nodes_bytes_per_key": (memory / _KEYS, "B"),
    }


def _url(nodes: TimedNodes, name: str) -> str:
    return f"ringfence://127.0.0.1:{nodes.ports[name]}?datacenter={_PLACES[name]}"


def _cpu_s(nodes: TimedNodes) -> float:
    return sum(map(cpu_s_of, nodes.pids))


def _resident(nodes: TimedNodes) -> int:
    return sum(map(resident_bytes, nodes.pids))


async def _probe(url: str, probes: Probes) -> None:
    async with connect(url, raise_on_outage=True) as limiter:
        for number in count():
            asked_at = monotonic()
            await limiter.check("bench", {"probe": str(number % _PROBES_OF)})
            probes.add(asked_at, monotonic())
            await trio.sleep(_PROBE_EVERY_S)


def _users(begin: int) -> list[dict[str, str]]:
    return [{"user": f"user-{number:06}"} for number in range(begin, begin + _BATCH)]


async def _load(limiter: Limiter) -> None:
    started_at = trio.current_time()
    for begin in range(0, _KEYS, _BATCH):
        await trio.sleep_until(started_at + begin / _PER_S)
        await limiter.check_many("bench", _users(begin))


async def _until_received(other: Cluster) -> None:
    """Wait until the other data center has received a count of each key."""
    with trio.fail_after(_LONGEST_S):
        while True:
            stats = {row.name: counters for row, counters in await other.admin.all_stats()}
            if (stats["other"] or {}).get("cells_received", 0) >= _KEYS:
                return
            await trio.sleep(_LOOK_EVERY_S)


async def _missing(limiter: Limiter) -> int:
    """Return the number of keys whose count the other data center does not have."""
    missing = 0
    for begin in range(0, _KEYS, _BATCH):
        peeked = await limiter.check_many("bench", _users(begin), 0)
        missing += sum(decision.remaining != _LIMIT - 1 for decision in peeked)
    return missing
