"""Function that runs a scenario without logs of its nodes."""

import gc
import logging

from simulations.reporting.outcome import Outcome
from simulations.scenarios.rule_changes import replay_command
from simulations.scenarios.scenario import Scenario
from simulations.world.run import Progress, simulate
from simulations.world.validation import validated

__all__ = ["run_scenario"]


def run_scenario(
    scenario: Scenario,
    seed: int,
    original: Scenario | None = None,
    progress: Progress = lambda part: None,
) -> Outcome:
    """Run a scenario with the logs of its nodes disabled.

    `original` is the scenario before changes, if any; the outcome's command lists the changes.
    Raises `ConfigError` for an invalid scenario.
    """
    validated(scenario)
    before, was_enabled = logging.root.manager.disable, gc.isenabled()
    was_frozen = gc.get_freeze_count() > 0
    logging.disable(logging.CRITICAL)
    gc.disable()  # One collection after the run is enough.
    gc.freeze()  # It need not search the objects from before the run.
    try:
        command = replay_command(scenario, original or scenario, seed)
        return simulate(scenario, seed, command, progress)
    finally:
        logging.disable(before)
        gc.collect()
        if not was_frozen:
            gc.unfreeze()
        if was_enabled:
            gc.enable()
