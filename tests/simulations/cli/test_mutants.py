"""Command `ringfence simulate mutants`: the summary, a missing mutation tool, and Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulations.mutants.drawn import tool
from tests.invocation import Run, refused


def test_the_last_line_about_mutants_counts_those_that_were_detected(run: Run) -> None:
    ran = run("mutants", "clock-never-trusted-again", "--seeds", "1")

    assert ran.status == 0
    assert "clock-never-trusted-again: convergence in clock-wrong, seed 1" in ran.out
    assert ran.out.splitlines()[-1] == "1 of 1 mutants were detected"


@pytest.mark.parametrize("words", [["--sample", "1"], ["--record", "tests/gossip"]])
def test_a_missing_mutation_tool_is_reported_before_any_mutant_runs(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    tool._tool.cache_clear()
    monkeypatch.setitem(sys.modules, "cosmic_ray.ast", None)
    try:
        ran = run("mutants", "clock-never-trusted-again", "--seeds", "1", *words)
    finally:
        tool._tool.cache_clear()

    assert "pip install 'ringfence[mutants]'" in refused(ran)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the processes from /proc")
def test_processes_that_run_mutants_ignore_an_interrupt() -> None:
    words = ("simulate", "mutants", "clock-never-trusted-again", "--seeds", "1")
    with subprocess.Popen(
        [sys.executable, "-m", "node.entry", *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as command:
        children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
        found: list[str] = []
        while len(found) < 2:  # The resource tracker and the first run.
            time.sleep(0.01)
            found = children.read_text("utf-8").split()
        for pid in found:
            os.kill(int(pid), signal.SIGINT)
        out, errors = command.communicate()

    assert errors == ""
    assert out.splitlines()[-1] == "1 of 1 mutants were detected"
