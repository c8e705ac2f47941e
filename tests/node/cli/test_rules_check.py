"""Command `ringfence rules check` with limits shared by several data centers."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from node.cli import command
from node.cross_dc.counts import INTERVAL
from ringfence.rules.cross_dc_bounds import ROUND_NS

RULES = """\
domain: api
descriptors:
  - key: near
    rate_limit: {unit: minute, requests_per_unit: 600}
  - key: shared
    rate_limit: {unit: minute, requests_per_unit: 600, scope: global}
  - key: split
    rate_limit: {unit: second, requests_per_unit: 5, global: {mode: split}}
  - key: home
    rate_limit: {unit: second, requests_per_unit: 5, global: {mode: home, home: eu}}
"""
SHORT_PERIODS = """\
domain: quick
defaults: {scope: global}
descriptors:
  - key: first
    rate_limit: {period: 5s, requests_per_unit: 9}
  - key: second
    rate_limit:
      period: 5500ms
      requests_per_unit: 9
      scope: global
"""
THREE_DATACENTERS = ("--datacenters", "3", "--rtt", "80")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Run:
    """Check rules, one file per text, and return the exit status, output and errors."""

    def run_command(texts: list[str], *options: str) -> tuple[int, str, str]:
        paths = [tmp_path / f"rules{number}.yaml" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text, "utf-8")
        monkeypatch.setattr("sys.argv", ["ringfence", "rules", "check", *map(str, paths), *options])
        with pytest.raises(SystemExit) as stopped:
            command.main()
        reported = capsys.readouterr()
        return int(stopped.value.code or 0), reported.out, reported.err

    return run_command


def test_the_bound_of_every_global_rule_is_printed(check: Run) -> None:
    status, out, err = check([RULES], *THREE_DATACENTERS)

    assert (status, err) == (0, "")
    for words in (
        "616 are counted, or 1800 when links are cut or all demand comes at once. Counts of others",
        "5 are counted. Each data center has",
        "5 are counted. One data center decides; the others apply on_failure when they cannot",
    ):
        assert f"\n      in all data centers at most {words}" in out
    assert out.count("in all data centers") == 3
    assert out.endswith("4 rules are good\n")


def test_json_output_has_the_bound(check: Run) -> None:
    row = json.loads(check([RULES], *THREE_DATACENTERS, "--json")[1])

    [_, near, reported, split, home] = row["rules"]
    assert near["cross_dc"] is None
    assert (reported["cross_dc"]["bound"], reported["cross_dc"]["ceiling"]) == (616, 1800)
    assert reported["cross_dc"]["staleness_ns"] == 280_000_000
    assert [rule["scope"] for rule in (near, reported, split, home)] == [
        *("datacenter", "global", "split", "home")
    ]
    assert row["warnings"] == []


def test_more_demand_raises_the_bound(check: Run) -> None:
    row = json.loads(check([RULES], *THREE_DATACENTERS, "--demand", "20", "--json")[1])

    assert row["rules"][2]["cross_dc"]["bound"] == 600 + 2 * (19 + 6)


def test_all_periods_that_are_too_short_are_reported_with_their_lines(check: Run) -> None:
    status, out, err = check([RULES, SHORT_PERIODS], *THREE_DATACENTERS)

    assert (status, out) == (2, "")
    assert "rules1.yaml:5: quick > first > rate_limit: with a round trip of 80 ms, counts" in err
    assert "rules1.yaml:10: quick > second > rate_limit: with a round trip of 80 ms" in err
    for fix in ("at least 5.6 s", "scope: datacenter", "{mode: split}", "{mode: home, home: "):
        assert fix in err


def test_a_period_too_short_for_one_round_trip_is_accepted_for_a_shorter_one(check: Run) -> None:
    assert check([SHORT_PERIODS], "--datacenters", "3", "--rtt", "1")[0] == 0
    assert check([SHORT_PERIODS], "--datacenters", "1", "--rtt", "80")[0] == 0


def test_a_warning_is_printed_when_the_data_centers_are_not_given(check: Run) -> None:
    status, out, _ = check([RULES])

    assert status == 0
    assert "\nwarning: how far limits of global scope can be exceeded depends on the data" in out
    assert "add --datacenters N --rtt MS\n4 rules are good\n" in out
    assert "in all data centers" not in out
    [warning] = json.loads(check([RULES], "--json")[1])["warnings"]
    assert "add --datacenters N --rtt MS" in warning


def test_rules_of_one_data_center_need_no_warning(check: Run) -> None:
    assert "warning" not in check([RULES.partition("  - key: shared")[0]])[1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--datacenters", "3"], "--datacenters without --rtt; add the round trip"),
        (["--rtt", "80"], "--rtt must be used with --datacenters; add --datacenters N"),
        (["--demand", "3"], "--demand must be used with --datacenters"),
        (["--datacenters", "3", "--rtt", "nan"], "'--rtt': must be a number, got nan"),
        ([*THREE_DATACENTERS, "--demand", "nan"], "'--demand': must be a number, got nan"),
        (["--datacenters", "0", "--rtt", "80"], "--datacenters"),
        (["--datacenters", "3", "--rtt", "-1"], "--rtt"),
    ],
)
def test_invalid_options_are_rejected(check: Run, options: list[str], expected: str) -> None:
    status, out, err = check([RULES], *options)

    assert (status, out) == (2, "")
    assert expected in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("option", "least", "most"),
    [("--datacenters", 1, 1000), ("--rtt", 0, 10_000), ("--demand", 0, 1_000_000)],
)
def test_the_numeric_options_have_bounds(check: Run, option: str, least: int, most: int) -> None:
    defaults = {"--datacenters": 3, "--rtt": 80, "--demand": 2}
    of_one_datacenter = RULES.partition("  - key: shared")[0]

    def status(value: int) -> int:
        words = [str(word) for pair in (defaults | {option: value}).items() for word in pair]
        return check([of_one_datacenter], *words)[0]

    assert [status(value) for value in (least - 1, least, most, most + 1)] == [2, 0, 0, 2]


def test_the_bound_assumes_the_interval_at_which_nodes_send_counts() -> None:
    assert round(INTERVAL * 1e9) == ROUND_NS
