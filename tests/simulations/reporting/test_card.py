"""Report card of a release: rows of results become one page."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from ringfence.errors import ConfigError
from simulations.reporting.card import Results, render_card

SWARM = {
    "level": "core",
    "seeds": 1000,
    "failed": [],
    "run_twice": 50,
    "differed": [],
    "marks_missing": [],
    "pairs": 300,
    "pairs_missing": ["a × b"],
    "cpu_s": 1800.0,
}
DRAWN = {
    "drawn": 40,
    "equivalent": 4,
    "found": 27,
    "score": 0.75,
    "survivors": [{"mutant": "m:1", "old": "<", "new": "<="}],
}
RUN = {
    "scenario": "node-crash",
    "seed": 7,
    "event_hash": "ab",
    "violations": [],
    "real_s": 99.0,
    "cpu_s": 3.6,
    "figures": {"detection_worst_s": 4.0, "detection_bound_s": 16.0},
    "explained": [{"figure": "units over the limit of exact=k0", "value": 3, "bound": 6}],
}


def results(**files: dict[str, Any]) -> Results:
    found = Results()
    for name, row in files.items():
        found.add(Path(name), [json.dumps({"seed": 3}), "", json.dumps(row)])
    return found


def page_of(found: Results) -> str:
    root = ET.fromstring(render_card(found, "1.2.3", "2026-11-22"))
    return " ".join(" ".join(root.itertext()).split())


def test_a_card_has_seeds_hours_scores_and_bounds() -> None:
    page = page_of(results(core=SWARM, drawn=DRAWN, crash=RUN))

    assert "Ringfence 1.2.3: report card of the simulator 2026-11-22" in page
    assert "✓ No problem in 1,001 runs in 0.50 processor hours" in page
    assert "core core 1,000 0 50 (0 differed) 300 of 301 not measured 0.50" in page
    assert "drawn drawn at random 36 27 75.0 %" in page
    assert "1 survivors of drawn m:1: < → <=" in page
    assert "node-crash, seed 7 detection of a crash (s) 4 16 25.0 %" in page
    assert "node-crash, seed 7 units over the limit of exact=k0 3 6 50.0 %" in page


def test_a_share_of_judged_decisions_and_its_excuses_are_shown() -> None:
    judged = {"decisions": 200, "judged_exactly": 0.95, "excuses": {"crash": 8, "loss": 2}}
    page = page_of(results(core={**SWARM, **judged}))

    assert "95.0 %" in page
    assert "crash 8 4.0 % loss 2 1.0 %" in page


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({**SWARM, "failed": [4, 7]}, "it: 2 seeds violated an invariant"),
        ({**SWARM, "differed": [20]}, "it: 1 seeds had two different histories"),
        ({**SWARM, "marks_missing": ["damped"]}, "it: 1 rare events never occurred"),
        ({**RUN, "violations": [{}]}, "it: node-crash violated an invariant 1 times"),
        ({**RUN, "scenario": "canary"}, "it: the canary, which must fail, held"),
        (
            {"applied": 9, "found": 9, "survivors": [], "false_alarms": [{}]},
            "it: the shipped code violated an invariant",
        ),
        ({"runs": 9, "reached_plain": 5, "failed": 1}, "it: 1 runs violated an invariant"),
    ],
)
def test_a_problem_makes_the_verdict_bad(row: dict[str, Any], problem: str) -> None:
    found = results(it=row)

    assert found.problems == [problem]
    assert problem in page_of(found)
    assert "No problem" not in page_of(found)


def test_a_canary_that_fails_is_no_problem() -> None:
    assert results(it={**RUN, "scenario": "canary", "violations": [{}]}).problems == []


@pytest.mark.parametrize("text", ["all invariants held", "[1]", '{"seed": 3}', ""])
def test_a_file_without_results_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match=r"result file it\.json must contain"):
        Results().add(Path("it.json"), [text])
