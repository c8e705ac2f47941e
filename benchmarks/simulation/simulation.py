"""Speed of simulations: virtual seconds per real second, and seeds per minute of processor time.

A seed is one complete run: start of the cluster, load, a crash, a restart, and the check of all
invariants. `_SIZES` has the virtual seconds of each cluster size.
"""

from collections.abc import Iterator
from statistics import median
from time import process_time

from msgspec import Struct

from benchmarks.reporting.figure import Figure
from simulations.reporting.outcome import Outcome
from simulations.running import run_scenario
from simulations.scenarios.catalog import RULES
from simulations.scenarios.scenario import Fault, Level, Load, Scenario

__all__ = ["run"]


class _Size(Struct, frozen=True):
    level: Level
    nodes: int
    seconds: float
    """Virtual seconds after the start of the cluster; the second half is calm."""
    most_rounds: int
    datacenters: int = 1


_SIZES = (
    _Size("node", 5, 60.0, 5),
    _Size("node", 20, 10.0, 2),
    _Size("core", 100, 60.0, 3),
    _Size("core", 1000, 600.0, 1),
    # Each node rebuilds its ring at each join, which would take several times as long in
    # one data center.
    _Size("node", 100, 2.0, 1, datacenters=10),
)


def run(rounds: int) -> Iterator[Figure]:
    """Measure each cluster size with one seed per round, or with fewer seeds where a run is
    expensive."""
    for size in _SIZES:
        yield from _figures(size, min(rounds, size.most_rounds))


def _figures(size: _Size, rounds: int) -> Iterator[Figure]:
    paces, seeds = [], []
    for seed in range(rounds):
        began = process_time()
        outcome = _ran(size, seed)
        cpu_s = process_time() - began
        paces.append(outcome.virtual_s / outcome.real_s)
        seeds.append(60.0 / cpu_s)
    name = f"simulation.{size.level}"
    yield _figure(f"{name}_virtual_s_per_s_{size.nodes}", "virtual s/s", paces)
    yield _figure(f"{name}_seeds_per_cpu_min_{size.nodes}", "seeds/min", seeds)


def _ran(size: _Size, seed: int) -> Outcome:
    scenario = _scenario(size)
    return run_scenario(scenario, seed)


def _scenario(size: _Size) -> Scenario:
    half = size.seconds / 2
    crash = Fault(half / 3, "crash", half * 2 / 3, {"node": "n2"})
    return Scenario(
        "benchmark",
        "a node dies and comes back under an even load",
        level=size.level,
        nodes=size.nodes,
        datacenters=size.datacenters,
        seconds=half,
        calm=half,
        rules=RULES,
        loads=(Load(rule="exact", per_second=50, keys=60),),
        faults=(crash,),
    )


def _figure(name: str, unit: str, values: list[float]) -> Figure:
    return Figure(name, median(values), unit, min(values), max(values), len(values))
