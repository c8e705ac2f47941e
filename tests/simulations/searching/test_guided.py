"""Guided search with fake runs: the faults of a scenario alone decide what it reaches."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from simulations.scenarios.generate import generate_scenario
from simulations.scenarios.scenario import Level, Scenario
from simulations.scenarios.seeds import stream
from simulations.searching import guided
from simulations.searching.fairness import ends_all, is_valid
from simulations.searching.guided import Guided, search_guided
from simulations.searching.variations import vary
from simulations.swarm import Run


def reach_by_times(scenario: Scenario, seed: int) -> Run:
    """Return a run that reaches the quarter seconds in which faults begin, and fails on one.

    Drawn faults begin in the first 60 % of the load, so only variations reach the others.
    """
    reached = frozenset(f"{int(4 * fault.at) / 4} s" for fault in scenario.faults)
    broken = (("over_admission", "text"),) if "8.0 s" in reached else ()
    return Run(seed, "", broken, Counter(), frozenset(), 1.0, 1.0, reached=reached)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guided, "run_one", reach_by_times)


def searched(level: Level = "core", runs: int = 60) -> Guided:
    with ThreadPoolExecutor(2) as executor:
        return search_guided(executor, level, 100, runs)


def test_a_guided_search_reaches_more_than_plain_drawing(fast: None) -> None:
    found = searched(runs=200)

    assert found.runs == 200
    assert 70 < found.varied < 170
    assert len(found.reached) > len(found.plain)
    assert found.only_guided
    assert not set(found.only_guided) & found.plain


def test_an_equal_search_has_equal_results(fast: None) -> None:
    one, other = searched(), searched()

    assert (one.kept, one.reached, one.plain) == (other.kept, other.reached, other.plain)


def test_failing_scenarios_are_reported_and_not_varied(fast: None) -> None:
    found = searched(runs=200)

    assert found.failed
    for scenario, run in found.failed:
        assert reach_by_times(scenario, run.seed).violations == run.violations
    failed = {repr(scenario) for scenario, _ in found.failed}
    assert not failed & {repr(kept.scenario) for kept in found.kept}


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
