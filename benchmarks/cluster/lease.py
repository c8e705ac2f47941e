"""Cost and exactness of leases, by which clients decide checks of one hot key themselves.

The figures are decisions per second, and units over the limit. The rate is that of a real client
with a real node, in processor time of this thread. The oracle checks simulated histories: four
clients with leases, late and lost messages, a change of the limit, a crash of the owner.
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from time import thread_time

import trio

from benchmarks.cluster.cluster import connected
from benchmarks.reporting.figure import Figure, figure, ratio
from node.demo.cluster import running_cluster
from ringfence.client.limiter import Limiter
from ringfence.limiter import NS_PER_SECOND, Algorithm, Limit
from ringfence.wire import Source
from simulations.lending import LendingWorld

__all__ = ["run"]

RULES = """\
domain: bench
descriptors:
  - key: tenant
    rate_limit: {requests_per_unit: 4000000000, unit: minute, algorithm: token_bucket}
"""
_HOT = {"tenant": "hot"}
_BATCH = [_HOT] * 256
_SECONDS = 0.5
_WINDOW = 20 * NS_PER_SECOND


def run(rounds: int) -> Iterator[Figure]:
    """Yield decisions per second by a lease for each kind of call, and units over the limit."""
    with tempfile.TemporaryDirectory() as directory:
        rules = Path(directory) / "bench.yaml"
        rules.write_text(RULES, "utf-8")
        with running_cluster(rules, ["a"]) as nodes:
            found = trio.run(connected, nodes.url, partial(_measure, rounds))
    yield figure("lease.per_s", "1/s", found["many"])
    yield figure("lease.check_per_s", "1/s", found["check"])
    yield figure("lease.leased_share", "x", found["share"])
    yield ratio("lease.many_vs_check", found["many"], found["check"])
    histories = [_history(seed) for seed in range(rounds)]
    yield figure("lease.over_admitted", "units", [over for over, _ in histories])
    yield figure("lease.simulated_leased_share", "x", [share for _, share in histories])


async def _measure(rounds: int, limiter: Limiter) -> dict[str, list[float]]:
    for _ in range(20):
        await _many(limiter, 0.02)
    found: dict[str, list[float]] = {"many": [], "check": [], "share": []}
    for _ in range(rounds):
        per_s, share = await _many(limiter, _SECONDS)
        found["many"].append(per_s)
        found["share"].append(share)
        found["check"].append(await _check(limiter))
    return found


async def _many(limiter: Limiter, seconds: float) -> tuple[float, float]:
    """Return decisions per second of this thread, and the share of decisions that used a lease."""
    done = leased = 0
    until = trio.current_time() + seconds
    started_at = thread_time()
    while trio.current_time() < until:
        decisions = await limiter.check_many("bench", _BATCH)
        assert decisions[0].allowed
        done += len(decisions)
        if decisions[0].source is Source.LEASE and decisions[-1].source is Source.LEASE:
            leased += len(decisions)
    return done / (thread_time() - started_at), leased / done


async def _check(limiter: Limiter) -> float:
    done = 0
    until = trio.current_time() + _SECONDS
    started_at = thread_time()
    while trio.current_time() < until:
        for _ in range(64):
            decision = await limiter.check("bench", _HOT)
            assert decision.allowed
        done += 64
    return done / (thread_time() - started_at)


def _history(seed: int) -> tuple[float, float]:
    """Return the units admitted over the limit in a simulated history, and the share from leases.

    Units count as over the limit when they exceed every limit that was in force during their
    window. An owner that crashes loses what it decided or lent since its last replication. That
    loss is within the bound of every crash and does not count here.
    """
    random = Random(seed)
    limit, raised = (Limit.of_ns(n, _WINDOW, Algorithm.FIXED_WINDOW) for n in (20_000, 30_000))
    world = LendingWorld(seed, limit)
    amounts: dict[int, int] = {}
    for step in range(1500):
        for _ in range(30):
            world.check(random.randrange(4), random.choice((1, 1, 5, 20)))
        window = world.now // _WINDOW
        amounts[window] = max(amounts.get(window, 0), world.limit.amount)
        if step in (400, 1000):
            world.change_limit(raised if step == 400 else limit)
        if step == 700:
            world.crash()
        world.run_until(world.now + random.randrange(100_000_000))
    passed: dict[int, int] = {}
    for each in world.admitted:
        window = each.at // _WINDOW
        passed[window] = passed.get(window, 0) + each.units
    over = sum([max(0, units - amounts.get(window, 0)) for window, units in passed.items()])
    leased = sum([each.by_lease for each in world.admitted])
    return max(0, over - world.unsaved), leased / len(world.admitted)
