"""`ringfence replay` in this process, by the clock of the log."""

import gzip
import json
from functools import cache
from pathlib import Path

import pytest

from node.replay.log_formats import Entry
from node.replay.logs import read_log, sorted_by_time
from node.replay.offline import replay_offline
from node.replay.tally import Shape, Tally
from ringfence.errors import ConfigError
from ringfence.limiter import Algorithm
from ringfence.rules.loading.yaml_files import load_text
from tests.node.replay.replay_command import Run, rules_of

TRACES = Path(__file__).parents[2] / "traces"
EXPECTED = json.loads((TRACES / "expected_counts.json").read_text("utf-8"))
ALGORITHMS = [algorithm.value for algorithm in Algorithm]
THROUGH_CLUSTER = ["--rules", "RULES", "--cluster", "ringfence://127.0.0.1:9"]
CLIENT = Shape.parse(["client"])
COUNTED_TRACES = [
    ("semicomplete-2015-05", limit, algorithm)
    for limit, counts in EXPECTED["semicomplete-2015-05"]["denied"].items()
    for algorithm in counts
] + [
    ("epa-1995-08-30", "10/min", "sliding_window_log"),
    ("epa-1995-08-30", "100/h", "sliding_window"),
    ("epa-1995-08-30", "100/h", "fixed_window"),
]


@cache
def entries_of(trace: str) -> list[Entry]:
    return sorted_by_time(read_log(TRACES / f"{trace}.tsv.gz"))


def replay_entries(entries: list[Entry], rules: str, *shape: str) -> Tally:
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


# By the clock of the log


@pytest.mark.parametrize(("trace", "limit", "algorithm"), COUNTED_TRACES)
def test_a_real_log_has_exactly_the_denials_of_an_independent_count(
    trace: str, limit: str, algorithm: str
) -> None:
    expected = EXPECTED[trace]

    tally = replay_entries(entries_of(trace), rules_of(limit, algorithm))

    assert tally.checks == expected["requests"]
    assert tally.denied == expected["denied"][limit][algorithm]
    assert tally.allowed == tally.checks - tally.denied
    assert tally.undecided == 0
    assert len(tally.checked_by_client) == expected["clients"]


def test_the_most_throttled_clients_come_first_with_their_checks() -> None:
    entries = [entry(1, client) for client in "aaaaabbbcd"]

    tally = replay_entries(entries, rules_of("2/min", "fixed_window"))

    assert [row[:3] for row in tally.most_throttled(2)] == [("a", 3, 5), ("b", 1, 3)]


def test_each_rule_counts_its_checks_and_its_denials() -> None:
    rules_text = rules_of("3/min", "fixed_window") + (
        "  - key: path\n    shadow_mode: true\n"
        "    rate_limit: {requests_per_unit: 1, unit: minute, algorithm: fixed_window}\n"
        "  - key: method\n    value: POST\n"
        "    rate_limit: {requests_per_unit: 1, unit: minute, algorithm: fixed_window}\n"
        "  - key: status\n"
        "    rate_limit: {requests_per_unit: 1, unit: minute, algorithm: fixed_window}\n"
    )
    entries = [entry(1, "x")] * 5 + [entry(2, "y", "POST")] * 2

    tally = replay_entries(entries, rules_text, "client", "path", "method")

    counts = {each.rule.path[0][0]: (each.checks, each.denied) for each in tally.rules.values()}
    assert counts == {"client": (7, 2), "path": (7, 6), "method": (2, 1), "status": (0, 0)}
    assert [(row.client, row.rule and row.rule.path[0][0]) for row in tally.most_throttled(2)] == [
        ("x", "client"),
        ("y", "method"),
    ]


def test_quotas_beside_a_rule_deny_together_and_refund_the_charge_of_the_rule() -> None:
    quotas = rules_of("3/min", "fixed_window") + "".join(
        f"  - key: {name}\n    quota_mode: true\n"
        f"    rate_limit: {{requests_per_unit: {amount}, unit: minute, algorithm: fixed_window}}\n"
        for name, amount in [("path", 1), ("method", 2)]
    )
    entries = [entry(1)] * 5 + [entry(1, path="/other")] * 2

    tally = replay_entries(entries, quotas, "client", "path", "method")

    # Both quotas deny the first path three times. The client's rule is not charged then.
    assert (tally.allowed, tally.denied) == (3, 4)
    assert tally.denied_by_client == {"x": 4}
    assert {each.checks for each in tally.rules.values()} == {7}


def test_the_most_denied_clients_are_kept_during_a_flood_of_other_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("node.replay.tally.KEPT_CLIENTS", 10)
    entries = [entry(1, "worst")] * 5 + [entry(1, f"other-{n}") for n in range(1000)]
    batches = [entries[start : start + 7] for start in range(0, len(entries), 7)]

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


def test_a_line_with_several_descriptors_counts_as_one_check() -> None:
    rules_text = rules_of("2/min", "fixed_window") + (
        "    descriptors:\n      - key: path\n"
        "        rate_limit: {requests_per_unit: 1, unit: minute, algorithm: fixed_window}\n"
    )
    entries = [entry(1, path="/a"), entry(1, path="/a"), entry(1, path="/b"), entry(1, path="/c")]

    tally = replay_entries(entries, rules_text, "client", "client,path")

    # The second /a is denied, so it does not spend the client's budget. /b spends it before /c.
    assert (tally.checks, tally.allowed, tally.denied) == (4, 2, 2)


def test_a_shadow_rule_denies_no_client() -> None:
    shadowed = (
        "domain: log\ndescriptors:\n  - key: client\n    shadow_mode: true\n"
        "    rate_limit: {requests_per_unit: 1, unit: minute, algorithm: fixed_window}\n"
    )

    assert replay_entries([entry(1)] * 5, shadowed).denied == 0


def test_a_line_without_a_matching_rule_is_allowed() -> None:
    tally = replay_entries([entry(1)] * 30, rules_of("10/min", "fixed_window"), "method")

    assert (tally.checks, tally.allowed, tally.no_rule) == (30, 30, 30)


def test_a_line_out_of_order_is_counted_at_the_newest_time_so_far() -> None:
    entries = [entry(100), entry(30), entry(100), entry(95)]

    tally = replay_entries(entries, rules_of("2/min", "fixed_window"))

    assert (tally.allowed, tally.denied) == (2, 2)
    assert (tally.late, tally.most_late_ns) == (2, 70 * 10**9)


@pytest.mark.parametrize(
    "text", ["ip", "client,", "", "client path", "client;path", "=client", "user=", "user=ip"]
)
def test_a_descriptor_with_unknown_fields_is_rejected(text: str) -> None:
    with pytest.raises(
        ConfigError, match="FIELD or KEY=FIELD, with the fields client, method, path, status"
    ):
        Shape.parse([text])


@pytest.mark.parametrize(("text", "hint"), [("clinet", "client"), ("ip=pth", "path")])
def test_a_misspelt_field_of_a_descriptor_gets_a_suggestion(text: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"got '{text}'; did you mean '{hint}'\\?$"):
        Shape.parse([text])


def test_a_descriptor_key_that_no_rule_has_is_reported_with_a_suggestion(
    run: Run, rules: Path, log: Path
) -> None:
    options = ("--rules", rules, "--local", "--json")

    wrong = run("replay", log, *options, "-d", "clinet=client")
    right = run("replay", log, *options)

    assert (wrong.status, wrong.last["no_rule"]) == (0, 40)
    assert wrong.err == (
        f"warning: {rules}: domain 'log' has no rule for descriptor key 'clinet', so it is never "
        "limited; did you mean 'client'? its rules are for client\n"
    )
    assert right.err == ""


@pytest.mark.parametrize(
    "words", [("replay", "--local", "--json"), ("simulate", "what-if", "--json", "--log")]
)
def test_a_concurrency_rule_is_reported_because_a_log_has_no_ends_of_requests(
    run: Run, tmp_path: Path, log: Path, words: tuple[str, ...]
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(rules_of("30/min", "").replace("algorithm:", ""), "utf-8")
    arguments = (*words, log, "--rules", rules)

    slots = run(*arguments, "--default-algorithm", "concurrency")
    other = run(*arguments)

    assert (slots.status, other.status, other.err) == (0, 0, "")
    assert slots.err == (
        f"warning: {rules}: log > client: a log has no ends of requests, so each line holds its "
        "slot for the whole time of the limit 30 concurrent ttl 1 minute\n"
    )


def test_rules_without_the_domain_of_logs_are_rejected_with_a_hint(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "api.yaml"
    path.write_text("domain: api\ndescriptors: []\n", "utf-8")

    result = run("replay", TRACES / "semicomplete-2015-05.tsv.gz", "--rules", path, "--local")

    assert result.status == 2
    assert "no rules for domain 'log'" in result.err
    assert "domains there: api" in result.err
    assert "choose one with --domain" in result.err


def test_rules_of_another_domain_with_other_keys_can_be_tried_on_a_log(
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

    result = run(
        *("replay", log, "--rules", path, "--local", "--json", "--domain", "api"),
        *("--descriptor", "remote_address=client", "-d", "remote_address=client, method"),
    )

    assert result.status == 0, result.err
    assert (result.last["allowed"], result.last["denied"], result.last["no_rule"]) == (11, 4, 0)
    assert {row["rule"]: row["denied"] for row in result.last["rules"]} == {
        "api > remote_address": 2,
        "api > remote_address > method=POST": 2,
    }


# The command


def test_the_last_line_of_json_has_every_count(run: Run, rules: Path) -> None:
    trace = TRACES / "semicomplete-2015-05.tsv.gz"

    result = run("replay", trace, "--rules", rules, "--local", "--clock", "log", "--json")

    denied = EXPECTED["semicomplete-2015-05"]["denied"]["10/min"]["fixed_window"]
    assert result.status == 0
    assert result.last == {
        "lines": 10_000,
        "malformed": 0,
        "truncated": False,
        "damaged": False,
        "checks": 10_000,
        "allowed": 10_000 - denied,
        "denied": denied,
        "undecided": 0,
        "no_rule": 0,
        "late": 0,
        "evicted": 0,
        "rules": [{"rule": "log > client", "checks": 10_000, "denied": denied, "shadow": False}],
        "most_throttled": result.last["most_throttled"],
    }
    first, *_ = result.last["most_throttled"]
    assert first.keys() == {"client", "denied", "checked", "rule"}
    assert first["rule"] == "log > client"


def test_a_file_is_counted_by_its_time_stamps_unless_the_real_clock_is_selected(
    run: Run, rules: Path, tmp_path: Path
) -> None:
    log = tmp_path / "trace.tsv"
    log.write_text("".join(f"{60 * n}\tx\tGET\t/\t200\n" for n in range(30)), "utf-8")

    assert run("replay", log, "--rules", rules, "--local", "--json").last["denied"] == 0
    real = run("replay", log, "--rules", rules, "--local", "--clock", "real", "--json").last
    assert real["denied"] >= 10  # The replay spans at most two windows.


def test_with_an_ipv6_prefix_all_clients_of_one_network_are_one_client(
    run: Run, rules: Path, tmp_path: Path
) -> None:
    log = tmp_path / "trace.tsv"
    log.write_text("".join(f"{n}\t2001:db8::{n:x}\tGET\t/\t200\n" for n in range(1, 21)), "utf-8")
    arguments = ("replay", log, "--rules", rules, "--local", "--clock", "log", "--json")

    assert run(*arguments).last["allowed"] == 20
    assert run(*arguments, "--ipv6-prefix", "64").last["allowed"] == 10


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


def test_evicted_counters_are_reported_and_are_the_same_in_each_run(run: Run, rules: Path) -> None:
    trace = TRACES / "epa-1995-08-30.tsv.gz"
    arguments = ("replay", trace, "--rules", rules, "--local", "--max-keys", "10")

    first, second = run(*arguments, "--json").last, run(*arguments, "--json").last

    assert first == second
    assert first["evicted"] > 0
    assert f"{first['evicted']} counters in use were evicted" in run(*arguments).err


def test_malformed_lines_are_counted_and_the_first_ones_are_printed(
    run: Run, rules: Path, tmp_path: Path
) -> None:
    good = '203.0.113.7 - - [17/May/2015:10:05:03 +0000] "GET /a?b HTTP/1.1" 200 5\n'
    log = tmp_path / "access.log.gz"
    log.write_bytes(gzip.compress(f"{good}nonsense\n{good}\n{good}".encode()))

    result = run("replay", log, "--rules", rules, "--local", "--clock", "log", "--json")
    lines = [json.loads(line) for line in result.out.splitlines()]

    assert [line["malformed_line"] for line in lines[:-1]] == [2, 4]
    assert all(line["why"] for line in lines[:-1])
    assert lines[-1]["lines"] == 5
    assert lines[-1]["malformed"] == 2
    assert lines[-1]["checks"] == lines[-1]["allowed"] == 3

    text = run("replay", log, "--rules", rules, "--local", "--clock", "log")
    assert "line 2: " in text.err
    assert text.out.startswith("5 lines (2 malformed)")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_line_of_the_last_readable_year_is_counted_by_every_algorithm(algorithm: str) -> None:
    last = [entry(4_607_366_399)] * 5  # The last second of 2115.

    assert replay_entries(last, rules_of("3/h", algorithm)).denied == 2


def test_a_truncated_gzip_log_is_reported_after_the_result_and_by_the_exit_status(
    run: Run, rules: Path, tmp_path: Path
) -> None:
    log = tmp_path / "trace.tsv.gz"
    lines = b"".join(b"%d\tclient%d\tGET\t/\t200\n" % (at, at * at) for at in range(5000))
    whole = gzip.compress(b"\n" + b"nonsense\n" * 9 + lines)
    breaks_off = whole[:-100], False, "the log is not complete: its gzip data breaks off"
    damaged = whole[:-8] + bytes(8), True, "the log is damaged"
    for content, is_damaged, error in (breaks_off, damaged):
        log.write_bytes(content)
        for words in (("replay", "--local"), ("simulate", "what-if", "--log")):
            result = run(*words, log, "--rules", rules, "--json")

            assert (result.status, result.last["truncated"]) == (2, True)
            assert result.last["damaged"] is is_damaged
            assert result.err.startswith(error)


def test_the_text_output_has_the_counts_and_the_most_throttled_clients(
    run: Run, rules: Path, tmp_path: Path
) -> None:
    log = tmp_path / "trace.tsv"
    names = ["[/red]", "\x1b[31mx", "plain"]
    log.write_text(
        "".join(f"100\t{name}\tGET\t/\t200\n" for name in names for _ in range(12)), "utf-8"
    )

    result = run("replay", log, "--rules", rules, "--local", "--clock", "log")

    assert result.status == 0
    assert "36 lines (0 malformed), 36 checks: 30 allowed, 6 denied" in result.out
    assert "[/red]" in result.out  # text of the log is not interpreted as markup
    assert "\x1b" not in result.out  # control characters are removed
    assert "plain" in result.out


def test_each_rule_of_a_replay_is_printed_with_its_denials_and_checks(
    run: Run, rules: Path, tmp_path: Path
) -> None:
    log = tmp_path / "trace.tsv"
    log.write_text("100\tx\tGET\t/\t200\n" * 12, "utf-8")

    result = run("replay", log, "--rules", rules, "--local", "--clock", "log")
    other = run(
        *("replay", log, "--rules", rules, "--local", "--clock", "log", "--descriptor", "method")
    )

    rows = [
        line.split()[-2:]
        for out in (result.out, other.out)
        for line in out.splitlines()
        if line.startswith("log > client ")
    ]
    assert rows == [["2", "12"], ["0", "0"]]
    assert "12 met no rule" in other.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--local"], "--local needs --rules"),
        (["--rules", "RULES", "--local", "--speed", "5"], "--speed must be used without --local"),
        ([*THROUGH_CLUSTER, "--speed", "nan"], "must be a number, got nan"),
        ([*THROUGH_CLUSTER, "--speed", "1e-300"], "1e-300 is not in the range x>=0.001"),
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
def test_invalid_or_contradictory_options_are_rejected(
    run: Run, rules: Path, options: list[str], message: str
) -> None:
    arguments = [str(rules) if word == "RULES" else word for word in options]

    result = run("replay", TRACES / "semicomplete-2015-05.tsv.gz", *arguments)

    assert result.status == 2
    assert message in result.err
    assert "Traceback" not in result.err


def test_a_local_replay_ignores_a_cluster_address_in_the_environment(
    run: Run, rules: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGFENCE_URL", "ringfence://127.0.0.1")

    result = run("replay", log, "--rules", rules, "--local", "--descriptor", "path")

    assert result.status == 0
    assert "0 undecided; 40 met no rule\n" in result.out
    assert "most throttled" not in result.out  # no client was throttled


def test_the_error_for_a_missing_log_contains_its_name(run: Run, rules: Path) -> None:
    result = run("replay", "nowhere.log", "--rules", rules, "--local")

    assert result.status == 2
    assert "nowhere.log: no such file" in result.err
