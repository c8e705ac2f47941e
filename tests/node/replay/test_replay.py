"""`ringfence replay`: in this process by the log's clock, and through a cluster."""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from node.cli import command
from node.demo.cluster import DemoCluster
from node.replay.logs import Entry, read_log, sorted_by_time
from node.replay.offline import replay_offline
from node.replay.tally import Shape, Tally
from ringfence.errors import ConfigError
from ringfence.rules.loading.yaml_files import load_text
from tests.node.real_cluster import real_cluster

TRACES = Path(__file__).parents[2] / "traces"
EXPECTED = json.loads((TRACES / "expected_counts.json").read_text("utf-8"))
UNITS = {"min": "minute", "h": "hour"}
CLIENT = Shape.parse(["client"])
WHOLE = [
    ("semicomplete-2015-05", limit, algorithm)
    for limit, counts in EXPECTED["semicomplete-2015-05"]["denied"].items()
    for algorithm in counts
] + [
    ("epa-1995-08-30", "10/min", "sliding_window_log"),
    ("epa-1995-08-30", "100/h", "sliding_window"),
    ("epa-1995-08-30", "100/h", "fixed_window"),
]


def rules_of(limit: str, algorithm: str, rest: str = "") -> str:
    amount, unit = limit.split("/")
    return (
        "domain: log\ndescriptors:\n  - key: client\n    rate_limit:\n"
        f"      requests_per_unit: {amount}\n      unit: {UNITS[unit]}\n"
        f"      algorithm: {algorithm}\n{rest}"
    )


@cache
def entries_of(trace: str) -> list[Entry]:
    return sorted_by_time(read_log(TRACES / f"{trace}.tsv.gz"))


def replayed(entries: list[Entry], rules: str, *shape: str) -> Tally:
    return replay_offline(
        [entries],
        Shape.parse(shape) if shape else CLIENT,
        load_text(rules).rules,
        clock=None,
        max_keys=1_000_000,
        on_progress=lambda done: None,
    )


def entry(second: float, client: str = "x", method: str = "GET", path: str = "/") -> Entry:
    return Entry(round(second * 1e9), client, method, path, "200")


@dataclass
class Ran:
    status: int
    out: str
    err: str

    @property
    def last(self) -> dict[str, Any]:
        """The last line, as a machine reads it."""
        last = json.loads(self.out.splitlines()[-1])
        assert isinstance(last, dict)
        return last


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process."""
    monkeypatch.delenv("RINGFENCE_URL", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)

    def run_it(*words: str | Path) -> Ran:
        monkeypatch.setattr("sys.argv", ["ringfence", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            command.main()
        reported = capsys.readouterr()
        return Ran(int(left.value.code or 0), reported.out, reported.err)

    return run_it


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(rules_of("10/min", "fixed_window"), "utf-8")
    return path


# By the log's own clock


@pytest.mark.parametrize(("trace", "limit", "algorithm"), WHOLE)
def test_a_real_log_is_denied_exactly_as_often_as_was_counted_independently(
    trace: str, limit: str, algorithm: str
) -> None:
    expected = EXPECTED[trace]

    tally = replayed(entries_of(trace), rules_of(limit, algorithm))

    assert tally.checks == expected["requests"]
    assert tally.denied == expected["denied"][limit][algorithm]
    assert tally.allowed == tally.checks - tally.denied
    assert tally.errors == 0
    assert len(tally.checked_by_client) == expected["clients"]


def test_the_most_throttled_clients_come_first_with_their_checks() -> None:
    asked = [entry(1, client) for client in "aaaaabbbcd"]

    tally = replayed(asked, rules_of("2/min", "fixed_window"))

    assert [row[:3] for row in tally.most_throttled(2)] == [("a", 3, 5), ("b", 1, 3)]


def test_each_rule_says_how_often_it_was_met_and_how_often_it_denied() -> None:
    both = rules_of("3/min", "fixed_window") + (
        "  - key: path\n    shadow_mode: true\n"
        "    rate_limit: {requests_per_unit: 1, unit: minute, algorithm: fixed_window}\n"
        "  - key: method\n    value: POST\n"
        "    rate_limit: {requests_per_unit: 1, unit: minute, algorithm: fixed_window}\n"
        "  - key: status\n"
        "    rate_limit: {requests_per_unit: 1, unit: minute, algorithm: fixed_window}\n"
    )
    asked = [entry(1, "x")] * 5 + [entry(2, "y", "POST")] * 2

    tally = replayed(asked, both, "client", "path", "method")

    found = {each.rule.path[0][0]: (each.checks, each.denied) for each in tally.rules.values()}
    assert found == {"client": (7, 2), "path": (7, 6), "method": (2, 1), "status": (0, 0)}
    assert [(row.client, row.rule and row.rule.path[0][0]) for row in tally.most_throttled(2)] == [
        ("x", "client"),
        ("y", "method"),
    ]


def test_quotas_beside_a_rule_deny_together_and_give_back_what_it_was_charged() -> None:
    quotas = rules_of("3/min", "fixed_window") + "".join(
        f"  - key: {name}\n    quota_mode: true\n"
        f"    rate_limit: {{requests_per_unit: {amount}, unit: minute, algorithm: fixed_window}}\n"
        for name, amount in [("path", 1), ("method", 2)]
    )
    asked = [entry(1)] * 5 + [entry(1, path="/other")] * 2

    tally = replayed(asked, quotas, "client", "path", "method")

    # Three times the first path is denied by both quotas, and the client's rule is not charged.
    assert (tally.allowed, tally.denied) == (3, 4)
    assert tally.denied_by_client == {"x": 4}
    assert {each.checks for each in tally.rules.values()} == {7}


def test_the_most_denied_clients_survive_a_flood_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("node.replay.tally.KEPT_CLIENTS", 10)
    asked = [entry(1, "worst")] * 5 + [entry(1, f"other-{n}") for n in range(1000)]
    batches = [asked[start : start + 7] for start in range(0, len(asked), 7)]

    tally = replay_offline(
        batches,
        CLIENT,
        load_text(rules_of("2/min", "fixed_window")).rules,
        clock=None,
        max_keys=1_000_000,
        on_progress=lambda done: None,
    )

    assert (tally.checks, tally.denied, tally.clients_dropped) == (1005, 3, True)
    assert [row[:3] for row in tally.most_throttled(2)] == [("worst", 3, 5)]
    assert len(tally.checked_by_client) <= 20


def test_a_line_is_one_check_however_many_descriptors_it_makes() -> None:
    both = rules_of("2/min", "fixed_window") + (
        "    descriptors:\n      - key: path\n"
        "        rate_limit: {requests_per_unit: 1, unit: minute, algorithm: fixed_window}\n"
    )
    asked = [entry(1, path="/a"), entry(1, path="/a"), entry(1, path="/b"), entry(1, path="/c")]

    tally = replayed(asked, both, "client", "client,path")

    # /a once more is denied and so spends nothing of the client's budget; /c finds it spent.
    assert (tally.checks, tally.allowed, tally.denied) == (4, 2, 2)


def test_a_shadow_rule_denies_nobody_and_charges_nothing_that_is_denied() -> None:
    shadowed = (
        "domain: log\ndescriptors:\n  - key: client\n    shadow_mode: true\n"
        "    rate_limit: {requests_per_unit: 1, unit: minute, algorithm: fixed_window}\n"
    )

    assert replayed([entry(1)] * 5, shadowed).denied == 0


def test_a_line_that_meets_no_rule_is_allowed() -> None:
    tally = replayed([entry(1)] * 30, rules_of("10/min", "fixed_window"), "method")

    assert (tally.checks, tally.allowed, tally.no_rule) == (30, 30, 30)


def test_a_line_that_is_older_than_one_before_it_is_counted_at_the_time_of_the_newest() -> None:
    asked = [entry(100), entry(30), entry(100), entry(95)]

    tally = replayed(asked, rules_of("2/min", "fixed_window"))

    assert (tally.allowed, tally.denied) == (2, 2)
    assert (tally.late, tally.most_late_ns) == (2, 70 * 10**9)


@pytest.mark.parametrize(
    "text", ["ip", "client,", "", "client path", "client;path", "=client", "user=", "user=ip"]
)
def test_a_descriptor_of_fields_that_a_line_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(
        ConfigError, match="FIELD or KEY=FIELD, with the fields client, method, path, status"
    ):
        Shape.parse([text])


def test_rules_without_the_domain_of_logs_are_refused_with_the_mend(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "api.yaml"
    path.write_text("domain: api\ndescriptors: []\n", "utf-8")

    ran = run("replay", TRACES / "semicomplete-2015-05.tsv.gz", "--rules", path, "--local")

    assert ran.status == 2
    assert "no rules for domain 'log'" in ran.err
    assert "domains there: api" in ran.err
    assert "choose one with --domain" in ran.err


def test_rules_of_another_domain_with_other_keys_are_tried_on_a_log(
    run: Run, tmp_path: Path
) -> None:
    log, path = tmp_path / "trace.tsv", tmp_path / "api.yaml"
    log.write_text("100\tx\tGET\t/\t200\n" * 12 + "100\ty\tPOST\t/\t200\n" * 3, "utf-8")
    of_log = rules_of("10/min", "fixed_window")
    renamed = of_log.replace("domain: log", "domain: api").replace("client", "remote_address")
    path.write_text(
        renamed + "    descriptors:\n      - key: method\n        value: POST\n"
        "        rate_limit: {requests_per_unit: 1, unit: minute, algorithm: fixed_window}\n",
        "utf-8",
    )

    ran = run(
        *("replay", log, "--rules", path, "--local", "--json", "--domain", "api"),
        *("--descriptor", "remote_address=client", "-d", "remote_address=client, method"),
    )

    assert ran.status == 0, ran.err
    assert (ran.last["allowed"], ran.last["denied"], ran.last["no_rule"]) == (11, 4, 0)
    assert {row["rule"]: row["denied"] for row in ran.last["rules"]} == {
        "api > remote_address": 2,
        "api > remote_address > method=POST": 2,
    }


# The command


def test_the_last_line_for_machines_has_every_count(run: Run, rules: Path) -> None:
    trace = TRACES / "semicomplete-2015-05.tsv.gz"

    ran = run("replay", trace, "--rules", rules, "--local", "--clock", "log", "--json")

    denied = EXPECTED["semicomplete-2015-05"]["denied"]["10/min"]["fixed_window"]
    assert ran.status == 0
    assert ran.last == {
        "lines": 10_000,
        "malformed": 0,
        "checks": 10_000,
        "allowed": 10_000 - denied,
        "denied": denied,
        "errors": 0,
        "no_rule": 0,
        "late": 0,
        "rules": [{"rule": "log > client", "checks": 10_000, "denied": denied, "shadow": False}],
        "most_throttled": ran.last["most_throttled"],
    }
    first, *_ = ran.last["most_throttled"]
    assert first.keys() == {"client", "denied", "checked", "rule"}
    assert first["rule"] == "log > client"


def test_a_file_is_counted_by_its_own_time_stamps_unless_the_real_clock_is_asked_for(
    run: Run, rules: Path, tmp_path: Path
) -> None:
    log = tmp_path / "trace.tsv"
    log.write_text("".join(f"{60 * n}\tx\tGET\t/\t200\n" for n in range(30)), "utf-8")

    assert run("replay", log, "--rules", rules, "--local", "--json").last["denied"] == 0
    real = run("replay", log, "--rules", rules, "--local", "--clock", "real", "--json").last
    assert real["denied"] >= 10  # At most two windows of the real clock are touched.


def test_ipv6_clients_of_one_network_are_one_client_when_asked_for(
    run: Run, rules: Path, tmp_path: Path
) -> None:
    log = tmp_path / "trace.tsv"
    log.write_text("".join(f"{n}\t2001:db8::{n:x}\tGET\t/\t200\n" for n in range(1, 21)), "utf-8")
    how = ("replay", log, "--rules", rules, "--local", "--clock", "log", "--json")

    assert run(*how).last["allowed"] == 20
    assert run(*how, "--ipv6-prefix", "64").last["allowed"] == 10


@pytest.mark.parametrize(
    ("option", "wrong", "right"),
    [("--ipv6-prefix", ["0", "129"], ["1", "128"]), ("--max-keys", ["0"], ["1"])],
)
def test_options_of_a_local_replay_have_bounds(
    run: Run, rules: Path, tmp_path: Path, option: str, wrong: list[str], right: list[str]
) -> None:
    log = tmp_path / "trace.tsv"
    log.write_text("1\t2001:db8::1\tGET\t/\t200\n", "utf-8")

    def status(value: str) -> int:
        return run("replay", log, "--rules", rules, "--local", "--json", option, value).status

    assert [status(value) for value in wrong] == [2] * len(wrong)
    assert [status(value) for value in right] == [0] * len(right)


def test_lines_that_cannot_be_read_are_counted_and_the_first_of_them_named(
    run: Run, rules: Path, tmp_path: Path
) -> None:
    good = '203.0.113.7 - - [17/May/2015:10:05:03 +0000] "GET /a?b HTTP/1.1" 200 5\n'
    log = tmp_path / "access.log.gz"
    log.write_bytes(gzip.compress(f"{good}nonsense\n{good}\n{good}".encode()))

    ran = run("replay", log, "--rules", rules, "--local", "--clock", "log", "--json")
    lines = [json.loads(line) for line in ran.out.splitlines()]

    assert [line["malformed_line"] for line in lines[:-1]] == [2, 4]
    assert all(line["why"] for line in lines[:-1])
    assert lines[-1]["lines"] == 5
    assert lines[-1]["malformed"] == 2
    assert lines[-1]["checks"] == lines[-1]["allowed"] == 3


def test_people_see_the_counts_and_who_was_throttled_most(
    run: Run, rules: Path, tmp_path: Path
) -> None:
    log = tmp_path / "trace.tsv"
    names = ["[/red]", "\x1b[31mx", "plain"]
    log.write_text(
        "".join(f"100\t{name}\tGET\t/\t200\n" for name in names for _ in range(12)), "utf-8"
    )

    ran = run("replay", log, "--rules", rules, "--local", "--clock", "log")

    assert ran.status == 0
    assert "36 lines (0 malformed), 36 checks: 30 allowed, 6 denied" in ran.out
    assert "[/red]" in ran.out  # as logged, not as markup
    assert "\x1b" not in ran.out  # a log must not steer the terminal
    assert "plain" in ran.out


def test_each_rule_of_a_replay_is_printed_with_its_denials_and_checks(
    run: Run, rules: Path, tmp_path: Path
) -> None:
    log = tmp_path / "trace.tsv"
    log.write_text("100\tx\tGET\t/\t200\n" * 12, "utf-8")

    ran = run("replay", log, "--rules", rules, "--local", "--clock", "log")
    other = run(
        *("replay", log, "--rules", rules, "--local", "--clock", "log", "--descriptor", "method")
    )

    rows = [
        line.split()[-2:]
        for out in (ran.out, other.out)
        for line in out.splitlines()
        if line.startswith("log > client ")
    ]
    assert rows == [["2", "12"], ["0", "0"]]
    assert "12 met no rule" in other.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--local"], "--local needs --rules"),
        (["--rules", "RULES", "--local", "--speed", "5"], "--speed must be used without --local"),
        (["--rules", "RULES", "--clock", "log"], "--clock must be real through a cluster"),
        (["--rules", "RULES"], "no cluster address"),
        (
            ["--rules", "RULES", "--local", "--cluster", "ringfence://127.0.0.1"],
            "--local must be used without --cluster",
        ),
        (["--rules", "RULES", "--local", "--descriptor", "ip"], "got 'ip'"),
        (["--rules", "RULES", "--local", "--default-algorithm", "gcra"], "token_bucket"),
        (["--rules", "nowhere.yaml", "--local"], "nowhere.yaml"),
    ],
)
def test_wishes_that_do_not_go_together_are_refused(
    run: Run, rules: Path, words: list[str], said: str
) -> None:
    reported = [str(rules) if word == "RULES" else word for word in words]

    ran = run("replay", TRACES / "semicomplete-2015-05.tsv.gz", *reported)

    assert ran.status == 2
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_an_address_in_the_environment_does_not_hinder_a_local_replay(
    run: Run, rules: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGFENCE_URL", "ringfence://127.0.0.1")

    ran = run("replay", log, "--rules", rules, "--local", "--descriptor", "path")

    assert ran.status == 0
    assert "0 undecided; 40 met no rule\n" in ran.out
    assert "most throttled" not in ran.out  # nobody was


def test_a_missing_log_is_named(run: Run, rules: Path) -> None:
    ran = run("replay", "nowhere.log", "--rules", rules, "--local")

    assert ran.status == 2
    assert "nowhere.log: no such file" in ran.err


# Through a cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoCluster]:
    path = tmp_path_factory.mktemp("cluster") / "rules.yaml"
    path.write_text(rules_of("10/min", "fixed_window").replace("minute", "year"), "utf-8")
    with real_cluster(path, ("a",), "check,observe,admin") as nodes:
        yield nodes


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "trace.tsv"
    path.write_text("".join(f"{i}\t{path.parent}\tGET\t/{i}\t200\n" for i in range(40)), "utf-8")
    return path


def test_a_cluster_decides_by_its_own_rules(run: Run, cluster: DemoCluster, log: Path) -> None:
    ran = run("replay", log, "--cluster", cluster.url, "--json")

    assert ran.status == 0
    assert ran.last == {
        "lines": 40,
        "malformed": 0,
        "checks": 40,
        "allowed": 10,
        "denied": 30,
        "errors": 0,
        "no_rule": 0,
        "late": 0,
        "rules": [{"rule": "log > client", "checks": 40, "denied": 30, "shadow": False}],
        "most_throttled": [
            {"client": str(log.parent), "denied": 30, "checked": 40, "rule": "log > client"}
        ],
    }
    assert "nodes counted by their own clocks, and 0:00:39 of log took 0:00:0" in ran.err


def test_rules_of_ones_own_travel_with_each_check(
    run: Run, cluster: DemoCluster, log: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        rules_of("15/min", "fixed_window").replace("minute", "year").replace("client", "method"),
        "utf-8",
    )
    mine.write_text(mine.read_text("utf-8").replace("domain: log", "domain: mine"), "utf-8")

    ran = run(
        *("replay", log, "--cluster", cluster.url, "--rules", mine, "--descriptor", "method"),
        *("--domain", "mine", "--json"),
    )

    assert (ran.last["allowed"], ran.last["denied"], ran.last["errors"]) == (15, 25, 0)


def test_a_trial_of_rules_leaves_the_live_counters_alone(
    run: Run, cluster: DemoCluster, log: Path, rules: Path
) -> None:
    def left() -> int:
        who = f"client={log.parent}"
        peek = run("check", "log", who, "--peek", "--json", "--cluster", cluster.url)
        return int(peek.last["remaining"])

    run("check", "log", f"client={log.parent}", "--cost", "4", "--cluster", cluster.url)
    rules.write_text(rules_of("10/min", "fixed_window").replace("minute", "year"), "utf-8")

    trials = [
        run("replay", log, "--cluster", cluster.url, "--rules", rules, "--json") for _ in "ab"
    ]

    assert [trial.last["allowed"] for trial in trials] == [10, 10]
    assert left() == 6


def test_the_pace_of_the_log_is_kept_at_the_speed_asked_for(
    run: Run, cluster: DemoCluster, log: Path
) -> None:
    ran = run("replay", log, "--cluster", cluster.url, "--speed", "1000", "--json")

    assert ran.last["checks"] == 40
