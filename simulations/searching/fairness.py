"""Validity of changed scenarios: correct faults, and no data center that loses all its counts."""

from ringfence.errors import ConfigError
from simulations.scenarios.scenario import Scenario
from simulations.world.validation import validated

__all__ = ["ends_all", "is_valid"]

_ENDING = ("crash", "leave")
"""Faults that end nodes. Nothing is left of the counts of a data center whose nodes all end."""


def is_valid(scenario: Scenario) -> bool:
    """Return whether a scenario can run."""
    try:
        validated(scenario)
    except ConfigError:
        return False
    return True


def ends_all(scenario: Scenario) -> bool:
    """Return whether the faults end each node of some data center."""
    ended: set[str] = set()
    names = [f"n{number + 1}" for number in range(scenario.nodes)]
    for fault in scenario.faults:
        if fault.verb in _ENDING:
            ended |= set(str(fault.args["node"]).split(",")) if "node" in fault.args else {*names}
    return any(
        ended.issuperset(names[number :: scenario.datacenters])
        for number in range(scenario.datacenters)
    )
