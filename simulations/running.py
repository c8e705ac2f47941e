"""Runs a scenario at its level."""

import gc
import logging

from simulations.core_level.run import simulate_cores
from simulations.node_level.run import Progress, simulate_nodes
from simulations.reporting.outcome import Outcome
from simulations.scenarios.rule_changes import command_of
from simulations.scenarios.scenario import Scenario

__all__ = ["run_scenario"]


def run_scenario(
    scenario: Scenario, seed: int, original: Scenario, progress: Progress = lambda part: None
) -> Outcome:
    """Run it; `original` is what it was made of by changes, so that its command can be told.

    What nodes log is kept quiet meanwhile. Raises `ValueError` and `ConfigError` for a scenario
    that makes no sense.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        run = simulate_cores if scenario.level == "core" else simulate_nodes
        return run(scenario, seed, command_of(scenario, original, seed), progress)
    finally:
        logging.disable(before)
        gc.collect()
