"""Tables of docs/operate/simulation.md: figures of a run, and invariants."""

import re
from pathlib import Path

from msgspec.structs import replace

from simulations.scenarios.catalog import SCENARIOS
from simulations.world.run import simulate
from tests.docs.simulation_page import names_in

ROOT = Path(__file__).parents[2]
_VIOLATION = re.compile(r'(?:Violation|_add_violation)\(\s*"(\w+)"')


def test_every_figure_of_a_run_is_explained() -> None:
    short = replace(SCENARIOS["steady"], level="core", seconds=1.0, calm=1.0)

    assert names_in("Figures") == set(simulate(short, 1, "").figures)


def test_every_invariant_that_a_run_can_violate_is_explained() -> None:
    paths = [
        path
        for path in (ROOT / "simulations").rglob("*.py")
        if "mutants" not in path.parts  # Runs of mutants have further properties.
    ]
    names = {name for path in paths for name in _VIOLATION.findall(path.read_text("utf-8"))}

    assert "false_death" in names
    assert names <= names_in("Invariants")
