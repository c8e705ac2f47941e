"""Injected internal errors end no node, and all other internal errors fail the run."""

import pytest

from node.requests.rules_in_force import RulesInForce
from simulations.running import run_scenario
from simulations.scenarios.catalog import RULES
from simulations.scenarios.generate import generate_scenario
from simulations.scenarios.scenario import Fault, Load, Network, Scenario


def scenario(level, *faults, **changes):
    loads = (Load(rule="exact", per_second=30, keys=20), Load(rule="everywhere", per_second=10))
    fields = {"nodes": 4, "datacenters": 2, "seconds": 6.0, "calm": 25.0} | changes
    return Scenario(
        "small", "for a test", level=level, rules=RULES, loads=loads, faults=faults, **fields
    )


@pytest.mark.parametrize(("level", "at"), [("core", 1.0), ("core", 2.0), ("node", 2.0)])
def test_a_node_keeps_running_after_each_kind_of_error(level, at):
    names = ("n1", "n2", "n3")
    faults = [
        Fault(at + i / 3, "errors", 5.5, {"node": n, "count": 30}) for i, n in enumerate(names)
    ]
    case = scenario(level, *faults, network=Network("near"))
    outcome = run_scenario(case, 3)

    assert outcome.violations == []
    assert outcome.marks["error_contained"] > 0


@pytest.mark.parametrize("level", ["core", "node"])
def test_generated_scenarios_include_errors(level):
    verbs = [fault.verb for seed in range(60) for fault in generate_scenario(seed, level).faults]

    assert verbs.count("errors") > 3


@pytest.mark.internal_errors
def test_an_error_that_was_not_injected_fails_the_run(monkeypatch):
    def broken(node, rule_id):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(RulesInForce, "period_of", broken)
    case = scenario("core", Fault(1, "crash", 3, {"node": "n1"}))
    outcome = run_scenario(case, 1)

    assert "ZeroDivisionError: a bug" in [each.text for each in outcome.violations]
