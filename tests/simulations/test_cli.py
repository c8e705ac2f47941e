"""Command `ringfence simulate`: its lists, runs, findings, files and errors."""

import json
import shlex
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from node.cli import command
from simulations.judging.coverage import WANTED
from simulations.judging.pairs import wanted_pairs
from simulations.mutants.drawn import tool
from simulations.scenarios.catalog import SCENARIOS
from simulations.scenarios.scenario import Fault, Load

SHORT = ("--nodes", "3", "--set", "seconds=3", "--set", "calm=3")
AT_CORE = ("--level", "core", *SHORT, "--no-report")


@dataclass
class Ran:
    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the JSON output."""
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run `ringfence simulate` in this process, in a temporary folder."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)

    def run_it(*words: str | Path, verb: str = "simulate") -> Ran:
        monkeypatch.setattr("sys.argv", ["ringfence", verb, *map(str, words)])
        with pytest.raises(SystemExit) as left:
            command.main()
        output = capsys.readouterr()
        return Ran(int(left.value.code or 0), output.out, output.err)

    return run_it


def refused(ran: Ran) -> str:
    """Check the form of an error and return its text."""
    assert ran.status == 2
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert ran.err.count("\n") <= 4
    return ran.err


# List of scenarios


def test_without_a_name_all_scenarios_and_next_commands_are_listed(run: Run) -> None:
    ran = run()

    assert ran.status == 0
    for name, scenario in SCENARIOS.items():
        assert name in ran.out
        assert scenario.about.split(":")[0] in ran.out
    assert "ringfence simulate swarm" in ran.out
    assert "ringfence simulate what-if" in ran.out


def test_the_json_list_has_name_and_description_of_every_scenario(run: Run) -> None:
    rows = run("--json").rows

    assert [(row["name"], row["about"]) for row in rows] == [
        (name, scenario.about) for name, scenario in SCENARIOS.items()
    ]


@pytest.mark.parametrize("name", ["steady", "drawn", "case", "swarm", "card", "what-if", "mutants"])
def test_every_command_lists_its_options(run: Run, name: str) -> None:
    ran = run(name, "--help")

    assert ran.status == 0
    assert "--json" in ran.out


# Single runs


def test_the_last_line_of_a_run_contains_its_whole_outcome(run: Run, tmp_path: Path) -> None:
    ran = run("steady", "--seed", "7", *SHORT, "--json", "--no-report")
    row = ran.rows[-1]

    assert ran.status == 0
    assert (row["scenario"], row["seed"], row["level"]) == ("steady", 7, "node")
    assert row["violations"] == []
    assert len(bytes.fromhex(row["event_hash"])) >= 16
    assert row["virtual_s"] >= 6
    assert row["real_s"] > 0
    assert row["figures"]["checks"] > 100
    assert row["figures"]["checks"] == row["figures"]["admitted"] + row["figures"]["denied"]
    assert row["figures"]["by_owner"] == row["figures"]["checks"]
    assert row["report"] is None
    assert list(tmp_path.iterdir()) == []


def test_the_printed_command_repeats_the_run(run: Run) -> None:
    first = run(
        *("steady", "--seed", "7", *AT_CORE, "--json", "--fault", "crash@1-2 node=n2"),
        *("--set", "loss=0.01", "--set", "per_second=12.5"),
    ).rows[-1]
    _, _, *words = shlex.split(first["command"])

    again = run(*words, "--json", "--no-report").rows[-1]

    assert again["event_hash"] == first["event_hash"]
    assert again["faults"] == first["faults"] == ["1-2 s: crash node=n2"]
    assert again["figures"] == first["figures"]


def test_another_seed_has_another_history(run: Run) -> None:
    one, other = (
        run("steady", "--seed", seed, *AT_CORE, "--json").rows[-1]["event_hash"] for seed in "12"
    )

    assert one != other


def test_text_output_has_figures_and_the_repeating_command(run: Run) -> None:
    ran = run("steady", "--seed", "3", *AT_CORE)

    assert ran.status == 0
    assert "all invariants held" in ran.out
    assert "latency p99 ms" in ran.out
    assert ran.out.splitlines()[-1].startswith("again:  ringfence simulate steady --seed 3")


def test_the_report_is_one_self_contained_file(run: Run, tmp_path: Path) -> None:
    ran = run("steady", "--seed", "7", *AT_CORE[:-1], "--json")
    path = tmp_path / "ringfence-steady-7.html"
    page = path.read_text("utf-8")

    assert ran.rows[-1]["report"] == path.name
    assert list(tmp_path.iterdir()) == [path]
    assert page.count("<svg") >= 2
    assert "ringfence simulate steady --seed 7" in page
    assert not [each for each in ("http://", "https://", "<script", "src=") if each in page]


def test_the_report_is_written_to_the_given_path(run: Run, tmp_path: Path) -> None:
    ran = run("steady", *AT_CORE[:-1], "--report", "mine.html")

    assert ran.status == 0
    assert "report: mine.html" in ran.out
    assert "<svg" in (tmp_path / "mine.html").read_text("utf-8")


def test_a_log_replay_also_runs_at_core_level(run: Run) -> None:
    row = run("replay", "--nodes", "4", *AT_CORE[2:], "--level", "core", "--json").rows[-1]

    assert row["violations"] == []
    assert row["figures"]["checks"] > 1000


def test_keep_selects_some_faults_of_a_scenario(run: Run) -> None:
    words = ("clock-skew", "--level", "core", "--json", "--no-report", "--set", "calm=1")
    short = ("--set", "seconds=1")

    def faults(*more: str) -> list[str]:
        found = run(*words, *short, *more).rows[-1]["faults"]
        assert isinstance(found, list)
        return found

    every = [str(fault) for fault in SCENARIOS["clock-skew"].faults]
    assert faults("--keep", "2,0") == [every[2], every[0]]
    assert faults("--keep", "none") == faults("--no-faults") == []


# Violated invariants


@pytest.fixture
def small_canary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the canary smaller and run it at core level, so that it fails within a second."""
    smaller = replace(
        SCENARIOS["canary"],
        level="core",
        seconds=8,
        calm=3,
        loads=(Load(rule="exact", per_second=60, keys=4),),
        faults=(Fault(1, "cut", 7, {"node": "n1"}), Fault(2, "loss", 3, {"share": 0.01})),
    )
    monkeypatch.setitem(SCENARIOS, "canary", smaller)


def test_a_run_that_violates_an_invariant_names_it_and_fails(run: Run, small_canary: None) -> None:
    ran = run("canary", "--seed", "7", "--json", "--no-report")

    assert ran.status == 1
    [row] = ran.rows
    assert "over_admission" in {each["property"] for each in row["violations"]}
    assert all(each["text"] and each["at_s"] >= 0 for each in row["violations"])


def test_text_output_shows_a_violated_invariant_with_its_time(run: Run, small_canary: None) -> None:
    ran = run("canary", "--no-report")

    assert ran.status == 1
    assert "INVARIANT VIOLATED" in ran.out
    assert "over_admission: exact=k" in ran.out


def test_the_canary_does_not_fail_by_itself(run: Run, small_canary: None) -> None:
    assert run("canary", "--no-faults", "--no-report").status == 0


# The swarm


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a swarm in a thread, since processes would not see a changed scenario."""

    @contextmanager
    def threads(jobs: int) -> Iterator[Executor]:
        with ThreadPoolExecutor(jobs) as executor:
            yield executor

    monkeypatch.setattr("simulations.cli.swarm.pool", threads)
    monkeypatch.setattr("simulations.cli.guided.pool", threads)


def test_a_swarm_reports_its_work_and_missing_rare_events(run: Run, in_process: None) -> None:
    ran = run("swarm", "--seeds", "1", "--from", "23", "--level", "core", "--marks", "--json")

    assert ran.status == 1
    [row] = ran.rows
    assert (row["level"], row["seeds"], row["failed"]) == ("core", 1, [])
    assert (row["run_twice"], row["differed"]) == (0, [])
    assert row["virtual_s"] >= 60
    assert 0.5 < row["judged_exactly"] < 1
    assert sum(row["excuses"].values()) >= row["decisions"] * (1 - row["judged_exactly"])
    assert sum(row["laws"]["outage"].values()) == row["decisions"] > 1000
    assert row["marks"]
    assert row["marks_missing"] == [mark for mark in WANTED["core"] if mark not in row["marks"]]
    assert 50 < row["pairs"] < len(wanted_pairs())
    assert len(row["pairs_missing"]) == len(wanted_pairs()) - row["pairs"]


def test_a_swarm_splits_every_transfer_into_the_requested_parts(run: Run, in_process: None) -> None:
    seeds = ("--seeds", "1", "--from", "7", "--scenario", "node-crash", "--level", "core", "--json")
    [one] = run("swarm", *seeds, "--least-parts", "1").rows
    [two] = run("swarm", *seeds, "--least-parts", "2").rows

    assert "part_pulled" not in one["marks"]
    assert two["marks"]["part_pulled"] > 0
    assert one["failed"] == two["failed"] == []


@pytest.mark.parametrize("asked", [(), ("--least-parts", "2")])
def test_a_swarm_shrinks_failures_and_prints_a_command_that_repeats_them(
    run: Run, in_process: None, small_canary: None, tmp_path: Path, asked: tuple[str, ...]
) -> None:
    (tmp_path / "found").mkdir()
    words = ("--seeds", "1", "--from", "20", "--scenario", "canary", "--cases", "found")
    words = (*words, "--shrink-runs", "30")
    ran = run("swarm", *words, *asked, "--json")

    assert ran.status == 1
    [finding, summary] = ran.rows
    assert (summary["failed"], summary["run_twice"], summary["differed"]) == ([20], 1, [])
    assert (finding["seed"], len(finding["faults"])) == (20, 1)
    assert finding["faults"][0].endswith("cut node=n1")
    assert finding["events"] <= 10
    assert len(finding["story"]) <= 13
    assert finding["command"] == "ringfence simulate case found/ringfence-canary-20.yaml"

    _, _, *words = shlex.split(finding["command"])
    [again] = run(*words, "--json", "--no-report").rows

    broken = [[each["property"], each["text"]] for each in again["violations"]]
    assert broken == finding["violations"]
    assert again["command"] == finding["command"]


def test_text_output_of_a_swarm_has_story_diagram_and_command(
    run: Run, in_process: None, small_canary: None
) -> None:
    ran = run(
        "swarm", "--seeds", "1", "--from", "20", "--scenario", "canary", "--shrink-runs", "60"
    )

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


def test_a_guided_swarm_compares_itself_with_plain_drawing(run: Run, in_process: None) -> None:
    words = ("--guided", "--seeds", "2", "--from", "22", "--level", "core", "--shrink-runs", "0")
    [row] = run("swarm", *words, "--json").rows

    assert row["runs"] == 2
    assert min(row["reached"], row["reached_plain"]) > 50
    assert row["reached"] - len(row["only_guided"]) == row["reached_plain"] - len(row["only_plain"])
    assert row["kept"] + row["failed"] >= 1


# The report card


def test_a_report_card_is_made_from_results(run: Run, tmp_path: Path) -> None:
    steady = run("steady", *AT_CORE, "--json")
    (tmp_path / "steady.json").write_text(steady.out, "utf-8")
    ran = run("card", "steady.json", "--output", "card.html", "--json")

    assert ran.status == 0
    assert ran.rows[-1]["runs"] == 1
    assert ran.rows[-1]["problems"] == []
    page = (tmp_path / "card.html").read_text("utf-8")
    assert ran.rows[-1]["date"] in page
    assert "No problem in 1 run in" in page


# Case files


def test_a_saved_case_repeats_the_run(run: Run, tmp_path: Path) -> None:
    words = ("steady", "--seed", "4", *AT_CORE, "--json", "--fault", "crash@1-2 node=n2")
    first = run(*words, "--save", "mine.yaml").rows[-1]
    again = run("case", "mine.yaml", "--no-report", "--json").rows[-1]

    assert again["event_hash"] == first["event_hash"]
    assert again["figures"] == first["figures"]
    assert again["command"] == "ringfence simulate case mine.yaml"


# Mutants


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


# What-if

RULES = """
domain: log
descriptors:
  - key: client
    rate_limit: {unit: minute, requests_per_unit: 3, algorithm: ALGORITHM}
"""


BY_METHOD = """
domain: log
descriptors:
  - key: method
    value: GET
    descriptors:
      - key: client
        rate_limit: {unit: minute, requests_per_unit: 3}
"""


def written(folder: Path, algorithm: str) -> tuple[Path, Path]:
    rules, log = folder / "rules.yaml", folder / "access.log"
    rules.write_text(RULES.replace("ALGORITHM", algorithm), "utf-8")
    log.write_text(
        "".join(
            f"192.0.2.{second % 3} - - [01/Sep/2025:00:{second // 60:02}:{second % 60:02} +0000] "
            f'"GET / HTTP/1.1" 200 5 "-" "-"\n'
            for second in range(200)
            if second % 7
        ),
        "utf-8",
    )
    return rules, log


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_log", "token_bucket"])
def test_with_exact_counting_what_if_decides_like_a_replay(
    run: Run, tmp_path: Path, algorithm: str
) -> None:
    rules, log = written(tmp_path, algorithm)
    replay = ("--rules", rules, "--local", "--clock", "log", "--json")

    asked = run("what-if", "--rules", rules, "--log", log, "--exact", "--json").rows[-1]
    replayed = run(log, *replay, verb="replay").rows[-1]

    assert replayed["denied"] > 10
    assert asked["denied"] == asked["denied_exact"] == replayed["denied"]
    assert {(row["client"], row["checks"], row["denied"]) for row in asked["throttled"]} == {
        (row["client"], row["checked"], row["denied"]) for row in replayed["most_throttled"]
    }


def test_what_if_prints_throttled_clients_and_their_rules(run: Run, tmp_path: Path) -> None:
    rules, log = written(tmp_path, "sliding_window")

    ran = run("what-if", "--rules", rules, "--log", log)

    assert ran.status == 0
    assert "decided by one data center" in ran.out
    assert "wrongly denied" not in ran.out.split("errors of these decisions")[0]
    assert "192.0.2.1" in ran.out
    assert "log > client" in ran.out


def test_what_if_breaks_no_word_at_120_columns(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    rules, log = written(tmp_path, "sliding_window")
    rules.write_text(BY_METHOD, "utf-8")
    asked = ("what-if", "--rules", rules, "--log", log, "--descriptor", "method,client")

    ran = run(*asked, "--datacenters", "3")

    assert ran.status == 0
    assert "decided by 3 data centers" in ran.out
    words = set(ran.out.split())
    assert {"sliding_window", "method=GET", "client", "counting", "wrongly", "allowed"} <= words
    assert {"furthest", "bound", "difference", "counters", "192.0.2.1"} <= words


def test_what_if_also_writes_an_html_page(run: Run, tmp_path: Path) -> None:
    rules, log = written(tmp_path, "sliding_window")
    hostile = log.with_name("a<b>&.log")
    log.rename(hostile)
    page = tmp_path / "report.html"

    ran = run("what-if", "--rules", rules, "--log", hostile, "--report", page)

    assert ran.status == 0
    assert f"report: {page}" in ran.out
    text = "".join(ET.fromstring(page.read_text("utf-8")).itertext())
    for said in ("What if: a<b>&.log", "log > client", "192.0.2.1", "decided by one data center"):
        assert said in text
    assert not [word for word in ("http:", "https:", "<script", "src=") if word in text]


# Invalid input


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stedy"], "got 'stedy'; did you mean steady?"),
        (["xyzzy"], "got 'xyzzy'; there are steady, hot-key"),
        (["steady", "--set", "nodes"], "--set must be NAME=VALUE, got 'nodes'"),
        (["steady", "--set", "colour=red"], "--set must be NAME=VALUE, got 'colour=red'"),
        (["steady", "--set", "loss=2"], "must be a number from 0 to 0.9"),
        (["steady", "--set", "latency=moon"], "latency must be lan, near"),
        (["steady", "--nodes", "0"], "--nodes"),
        (["steady", "--seed", "-1"], "--seed"),
        (["steady", "--datacenters", "4"], "nodes must be at least 4, one per data center, got 3"),
        (["wan-partition", "--datacenters", "6"], "got 'dc6'"),
        (["steady", "--fault", ""], "must be VERB@AT"),
        (["steady", "--fault", "flood@3"], "verb of a fault must be one of crash, leave"),
        (["steady", "--fault", "crash"], "must be VERB@AT"),
        (["steady", "--fault", "loss@1-2"], "loss must have share=NUMBER, from 0 to 1"),
        (["steady", "--fault", "crash@1 who=n1"], "got 'who'"),
        (["steady", "--fault", "crash@1-2 node=n9"], "must be n1 to n3, got n9"),
        (["steady", "--fault", "cut@1-2 node=n1 from=x"], "must be n1 to n3, got x"),
        (["node-crash", "--nodes", "1"], "must be n1, got n2"),
        (["steady", "--keep", "0"], "--keep must be fault numbers below 0"),
        (["churn", "--keep", "6"], "--keep must be fault numbers below 6"),
        (["churn", "--keep", "a"], "or none, got 'a'"),
        (["churn", "--keep", "0", "--no-faults"], "--keep must not be combined"),
        (["steady", "--report", "no/where.html"], "--report no/where.html: folder no must exist"),
        (["steady", *AT_CORE[:-1], "--report", "."], "--report"),
        (["swarm", "--seeds", "0"], "--seeds"),
        (["swarm", "--cases", "nowhere"], "nowhere"),
        (["swarm", "--guided", "--scenario", "steady"], "--guided must be used without"),
        (["card", "none.json"], "cannot read the result file none.json"),
        (["case", "none.yaml"], "cannot read the case file none.yaml"),
        (["steady", *AT_CORE, "--save", "no/where.yaml"], "cannot write the case file"),
        (["swarm", "--scenario", "stedy"], "stedy"),
        (["mutants", "nobody"], "got 'nobody'"),
        (["mutants", "gossip/none.py:1:1:AddNot:1"], "got 'gossip/none.py:1:1:AddNot:1'"),
        (["mutants", "--unit", "--sample", "1", "--map", "no.gz"], "must contain the lines of"),
        (["mutants", "--record", "tests/none"], "got 'tests/none'"),
        (["what-if", "--rules", "none.yaml", "--log", "none.log"], "none.yaml"),
        (["what-if", "--rules", "none.yaml"], "--log"),
        (
            ["what-if", "--rules", "x", "--log", "y", "--report", "no/where.html"],
            "folder no must exist",
        ),
        (["steady", "--frob"], "--frob"),
    ],
)
def test_invalid_arguments_are_named_in_the_error(run: Run, words: list[str], said: str) -> None:
    assert said in refused(run(*words))
