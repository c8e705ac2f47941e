"""Guided search with fake runs: the number of nodes of a scenario decides what it reaches."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from msgspec.structs import replace

from simulations.scenarios.faults.arguments import check
from simulations.scenarios.generate import generate_scenario
from simulations.scenarios.scenario import Fault, Scenario
from simulations.scenarios.seeds import stream
from simulations.searching import guided
from simulations.searching.fairness import ends_all, is_valid
from simulations.searching.guided import Guided, search_guided
from simulations.searching.variations import vary
from simulations.swarm import Run


def reach_by_nodes(scenario: Scenario, seed: int) -> Run:
    """Return a run that reaches a state of its own for each number of nodes, and fails with 6."""
    reached = frozenset({f"{scenario.nodes} nodes"})
    broken = (("over_admission", "text"),) if scenario.nodes == 6 else ()
    return Run(seed, "", broken, Counter(), frozenset(), 1.0, 1.0, reached=reached)


def one_more_node(scenario: Scenario, random: Random) -> Scenario:
    return replace(scenario, nodes=scenario.nodes + 1)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guided, "run_one", reach_by_nodes)
    monkeypatch.setattr(guided, "vary", one_more_node)


def searched(first: int = 100, runs: int = 60) -> Guided:
    with ThreadPoolExecutor(2) as executor:
        return search_guided(executor, "core", first, runs)


@pytest.mark.parametrize("first", [100, 200, 300, 400, 500])
def test_a_guided_search_varies_new_scenarios_repeatedly(fast: None, first: int) -> None:
    """A state three variations away from all drawn scenarios is only reached if a new variation is
    kept and varied again."""
    found = searched(first)
    most_drawn = max(int(name.split()[0]) for name in found.plain)

    assert found.runs == 60
    assert found.varied > 20
    assert f"{most_drawn + 3} nodes" in found.only_guided
    assert not set(found.only_guided) & found.plain


def test_an_equal_search_has_equal_results(fast: None) -> None:
    one, other = searched(), searched()

    assert (one.kept, one.reached, one.plain) == (other.kept, other.reached, other.plain)


def test_failing_scenarios_are_reported_and_not_varied(fast: None) -> None:
    found = searched()

    assert found.failed
    for scenario, run in found.failed:
        assert reach_by_nodes(scenario, run.seed).violations == run.violations
    failed = {repr(scenario) for scenario, _ in found.failed}
    assert not failed & {repr(kept.scenario) for kept in found.kept}


def test_a_varied_stall_is_not_longer_than_a_user_may_write() -> None:
    random, stall = stream(1, "test"), Fault(2.0, "stall", 7.0, {"node": "n1"})
    scenario = replace(generate_scenario(1, "core"), seconds=30.0, faults=(stall,))

    varied = [fault for _ in range(100) for fault in vary(scenario, random).faults]

    for fault in varied:
        check(fault)


def test_varied_scenarios_are_valid_and_differ_in_one_point() -> None:
    random = stream(1, "test")
    for seed in range(20):
        scenario = generate_scenario(seed, "core")
        for _ in range(10):
            varied = vary(scenario, random)
            changed = [
                name
                for name in ("faults", "loads", "nodes", "network", "rules", "seconds")
                if getattr(varied, name) != getattr(scenario, name)
            ]

            assert len(changed) <= 1
            assert is_valid(varied)
            assert all(
                fault.at <= scenario.seconds and (fault.until or 0) <= scenario.seconds
                for fault in varied.faults
            )
            scenario = scenario if ends_all(varied) else varied
