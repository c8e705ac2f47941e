"""Simulation runs that test a drawn mutant, each named by one word and a seed."""

import logging

from simulations.mutants.run import run_on_testbed
from simulations.mutants.scenarios import TESTBEDS
from simulations.scenarios.generate import DRAWN
from simulations.scenarios.scenario import Level
from simulations.swarm import run_seed

__all__ = ["run_once", "runs_of"]


def runs_of(testbed_seeds: int, core_seeds: int, node_seeds: int) -> list[str]:
    """Return the names of the runs: all scenarios for mutants, and drawn scenarios per level."""
    return [
        *(f"{name} {seed}" for seed in range(1, testbed_seeds + 1) for name in TESTBEDS),
        *(f"core {seed}" for seed in range(1, core_seeds + 1)),
        *(f"node {seed}" for seed in range(1, node_seeds + 1)),
    ]


def run_once(run: str) -> list[tuple[str, str]]:
    """Run one simulation of `runs_of` and return the violations: invariant and text."""
    name, _, seed = run.rpartition(" ")
    logging.disable(logging.CRITICAL)  # Mutants cause many log messages.
    levels: dict[str, Level] = {"core": "core", "node": "node"}
    if name in levels:
        return list(run_seed(DRAWN, levels[name], int(seed)).violations)
    found = run_on_testbed(None, TESTBEDS[name], int(seed))
    return [(each.property, each.text) for each in found]
