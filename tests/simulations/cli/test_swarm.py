"""Command `ringfence simulate swarm`: figures, findings and the guided search."""

import os
import shlex
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from simulations.judging.coverage import WANTED
from simulations.judging.pairs import wanted_pairs
from simulations.scenarios import generate
from simulations.scenarios.catalog import SCENARIOS
from simulations.scenarios.scenario import Fault
from simulations.swarm import pool
from tests.docs.simulation_page import names_in
from tests.invocation import Run
from tests.simulations.cli.scenarios import without_reader


@pytest.fixture
def short_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the load of generated scenarios shorter."""
    monkeypatch.setitem(generate._LOAD_S, "core", 5.0)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a swarm in a thread, since processes would not see a changed scenario."""

    @contextmanager
    def threads(jobs: int) -> Iterator[Executor]:
        with ThreadPoolExecutor(jobs) as executor:
            yield executor

    monkeypatch.setattr("simulations.cli.swarm.pool", threads)
    monkeypatch.setattr("simulations.cli.guided.pool", threads)


def test_a_swarm_reports_its_work_and_missing_rare_events(
    run: Run, in_process: None, short_loads: None
) -> None:
    ran = run("swarm", "--seeds", "1", "--from", "23", "--level", "core", "--marks", "--json")

    assert ran.status == 1
    [row] = ran.rows
    assert (row["level"], row["seeds"], row["failed"]) == ("core", 1, [])
    assert (row["run_twice"], row["differed"]) == (0, [])
    assert row["virtual_s"] >= 50
    assert 0.5 < row["judged_exactly"] < 1
    assert sum(row["excuses"].values()) >= int(row["decisions"] * (1 - row["judged_exactly"]))
    assert sum(row["laws"]["outage"].values()) == row["decisions"] > 500
    assert row["marks"]
    assert row["marks_missing"] == [mark for mark in WANTED["core"] if mark not in row["marks"]]
    assert 50 < row["pairs"] < len(wanted_pairs())
    assert len(row["pairs_missing"]) == len(wanted_pairs()) - row["pairs"]


def test_a_swarm_splits_every_transfer_into_the_requested_parts(
    run: Run, in_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(
        SCENARIOS["node-crash"], seconds=8, calm=4, faults=(Fault(3, "crash", 6, {"node": "n2"}),)
    )
    monkeypatch.setitem(SCENARIOS, "node-crash", short)
    seeds = ("--seeds", "1", "--from", "7", "--scenario", "node-crash", "--level", "core", "--json")
    [one] = run("swarm", *seeds, "--least-parts", "1").rows
    [two] = run("swarm", *seeds, "--least-parts", "2").rows

    assert "part_pulled" not in one["marks"]
    assert two["marks"]["part_pulled"] > 0
    assert one["failed"] == two["failed"] == []


def repeated(run: Run, finding: dict[str, Any]) -> dict[str, Any]:
    """Run the command of a finding and return its row."""
    _, _, *words = shlex.split(finding["command"])
    [again] = run(*words, "--json", "--no-report").rows
    return again


def test_a_swarm_shrinks_failures_and_prints_a_command_that_repeats_them(
    run: Run, in_process: None, small_canary: None, tmp_path: Path
) -> None:
    (tmp_path / "found").mkdir()
    words = ("--seeds", "1", "--from", "20", "--scenario", "canary", "--cases", "found")
    ran = run("swarm", *words, "--shrink-runs", "30", "--json")

    assert ran.status == 1
    [finding, summary] = ran.rows
    assert summary.keys() == names_in("JSON lines of a swarm")
    assert finding.keys() == names_in("JSON lines of a swarm", 1)
    assert (summary["failed"], summary["run_twice"], summary["differed"]) == ([20], 1, [])
    assert (finding["seed"], len(finding["faults"])) == (20, 1)
    assert finding["faults"][0].endswith("cut node=n1")
    assert finding["events"] <= 10
    assert len(finding["story"]) <= 13
    assert finding["command"] == "ringfence simulate case found/ringfence-canary-20.yaml"

    again = repeated(run, finding)
    broken = [[each["property"], each["text"]] for each in again["violations"]]
    assert broken == finding["violations"]
    assert {name for name, _ in broken} <= set(finding["violated"])
    assert again["command"] == finding["command"]


def test_a_case_of_a_swarm_keeps_the_requested_parts_of_transfers(
    run: Run, in_process: None, small_canary: None, tmp_path: Path
) -> None:
    words = ("--seeds", "1", "--from", "20", "--scenario", "canary", "--least-parts", "2")
    [finding, _] = run("swarm", *words, "--shrink-runs", "1", "--json").rows

    assert "least_parts: 2" in (tmp_path / "ringfence-canary-20.yaml").read_text("utf-8")
    broken = [[each["property"], each["text"]] for each in repeated(run, finding)["violations"]]
    assert broken == finding["violations"]


def test_text_output_of_a_swarm_has_story_diagram_and_command(
    run: Run, in_process: None, small_canary: None
) -> None:
    ran = run("swarm", "--seeds", "1", "--from", "20", "--scenario", "canary", "--shrink-runs", "4")

    assert ran.status == 1
    assert "canary, seed 20: " in ran.out
    assert " 1. " in ran.out
    assert "n1 is cut off." in ran.out
    assert "●" in ran.out
    assert "ringfence simulate case ringfence-canary-20.yaml" in ran.out


def test_a_swarm_without_runs_for_shrinking_writes_no_case(
    run: Run, in_process: None, small_canary: None, tmp_path: Path
) -> None:
    words = ("--seeds", "1", "--from", "21", "--scenario", "canary", "--shrink-runs", "0")
    ran = run("swarm", *words)

    assert ran.status == 1
    assert "seed 21: " in ran.out
    assert list(tmp_path.iterdir()) == []


def test_a_violation_in_a_swarm_is_status_1_without_a_reader(
    run: Run, in_process: None, small_canary: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulations.cli.swarm._show", without_reader)
    monkeypatch.setattr("node.cli.common.drop_output", lambda: None)
    words = ("--seeds", "1", "--from", "20", "--scenario", "canary", "--shrink-runs", "0")

    assert run("swarm", *words).status == 1


def test_a_guided_swarm_compares_itself_with_plain_drawing(
    run: Run, in_process: None, short_loads: None
) -> None:
    words = ("--guided", "--seeds", "2", "--from", "22", "--level", "core", "--shrink-runs", "0")
    [row] = run("swarm", *words, "--json").rows

    assert row["runs"] == 2
    assert min(row["reached"], row["reached_plain"]) > 50
    assert row["reached"] - len(row["only_guided"]) == row["reached_plain"] - len(row["only_plain"])
    assert row["kept"] + row["failed"] >= 1


def test_an_interrupt_ends_the_processes_during_their_runs() -> None:
    def interrupted() -> None:
        with pool(2) as executor:
            runs = [executor.submit(time.sleep, 1000) for _ in range(4)]
            while not all(run.running() for run in runs[:2]):
                pass
            pids.extend(executor._processes)
            raise KeyboardInterrupt

    pids: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert len(pids) == 2
    while any(is_running(pid) for pid in pids):  # The time-out of the test ends this.
        pass


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
