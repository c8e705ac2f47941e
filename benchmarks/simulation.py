"""How fast simulations are: virtual time per real time, and seeds per minute of the processor.

A seed is one whole run of 60 virtual seconds after the cluster has come up: a load, a crash and a
return in it, and the judge's last word. Bigger clusters run for a shorter time, so that a round
ends; their seeds are reckoned up to 60 virtual seconds by what a virtual second cost.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from time import process_time

from benchmarks.figure import Figure
from simulations.outcome import Outcome
from simulations.running import run_scenario
from simulations.scenario import Fault, Level, Load, Scenario
from simulations.scenarios import RULES

__all__ = ["run"]

_SEED_S = 60.0
"""Virtual seconds of a seed."""


@dataclass(frozen=True, slots=True)
class _Size:
    level: Level
    nodes: int
    seconds: float
    """Of virtual time, half of them calm."""
    most_rounds: int


_SIZES = (
    _Size("node", 5, 60.0, 5),
    _Size("node", 20, 20.0, 3),
    _Size("node", 100, 6.0, 1),
    _Size("core", 100, 20.0, 3),
    _Size("core", 1000, 20.0, 1),
)


def run(rounds: int) -> Iterator[Figure]:
    """Measure each size with as many seeds as rounds, or as few as its cost allows."""
    for size in _SIZES:
        yield from _figures(size, min(rounds, size.most_rounds))


def _figures(size: _Size, rounds: int) -> Iterator[Figure]:
    paces, seeds = [], []
    for seed in range(rounds):
        began = process_time()
        outcome = _ran(size, seed)
        cpu_s = process_time() - began
        paces.append(outcome.virtual_s / outcome.real_s)
        seeds.append(60.0 / (cpu_s * _SEED_S / size.seconds))
    name = f"simulation.{size.level}"
    yield _figure(f"{name}_virtual_s_per_s_{size.nodes}", "virtual s/s", paces)
    yield _figure(f"{name}_seeds_per_cpu_min_{size.nodes}", "seeds/min", seeds)


def _ran(size: _Size, seed: int) -> Outcome:
    scenario = _scenario(size)
    return run_scenario(scenario, seed, scenario)


def _scenario(size: _Size) -> Scenario:
    half = size.seconds / 2
    crash = Fault(half / 3, "crash", half * 2 / 3, {"node": "n2"})
    return Scenario(
        "benchmark",
        "a node dies and comes back under an even load",
        level=size.level,
        nodes=size.nodes,
        seconds=half,
        calm=half,
        rules=RULES,
        loads=(Load(rule="exact", per_second=50, keys=60),),
        faults=(crash,),
    )


def _figure(name: str, unit: str, values: list[float]) -> Figure:
    return Figure(name, median(values), unit, min(values), max(values), len(values))
