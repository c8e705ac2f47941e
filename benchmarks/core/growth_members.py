"""Cost of a check for a client of a large cluster: finding the owner, and creating the request.

A single check needs one look-up. A batch is also split by owner: one frame each for three owners,
or hundreds of frames for a thousand owners.
"""

from collections.abc import Iterator
from random import Random
from time import process_time_ns

import trio

from benchmarks.cluster.cluster import RULES
from benchmarks.reporting.figure import Figure, figure, ratio
from benchmarks.simulation.in_process_cluster import cluster_client
from ringfence.client.limiter import Limiter
from ringfence.rules.loading.yaml_files import load_text

__all__ = ["members_figures"]

_FEW, _MANY = 3, 1000
_KEYS = 10_000
_CHECKS = 2_000
_TASKS = 64


def members_figures(rounds: int) -> Iterator[Figure]:
    """Yield microseconds of processor time per check for small and large clusters, and their
    ratio."""
    single, concurrent = trio.run(_measured, rounds)
    for label, found in (("", single), ("_64_tasks", concurrent)):
        for size, values in found.items():
            yield figure(f"growth.members_{size}{label}_us", "us", values)
        yield ratio(f"growth.members{label}", found[_MANY], found[_FEW])


async def _measured(rounds: int) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
    """Measure a small and a large cluster alternately, so that all rounds run under the same
    conditions."""
    rules = load_text(RULES).rules
    single: dict[int, list[float]] = {_FEW: [], _MANY: []}
    concurrent: dict[int, list[float]] = {_FEW: [], _MANY: []}
    async with (
        cluster_client(_FEW, rules, _KEYS) as few,
        cluster_client(_MANY, rules, _KEYS) as many,
    ):
        clients = {_FEW: few, _MANY: many}
        for limiter in clients.values():
            for number in range(_KEYS):  # Warm up: connect to every member and create every key.
                await limiter.check("bench", {"user": f"user-{number}"})
        random = Random(3)
        for _ in range(rounds):
            for size, limiter in clients.items():
                asked = [f"user-{random.randrange(_KEYS)}" for _ in range(_CHECKS)]
                single[size].append(await _us_each(limiter, asked, 1))
                concurrent[size].append(await _us_each(limiter, asked, _TASKS))
    return single, concurrent


async def _us_each(limiter: Limiter, names: list[str], tasks: int) -> float:
    async def work(place: int) -> None:
        for name in names[place::tasks]:
            decision = await limiter.check("bench", {"user": name})
            assert decision.allowed

    started_at = process_time_ns()
    async with trio.open_nursery() as nursery:
        for place in range(tasks):
            nursery.start_soon(work, place)
    return (process_time_ns() - started_at) / len(names) / 1000
