"""`ringfence replay --cluster`: the nodes of a cluster decide."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.demo.cluster import DemoCluster
from tests.node.real_cluster import real_cluster
from tests.node.replay.replay_command import Run, rules_of


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoCluster]:
    path = tmp_path_factory.mktemp("cluster") / "rules.yaml"
    path.write_text(rules_of("10/min", "fixed_window").replace("minute", "year"), "utf-8")
    with real_cluster(path, ("a",), "check,observe,admin") as nodes:
        yield nodes


def test_a_cluster_decides_by_its_own_rules_by_default(
    run: Run, cluster: DemoCluster, log: Path
) -> None:
    result = run("replay", log, "--cluster", cluster.url, "--json")

    assert result.status == 0
    assert result.last == {
        "lines": 40,
        "malformed": 0,
        "truncated": False,
        "damaged": False,
        "checks": 40,
        "allowed": 10,
        "denied": 30,
        "undecided": 0,
        "no_rule": 0,
        "late": 0,
        "evicted": 0,
        "rules": [{"rule": "log > client", "checks": 40, "denied": 30, "shadow": False}],
        "most_throttled": [
            {"client": str(log.parent), "denied": 30, "checked": 40, "rule": "log > client"}
        ],
    }
    assert "nodes counted by their own clocks, and 0:00:39 of log took 0:00:0" in result.err


def test_a_descriptor_key_that_no_rule_of_the_cluster_has_is_reported(
    run: Run, cluster: DemoCluster, log: Path
) -> None:
    result = run("replay", log, "--cluster", cluster.url, "--json", "-d", "clinet=client")

    assert (result.status, result.last["no_rule"]) == (0, 40)
    assert "the cluster: domain 'log' has no rule for descriptor key 'clinet'" in result.err
    assert result.err.count("did you mean 'client'?") == 1


def test_rules_of_the_replay_are_sent_with_each_check(
    run: Run, cluster: DemoCluster, log: Path, tmp_path: Path
) -> None:
    own_rules = tmp_path / "mine.yaml"
    own_rules.write_text(
        rules_of("15/min", "fixed_window").replace("minute", "year").replace("client", "method"),
        "utf-8",
    )
    own_rules.write_text(
        own_rules.read_text("utf-8").replace("domain: log", "domain: mine"), "utf-8"
    )

    result = run(
        *("replay", log, "--cluster", cluster.url, "--rules", own_rules, "--descriptor", "method"),
        *("--domain", "mine", "--json"),
    )

    assert (result.last["allowed"], result.last["denied"], result.last["undecided"]) == (15, 25, 0)


def test_a_trial_of_rules_does_not_change_the_live_counters(
    run: Run, cluster: DemoCluster, log: Path, rules: Path
) -> None:
    def remaining() -> int:
        descriptor = f"client={log.parent}"
        peek = run("check", "log", descriptor, "--peek", "--json", "--cluster", cluster.url)
        return int(peek.last["remaining"])

    run("check", "log", f"client={log.parent}", "--cost", "4", "--cluster", cluster.url)
    rules.write_text(rules_of("10/min", "fixed_window").replace("minute", "year"), "utf-8")

    trials = [
        run("replay", log, "--cluster", cluster.url, "--rules", rules, "--json") for _ in "ab"
    ]

    assert [trial.last["allowed"] for trial in trials] == [10, 10]
    assert remaining() == 6


def test_a_replay_at_a_multiple_of_the_logged_pace_sends_every_check(
    run: Run, cluster: DemoCluster, log: Path
) -> None:
    result = run("replay", log, "--cluster", cluster.url, "--speed", "1000", "--json")

    assert result.last["checks"] == 40
