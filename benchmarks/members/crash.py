"""Units that are lost when one of three nodes is killed under the highest load of this machine.

A client checks a million distinct keys, by 64 tasks or in batches, as fast as the nodes answer.
Then the owner of a third of the keys is killed. Afterwards the counter of each key is read. Units
that a node admitted, and that no counter contains, are lost. A crash may lose what the killed node
admitted in its last 100 ms. The client records the keys and times of the last answers, so it can
count both.
"""

import gc
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from time import perf_counter

import trio
from msgspec import Struct

from benchmarks.members.admissions import Admissions, Loss, counted, owned_by
from benchmarks.reporting.figure import Figure, figure
from node.demo.cluster import DemoCluster, running_cluster
from ringfence.client.connect import open_cluster
from ringfence.client.limiter import Limiter
from ringfence.client.url import parse_url

__all__ = ["run"]

_RULES = """\
domain: bench
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 1000000000, unit: day, algorithm: fixed_window, leases: false}
"""
_LIMIT = 1_000_000_000
_KEYS = 1_000_000
_KILLED = "c"
_BATCH = 256
_BATCHES = 4
"""Batches of `check_many` in flight."""
_TASKS = 64
_BEFORE_S = 4.0
_AFTER_S = 2.0
_CALM_S = 2.0


class _Run(Struct, frozen=True):
    """Crash under load, with the observations of the client."""

    loss: Loss
    checks_per_s: float
    slowest_s: float
    undecided: int


_Ask = Callable[[Limiter, Callable[[], str], Admissions], Awaitable[None]]


async def _check(limiter: Limiter, next_key: Callable[[], str], found: Admissions) -> None:
    key, asked_at = next_key(), perf_counter()
    decision = await limiter.check("bench", {"user": key})
    now = perf_counter()
    found.add(key, decision.source, asked_at, now, is_allowed=decision.allowed)


async def _check_many(limiter: Limiter, next_key: Callable[[], str], found: Admissions) -> None:
    keys, asked_at = [next_key() for _ in range(_BATCH)], perf_counter()
    decisions = await limiter.check_many("bench", [{"user": key} for key in keys])
    now = perf_counter()
    for key, decision in zip(keys, decisions, strict=True):
        found.add(key, decision.source, asked_at, now, is_allowed=decision.allowed)


_LOADS: dict[str, tuple[_Ask, int]] = {"tasks64": (_check, _TASKS), "many": (_check_many, _BATCHES)}


def run(rounds: int) -> Iterator[Figure]:
    """Kill one node of a new cluster in each round and under each kind of load; yield the loss."""
    with tempfile.TemporaryDirectory() as directory:
        rules = Path(directory) / "rules.yaml"
        rules.write_text(_RULES, "utf-8")
        found: dict[str, list[_Run]] = {name: [] for name in _LOADS}
        for _ in range(rounds):
            for name, (ask, tasks) in _LOADS.items():
                with running_cluster(rules) as nodes:
                    found[name].append(trio.run(_crash, nodes, ask, tasks))
    for name, runs in found.items():
        losses = [each.loss for each in runs]
        rows: dict[str, tuple[str, list[float]]] = {
            "per_s": ("1/s", [each.checks_per_s for each in runs]),
            "lost": ("hits", [each.lost for each in losses]),
            "may_lose": ("hits", [each.may_lose for each in losses]),
            "oldest_lost_ms": ("ms", [each.oldest_s * 1000 for each in losses]),
            "counted_twice": ("hits", [each.counted_twice for each in losses]),
            "undecided": ("checks", [each.undecided for each in runs]),
            "slowest_ms": ("ms", [each.slowest_s * 1000 for each in runs]),
        }
        for row, (unit, values) in rows.items():
            yield figure(f"crash.{name}_{row}", unit, values)


async def _crash(nodes: DemoCluster, ask: _Ask, tasks: int) -> _Run:
    found, order = Admissions(), count()
    gc.collect()
    gc.freeze()  # A pause of the load generator does not count.

    def next_key() -> str:
        return f"user-{next(order) % _KEYS:07}"

    async with open_cluster(parse_url(nodes.url), denial_cache_size=0, use_leases=False) as cluster:
        limiter = Limiter(cluster)
        owned = owned_by(cluster, _KILLED, "user")

        is_over = False

        async def work() -> None:
            while not is_over:
                await ask(limiter, next_key, found)

        started_at = perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(work)
            await trio.sleep(_BEFORE_S)
            checks = found.by_key.total() / (perf_counter() - started_at)
            found.crash(perf_counter())
            nodes.processes[_KILLED].kill()
            await trio.sleep(_AFTER_S)
            is_over = True
        await trio.sleep(_CALM_S)
        used = await counted(limiter, "user", _LIMIT, [*found.by_key])
    return _Run(found.compare(used, owned), checks, found.slowest_s, found.undecided)
