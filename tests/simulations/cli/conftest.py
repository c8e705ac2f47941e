"""Fixtures of the simulator's commands: the command in this process, and a short failing run."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from simulations.scenarios.catalog import SCENARIOS
from simulations.scenarios.scenario import Fault, Load
from tests.invocation import Ran, Run, invoke


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run `ringfence simulate` in this process, in a temporary folder."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)

    def run_command(*words: str | Path, verb: str = "simulate") -> Ran:
        return invoke(monkeypatch, capsys, verb, *words)

    return run_command


@pytest.fixture
def small_canary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the canary smaller and run it at core level, so that it fails within a second."""
    smaller = replace(
        SCENARIOS["canary"],
        level="core",
        seconds=6,
        calm=1,
        loads=(Load(rule="exact", per_second=60, keys=4),),
        faults=(Fault(1, "cut", 6, {"node": "n1"}), Fault(2, "loss", 3, {"share": 0.01})),
    )
    monkeypatch.setitem(SCENARIOS, "canary", smaller)
