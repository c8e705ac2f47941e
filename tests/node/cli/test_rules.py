"""Command `ringfence rules check`: the printed tree, warnings and errors."""

import os
import re
from pathlib import Path

import pytest

from tests.invocation import Run, refused
from tests.node.cli.cluster_rules import RULES


def test_rules_are_shown_as_a_tree_with_the_details_of_each_rule(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES.replace("key: watched", "key: watched\n    value: '[/x]*'"), "utf-8")

    result = run("rules", "check", path)

    assert result.status == 0
    assert "\n  client  5/year fixed_window\n" in result.out
    assert "\n    path  2/year fixed_window\n" in result.out
    assert "watched=[/x]*" in result.out  # as written in the file, not as markup
    for words in ("identity ", "bytes per key", "shadow"):
        assert words in result.out
    assert "usually at most 5 in any one period, in the worst case 10. A period can" in result.out
    assert result.out.endswith("7 rules are good\n")


def test_a_dash_stands_for_rules_on_standard_input(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES, "utf-8")
    expected = run("rules", "check", path)
    before = os.dup(0)
    try:
        with path.open("rb") as file:
            os.dup2(file.fileno(), 0)
        result = run("rules", "check", "-")
    finally:
        os.dup2(before, 0)
        os.close(before)

    assert (result.status, result.out) == (0, expected.out)


TREE = """\
domain: api
descriptors:
  - key: client
    rate_limit: {unit: minute, requests_per_unit: 5, name: each client}
    descriptors:
      - key: plan
        value: free
        rate_limit: {unit: second, requests_per_unit: 2, algorithm: token_bucket, burst: 4}
  - key: job
    rate_limit: {unit: minute, requests_per_unit: 2, algorithm: concurrency}
  - key: bot
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 10, algorithm: fixed_window}
  - key: friend
    rate_limit: {unlimited: true}
  - key: exact
    rate_limit: {unit: minute, requests_per_unit: 3, algorithm: sliding_window_log}
"""
PRINTED = """\
api
  client  5/minute  (each client)
      identity e57cca24e90a77ba, sliding_window, N bytes per key, on_failure allow
      usually at most 5 in any one period, in the worst case 10
    plan=free  2/second burst 4
        identity 1ebd9465a74f704f, token_bucket, N bytes per key, on_failure allow
        usually at most 2 in any one period, in the worst case 5
  job  2 concurrent ttl 1 minute
      identity 60d58353f8960108, concurrency, N bytes per key, on_failure allow
      at most 2 at any instant
  bot  10/hour fixed_window
      identity 200c73bbca33fc2e, fixed_window, N bytes per key, shadow, on_failure allow
      usually at most 10 in any one period, in the worst case 20
  friend  unlimited
      identity e64754dc9d925c2d
  exact  3/minute sliding_window_log
      identity 2fa31086db5d284e, sliding_window_log, N bytes per key, on_failure allow
      at most 3 in any one period
6 rules are good
"""


def test_the_printed_tree_has_limits_names_flags_and_bounds_of_all_rules(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(TREE, "utf-8")

    result = run("rules", "check", path)

    # The number of bytes depends on the engine.
    printed = re.sub(r"\d+ bytes per key", "N bytes per key", result.out)
    assert [line.partition(". ")[0] for line in printed.splitlines()] == PRINTED.splitlines()


def test_json_output_has_the_same_rules_and_warnings(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES + "  - key: odd\n    shadow_mode: true\n", "utf-8")

    row = run("rules", "check", path, "--json").row

    assert row["count"] == 7
    assert [rule["label"] for rule in row["rules"]] == [
        *("api", "client", "path", "watched", "small", "large", "closed", "free", "odd")
    ]
    assert len(row["rules"][1]["identity"]) == 16
    assert (row["rules"][1]["usual"], row["rules"][1]["worst"]) == (5, 10)
    assert row["warnings"] == row["rules"][-1]["warnings"]
    assert "rules.yaml:23" in row["warnings"][0]


def test_a_warning_is_printed_below_its_rule(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES + "  - key: odd\n    shadow_mode: true\n", "utf-8")

    result = run("rules", "check", path)

    assert result.status == 0
    assert "\n  odd\n      warning: " in result.out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("domain: [", "not YAML"),
        ("domain: api\nlimits: []\n", "rules.yaml:2"),
        (RULES.replace("requests_per_unit: 5", "request_per_unit: 5"), "requests_per_unit"),
        (RULES.replace("fixed_window", "fixed_windw", 1), "fixed_window"),
        ("", "the file is empty"),
    ],
)
def test_invalid_rules_are_reported_with_file_and_line(
    run: Run, tmp_path: Path, text: str, expected: str
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text, "utf-8")

    message = refused(run("rules", "check", path))

    assert expected in message
    assert "rules.yaml" in message


def test_a_missing_rule_file_is_named(run: Run, tmp_path: Path) -> None:
    assert "nowhere.yaml" in refused(run("rules", "check", tmp_path / "nowhere.yaml"))


def test_several_files_share_a_domain_when_merged(run: Run, tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(RULES, "utf-8")
    two.write_text("domain: api\ndescriptors:\n  - key: more\n", "utf-8")

    assert "already in" in refused(run("rules", "check", one, two))
    assert run("rules", "check", "--merge", one, two).status == 0


def test_the_summary_of_a_single_rule_is_in_the_singular(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(
        "domain: x\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 1}\n",
        "utf-8",
    )

    assert run("rules", "check", path).out.endswith("\n1 rule is good\n")
    assert "is given twice" in refused(run("rules", "check", path, tmp_path / "." / "rules.yaml"))


def test_a_directory_beside_files_is_rejected_with_the_remedy(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "api.yaml"
    path.write_text("domain: api\n")

    message = refused(run("rules", "check", tmp_path, path))

    assert (
        f"FILES must be several files or one directory, got the directory {tmp_path} beside 1 "
        "other path(s); name its files, or give the directory alone"
    ) in message
