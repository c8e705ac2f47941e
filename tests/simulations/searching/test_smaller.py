"""Passes of shrinking, with a predicate instead of a run."""

from collections.abc import Callable

import yaml
from msgspec.structs import replace

from simulations.scenarios.catalog import SCENARIOS
from simulations.scenarios.generate import generate_scenario
from simulations.scenarios.listed_loads import LISTED
from simulations.scenarios.scenario import Fault, Holds, Load, Scenario
from simulations.searching.smaller import event_count, passes

STEADY = SCENARIOS["steady"]
PLACES = [("exact", "k1")]


def smallest(
    scenario: Scenario, is_failing: Callable[[Scenario], bool], broken: str = "over_admission"
) -> Scenario:
    """Apply all passes twice, and accept the candidates that the predicate accepts."""
    for _ in range(2):
        for make in passes(1, [broken], PLACES):
            candidates, is_accepted = make(scenario), None
            while True:
                try:
                    found = candidates.send(is_accepted)  # type: ignore[arg-type]
                except StopIteration:
                    break
                is_accepted = is_failing(found)
                scenario = found if is_accepted else scenario
    return scenario


def test_a_scenario_without_a_needed_part_becomes_empty() -> None:
    for seed in (1, 2, 3):
        found = smallest(generate_scenario(seed, "node"), lambda candidate: True)

        assert (found.level, found.nodes, found.datacenters, found.zones) == ("core", 1, 1, 1)
        assert (found.faults, found.loads, found.holds) == ((), (), ())
        assert found.network.latency == "lan"
        assert event_count(found) == 0


def test_only_the_needed_fault_remains_and_becomes_short() -> None:
    faults = (
        Fault(1.0, "loss", 3.0, {"share": 0.1}),
        Fault(2.0, "cut", 20.0, {"node": "n1,n3"}),
        Fault(9.0, "crash", 12.0, {"node": "n2"}),
    )

    def is_failing(candidate: Scenario) -> bool:
        return any(
            fault.verb == "cut" and "n3" in str(fault.args["node"]) for fault in candidate.faults
        )

    [fault] = smallest(replace(STEADY, faults=faults), is_failing).faults

    assert fault == Fault(2.0, "cut", 2.3, {"node": "n3"})


def test_only_the_needed_checks_remain_and_limits_become_low() -> None:
    def is_failing(candidate: Scenario) -> bool:
        checks = [
            line
            for load in candidate.loads
            if load.rule == "exact"
            for line in str(load.args.get("checks", "k1\n" * 9)).splitlines()
            if line.endswith("k1")
        ]
        return len(checks) >= 3

    loads = (Load(rule="exact", per_second=40, keys=3), Load(rule="window"))
    found = smallest(replace(STEADY, loads=loads, holds=(Holds(),)), is_failing)

    [load] = found.loads
    assert (load.shape, load.rule) == (LISTED, "exact")
    assert event_count(found) == 3
    [row] = yaml.safe_load(found.rules)["descriptors"]
    assert row["rate_limit"]["requests_per_unit"] == 1


def test_the_calm_stays_when_the_end_of_the_run_is_judged() -> None:
    def always(candidate: Scenario) -> bool:
        return True

    assert smallest(STEADY, always, "over_admission").calm == 5.0
    assert smallest(STEADY, always, "lost_hits").calm == STEADY.calm


def test_events_are_faults_checks_and_callers() -> None:
    scenario = Scenario(
        "mine",
        "about",
        seconds=10,
        loads=(Load(per_second=3), Load(LISTED, args={"checks": "1 client-0 k1"})),
        holds=(Holds(per_second=2),),
        faults=(Fault(1, "reset"),),
    )

    assert event_count(scenario) == 1 + 30 + 1 + 20
