"""Commands `ringfence simulate NAME`, `card` and `case`: lists, runs, reports and violations."""

import os
import shlex
from pathlib import Path

import pytest

from ringfence.errors import ConfigError
from simulations.scenarios.catalog import SCENARIOS
from simulations.text_files import require_writable
from tests.invocation import Run
from tests.simulations.cli.scenarios import AT_CORE, SHORT, without_reader

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
    assert row["virtual_s"] >= 4
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
    words = ("clock-skew", "--level", "core", "--json", "--no-report", "--set", "calm=25")
    short = ("--set", "per_second=1")

    def faults(*more: str) -> list[str]:
        found = run(*words, *short, *more).rows[-1]["faults"]
        assert isinstance(found, list)
        return found

    every = [str(fault) for fault in SCENARIOS["clock-skew"].faults]
    assert faults("--keep", "2,0") == [every[2], every[0]]
    assert faults("--keep", "none") == faults("--no-faults") == []


# Violated invariants


def test_a_run_that_violates_an_invariant_names_it_and_fails(run: Run, small_canary: None) -> None:
    ran = run("canary", "--seed", "7", "--json", "--no-report")

    assert ran.status == 1
    [row] = ran.rows
    assert "over_admission" in {each["property"] for each in row["violations"]}
    assert all(each["text"] and each["at_s"] >= 0 for each in row["violations"])


def test_a_violation_is_status_1_without_a_reader(
    run: Run, small_canary: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulations.cli.single_runs._show", without_reader)
    monkeypatch.setattr("node.cli.common.drop_output", lambda: None)

    assert run("canary", "--no-report").status == 1


def test_text_output_shows_a_violated_invariant_with_its_time(run: Run, small_canary: None) -> None:
    ran = run("canary", "--no-report")

    assert ran.status == 1
    assert "INVARIANT VIOLATED" in ran.out
    assert "over_admission: exact=k" in ran.out


def test_the_canary_does_not_fail_by_itself(run: Run, small_canary: None) -> None:
    assert run("canary", "--no-faults", "--no-report").status == 0


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


def test_a_report_at_a_link_or_a_pipe_is_neither_created_nor_opened_before_the_run(
    tmp_path: Path,
) -> None:
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "nothing.html")
    os.mkfifo(pipe)

    require_writable(link, "--report")
    require_writable(pipe, "--report")  # Opening the pipe would block.
    read_end, write_end = os.pipe()
    require_writable(Path(f"/dev/fd/{write_end}"), "--report")
    os.close(read_end)
    os.close(write_end)

    assert link.is_symlink()
    assert not link.exists()


def test_a_report_at_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)

    with pytest.raises(ConfigError, match=r"--report .*link: cannot be written"):
        require_writable(link, "--report")
