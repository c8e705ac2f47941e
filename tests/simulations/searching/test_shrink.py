"""Shrinking of failing runs, with planted mutants of the shipped code."""

import pytest
from msgspec.structs import replace

from simulations.mutants.catalog import MUTANTS
from simulations.mutants.scenarios import TESTBEDS
from simulations.mutants.value import applied
from simulations.reporting.text_diagram import draw_text
from simulations.scenarios.scenario import Fault, Load, Scenario
from simulations.searching.case_files import format_case, parse_case
from simulations.searching.shrink import Finding, run_outcome, shrink

CRASH = replace(
    TESTBEDS["crash"].scenario,
    nodes=2,
    seconds=4.0,
    calm=8.0,
    loads=(Load(rule="kept", per_second=20, keys=3), Load(rule="day", per_second=5, keys=1)),
    faults=(
        Fault(1.0, "repeats", 2.0, {"share": 0.1}),
        Fault(2.0, "crash", None, {"node": "n2"}),
    ),
)


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the engine in Python, because a mutant cannot change compiled code."""
    monkeypatch.setenv("RINGFENCE_ENGINE", "reference")


def shrunk(mutant: str, scenario: Scenario, max_runs: int = 40) -> Finding:
    with applied(MUTANTS[mutant]):
        finding = shrink(1, scenario, max_runs)
        assert finding is not None
        assert run_outcome(finding.case.scenario, 1).violations
    return finding


def test_a_planted_bug_becomes_a_story_of_at_most_ten_events(in_python: None) -> None:
    finding = shrunk("takeover-from-nothing", CRASH)
    case = parse_case(format_case(finding.case))
    [fault] = case.scenario.faults

    assert finding.events <= 10
    assert finding.runs <= 40
    assert {name for name, _ in finding.violations} == {"lost_hits"}
    assert fault.verb == "crash"
    lines = finding.story.lines()
    assert len(finding.story.steps) <= 10
    assert any("n2 (owner) allows" in line for line in lines)
    assert any("n2 crashes" in line for line in lines)
    assert any("decides for the unreachable owner" in line for line in lines)
    assert "lost_hits" in lines[-1]
    assert len(draw_text(finding.story)) == len(finding.story.steps) + 1
    # Without the planted bug, the same case holds.
    assert run_outcome(case.scenario, case.seed).violations == []


def test_a_run_without_a_violation_is_not_shrunk() -> None:
    quiet = replace(CRASH, seconds=2.0, calm=1.0, faults=(), loads=(Load(rule="day", keys=2),))

    assert shrink(1, quiet) is None


def test_the_budget_of_runs_is_kept(in_python: None) -> None:
    finding = shrunk("takeover-from-nothing", CRASH, max_runs=3)

    assert finding.runs == 3
