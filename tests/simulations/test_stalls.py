"""Suspended processes: each check counts exactly once."""

import pytest

from simulations.running import run_scenario
from simulations.scenarios.catalog import RULES
from simulations.scenarios.generate import generate_scenario
from simulations.scenarios.scenario import Fault, Level, Load, Scenario


def stalled(level: Level, *stalls: tuple[float, float]) -> Scenario:
    """Return a scenario that suspends three nodes in turn; a stall is its start and duration."""
    return Scenario(
        "stalls",
        "processes are suspended",
        level=level,
        nodes=3,
        seconds=max(at + seconds for at, seconds in stalls) + 3,
        calm=20,
        rules=RULES,
        loads=(Load(rule="exact", per_second=150, keys=400),),
        faults=tuple(
            Fault(at, "stall", at + seconds, {"node": f"n{number % 3 + 1}"})
            for number, (at, seconds) in enumerate(stalls)
        ),
    )


@pytest.mark.parametrize(
    ("stalls", "level"),
    [
        ([(3, 0.6)], "core"),
        ([(3, 1.2)], "core"),
        ([(3, 0.6), (6, 1.2), (9, 2.0)], "core"),
        ([(3, 0.6), (6, 1.2), (9, 2.0)], "node"),
    ],
)
def test_all_units_that_were_admitted_are_counted_once(
    level: Level, stalls: list[tuple[float, float]]
) -> None:
    scenario = stalled(level, *stalls)

    outcome = run_scenario(scenario, 0)

    assert [f"{each.property}: {each.text}" for each in outcome.violations] == []


@pytest.mark.parametrize("level", ["node", "core"])
def test_some_generated_runs_have_only_stalls(level: Level) -> None:
    runs = [generate_scenario(seed, level) for seed in range(40)]
    verbs = [{fault.verb for fault in run.faults} for run in runs]

    assert {"stall"} in verbs
    assert any("stall" in each and len(each) > 1 for each in verbs)
