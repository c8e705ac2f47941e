"""Runs a scenario."""

import gc
import logging

from simulations.reporting.outcome import Outcome
from simulations.scenarios.rule_changes import replay_command
from simulations.scenarios.scenario import Scenario
from simulations.world.run import Progress, simulate

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
        return simulate(scenario, seed, replay_command(scenario, original, seed), progress)
    finally:
        logging.disable(before)
        gc.collect()
