"""The command as a new user meets it: one clear message for each mistake, and the right status."""

import json
import os
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from node.cli import command
from node.cli.members import show_members
from node.config.access import KeyDir
from node.config.key_files import write_keys
from node.demo.cluster import DemoCluster
from ringfence.transport.tls.certificate_authority import issue, new_authority
from tests.node.real_cluster import real_cluster

ROOT = Path(__file__).parents[3]
RULES = """
domain: api
descriptors:
  - key: client
    rate_limit: {unit: year, requests_per_unit: 5, algorithm: fixed_window}
    descriptors:
      - key: path
        rate_limit: {unit: year, requests_per_unit: 2, algorithm: fixed_window}
  - key: watched
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 1, algorithm: fixed_window}
  - key: closed
    rate_limit: {unit: year, requests_per_unit: 0}
  - key: free
    rate_limit: {unlimited: true}
"""


@dataclass
class Ran:
    status: int
    out: str
    err: str

    @property
    def row(self) -> dict[str, Any]:
        """The one object that was printed for a machine."""
        [line] = self.out.splitlines()
        row = json.loads(line)
        assert isinstance(row, dict)
        return row


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


def refused(ran: Ran, status: int = 2) -> str:
    """What was said, once it is sure that it was said well."""
    assert ran.status == status
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert ran.err.count("\n") <= 4
    return ran.err


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoCluster]:
    """Two node processes with keys, and a token that may look but not rule."""
    path = tmp_path_factory.mktemp("cluster") / "rules.yaml"
    path.write_text(RULES, "utf-8")
    with real_cluster(path, ("a", "b"), "check,observe") as nodes:
        yield nodes


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A client that no other test has used up."""
    return f"client={request.node.name}"


# Checks


def test_a_check_within_the_limit_is_allowed_and_one_beyond_is_denied(
    run: Run, cluster: DemoCluster, name: str
) -> None:
    ran = [run("check", "api", name, "--cluster", cluster.url) for _ in range(6)]

    assert [each.status for each in ran] == [0] * 5 + [1]
    assert ran[0].out == "allowed: 4 of 5/year fixed_window left\n"
    assert ran[5].out.startswith("denied by 5/year fixed_window: retry after ")


def test_every_node_is_asked_for_the_same_budget(run: Run, cluster: DemoCluster, name: str) -> None:
    left = [
        run("check", "api", name, "--json", "--cluster", url).row["remaining"]
        for url in urls_of(cluster)
    ]

    assert left == [4, 3]


def urls_of(cluster: DemoCluster) -> list[str]:
    """Return an address for each node, with which a client asks only this node."""
    head, _, tail = cluster.url.partition("@")
    hosts, _, options = tail.partition("?")
    return [f"{head}@{host}?{options}" for host in hosts.split(",")]


def test_the_address_may_stand_in_the_environment(
    run: Run, cluster: DemoCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGFENCE_URL", cluster.url)

    assert run("check", "api", name).status == 0


def test_a_machine_reads_the_whole_decision(run: Run, cluster: DemoCluster, name: str) -> None:
    row = run("check", "api", name, "--cost", "2", "--json", "--cluster", cluster.url).row

    assert row["reset_after"] > 0
    del row["reset_after"]
    assert row == {
        "allowed": True,
        "limit": 5,
        "remaining": 3,
        "retry_after": 0.0,
        "delay": 0.0,
        "source": "owner",
        "permanent": False,
        "over_soft": False,
        "over_shadow": False,
        "rule": "api > client",
        "node": row["node"],
    }
    assert row["node"] in ("a", "b")


def test_a_machine_reads_which_node_decided(run: Run, cluster: DemoCluster, name: str) -> None:
    keys = [f"{name}-{number}" for number in range(24)]
    before = decided_by_node(run, cluster)

    reported = Counter(
        run("check", "api", key, "--json", "--cluster", cluster.url).row["node"] for key in keys
    )

    assert reported == decided_by_node(run, cluster) - before
    assert set(reported) == {"a", "b"}
    adhoc = run("check", "x", name, "--limit", "9/day", "--json", "--cluster", cluster.url).row
    assert decided_by_node(run, cluster) - before - reported == Counter([adhoc["node"]])
    assert run("check", "api", "free=x", "--json", "--cluster", cluster.url).row["node"] is None


def decided_by_node(run: Run, cluster: DemoCluster) -> Counter[str]:
    rows = run("members", "--json", "--cluster", cluster.url).row["members"]
    return Counter({row["name"]: row["counters"]["checks"] for row in rows})


def test_peek_spends_nothing_refund_gives_back_and_reset_is_for_those_who_may(
    run: Run, cluster: DemoCluster, name: str
) -> None:
    # Without the scope `refund`, a token may refund only at the node that answered its check.
    to = ("--cluster", urls_of(cluster)[0])
    run("check", "api", name, "--cost", "5", *to)

    peek = run("check", "api", name, "--peek", *to)
    refund = run("check", "api", name, "--refund", "--cost", "2", *to)
    reset = run("check", "api", name, "--reset", *to)

    assert peek.status == 1
    assert (refund.status, refund.out) == (0, "refunded: 2 of 5/year fixed_window left\n")
    assert "lacks the scope 'reset'" in refused(reset)


def test_a_charge_counts_past_the_limit_and_says_so(
    run: Run, cluster: DemoCluster, name: str
) -> None:
    to = ("--cluster", cluster.url)

    within, beyond = [run("check", "api", name, "--charge", "--cost", "4", *to) for _ in range(2)]
    denied = run("check", "api", name, *to)

    assert (within.status, within.out) == (0, "charged: 1 of 5/year fixed_window left\n")
    assert (beyond.status, beyond.out) == (0, "charged: 0 of 5/year fixed_window left\n")
    assert denied.status == 1


def test_several_descriptors_are_one_request(run: Run, cluster: DemoCluster, name: str) -> None:
    words = ("check", "api", name, "-d", f"{name},path=/a", "--json", "--cluster", cluster.url)

    assert [run(*words).status for _ in range(3)] == [0, 0, 1]
    assert (
        run("check", "api", name, "--peek", "--json", "--cluster", cluster.url).row["remaining"]
        == 3
    )


def test_an_ad_hoc_limit_needs_no_rule(run: Run, cluster: DemoCluster, name: str) -> None:
    words = ("check", "anything", name, "--limit", "1/day fixed_window", "--cluster", cluster.url)

    assert [run(*words).status for _ in range(2)] == [0, 1]


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("1/minute burst 10", "allowed: 9 of 10 left in the bucket of 1/minute burst 10\n"),
        ("1/minute burst 10 queue", "allowed: room for 9 of 10 in the queue\n"),
        ("5/year fixed_window", "allowed: 4 of 5/year fixed_window left\n"),
    ],
)
def test_what_is_left_is_compared_with_what_there_is(
    run: Run, cluster: DemoCluster, name: str, limit: str, said: str
) -> None:
    assert run("check", "x", name, "--limit", limit, "--cluster", cluster.url).out == said


def test_a_queueing_limit_says_when_ones_turn_comes(
    run: Run, cluster: DemoCluster, name: str
) -> None:
    words = ("check", "x", name, "--limit", "1/hour burst 10 queue", "--cluster", cluster.url)
    run(*words)

    said = run(*words).out

    assert said.startswith("allowed, in its turn after 3599.") or "after 3600.00 s" in said
    assert said.endswith(" s: room for 8 of 10 in the queue\n")


def test_an_unlimited_rule_is_named_and_is_not_taken_for_none(
    run: Run, cluster: DemoCluster
) -> None:
    ran = run("check", "api", "free=x", "--cluster", cluster.url)

    assert (ran.status, ran.out) == (0, "allowed: the rule api > free is unlimited\n")


def test_descriptors_may_stand_in_options_alone(run: Run, cluster: DemoCluster, name: str) -> None:
    words = ("check", "api", "-d", f"{name},path=/a", "--json", "--cluster", cluster.url)

    assert run(*words).row["rule"] == "api > client > path"


def test_what_a_shadow_rule_would_have_denied_is_said(
    run: Run, cluster: DemoCluster, name: str
) -> None:
    words = ("check", "api", f"watched={name}", "--cluster", cluster.url)
    run(*words)

    ran = run(*words)

    assert ran.status == 0
    assert "a shadow rule would have denied it" in ran.out


def test_a_request_that_meets_no_rule_is_allowed_and_says_so(
    run: Run, cluster: DemoCluster
) -> None:
    ran = run("check", "api", "colour=red", "--cluster", cluster.url)

    assert (ran.status, ran.out) == (
        0,
        "allowed: no rule applies to this request; rules of 'api' have the keys client, "
        "client > path, watched, closed, free\n",
    )


def test_a_misspelt_key_is_answered_with_the_one_that_was_meant(
    run: Run, cluster: DemoCluster
) -> None:
    ran = run("check", "api", "clinet=x", "--cluster", cluster.url)

    assert ran.status == 0
    assert ran.out.endswith("; did you mean 'client' by 'clinet'?\n")


def test_a_cost_over_the_limit_is_denied_for_good(
    run: Run, cluster: DemoCluster, name: str
) -> None:
    ran = run("check", "api", name, "--cost", "6", "--cluster", cluster.url)

    assert ran.status == 1
    assert (
        ran.out == "denied for good: cost 6 is more than 5/year fixed_window ever admits at once\n"
    )
    assert run("check", "api", "closed=x", "--cluster", cluster.url).status == 1


def test_why_names_the_rule_that_denies_and_who_decided(
    run: Run, cluster: DemoCluster, name: str
) -> None:
    to = ("--cluster", cluster.url)
    run("check", "api", "-d", f"{name},path=/a", "--cost", "2", *to)

    words = ("why", "api", name, "-d", f"{name},path=/a", "-d", "free=x", "-d", "clinet=x", *to)
    for_people, for_machines = run(*words), run(*words, "--json")

    rows = for_machines.row["descriptors"]
    assert (for_people.status, for_machines.status) == (1, 1)
    assert for_machines.row["allowed"] is False
    assert [row["allowed"] for row in rows] == [True, False, True, True]
    assert [row["rule"] for row in rows[:2]] == ["api > client", "api > client > path"]
    assert [row["remaining"] for row in rows[:2]] == [5, 0]
    lines = for_people.out.splitlines()
    assert lines[:4] == [
        f"{name}: allowed",
        "  rule: api > client",
        "  5 of 5/year fixed_window left",
        f"  decided by: node {rows[0]['node']}, its owner",
    ]
    assert lines[4:6] == [f"{name}, path=/a: denied", "  rule: api > client > path"]
    assert lines[6].startswith("  0 of 2/year fixed_window left; retry after ")
    assert lines[8] == "free=x: allowed, rule api > free is unlimited"
    assert lines[9] == "clinet=x: allowed, no rule applies"
    assert "did you mean 'client'" in lines[10]


def test_why_spends_nothing_and_knows_shadow_rules_and_limits_of_zero(
    run: Run, cluster: DemoCluster, name: str
) -> None:
    to = ("--cluster", cluster.url)
    assert [run("why", "api", name, *to).status for _ in range(7)] == [0] * 7
    run("check", "api", f"watched={name}", *to)

    shadow = run("why", "api", f"watched={name}", *to)
    closed = run("why", "api", "closed=x", *to)

    assert shadow.status == 0
    assert "denied, but only in shadow mode: the request passes" in shadow.out
    assert closed.status == 1
    assert "; the limit admits nothing" in closed.out
    denied = run("check", "api", "closed=x", *to)
    assert (denied.status, denied.out) == (1, "denied: the limit 0/year admits nothing\n")


def test_an_unknown_domain_is_refused_with_those_that_are_known(
    run: Run, cluster: DemoCluster
) -> None:
    said = refused(run("check", "ipa", "client=x", "--cluster", cluster.url))

    assert "no rules for domain 'ipa'; the cluster knows api" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "api"], "KEY=VALUE"),
        (["why", "api"], "nothing to explain: give KEY=VALUE words"),
        (["why", "ipa", "client=x"], "no rules for domain 'ipa'; the cluster knows api"),
        (["check", "api", "client"], "must be KEY=VALUE such as client=203.0.113.7, got 'client'"),
        (["check", "api", "=x"], "must be KEY=VALUE such as client=203.0.113.7, got '=x'"),
        (
            ["check", "api", "client=x", "-d", "a=b,c"],
            "must be KEY=VALUE such as client=203.0.113.7, got 'c'",
        ),
        (["check", "api", "client=x", "--cost", "-1"], "--cost"),
        (["check", "api", "client=x", "--cost", "many"], "--cost"),
        (["check", "api", "client=x", "--cost", str(2**60)], "cost"),
        (["check", "api", "client=x", "--limit", "100 per blue moon"], "blue moon"),
        (
            ["check", "api", "client=x", "--limit", "5/s", "-d", "a=b"],
            "--limit must be used without --descriptor",
        ),
        (["check", "api", "client=x", "--peek", "--reset"], "--peek and --reset do not go"),
        (["check", "api", "client=x", "--refund", "--reset"], "choose one"),
        (["check", "api", "client=x", "--peek", "--cost", "1"], "must be used without --cost"),
        (["check", "api", "client=x", "--frob"], "--frob"),
        (["chekc", "api"], "there is no command 'chekc'; did you mean 'check'?"),
        (["frobnicate", "api"], "there is no command 'frobnicate'; choose one of check, demo, "),
        (["keys", "add-tokn", "api"], "there is no command 'add-tokn'; did you mean 'add-token'?"),
        (["rules", "chek", "api"], "did you mean 'check'?"),
    ],
)
def test_words_that_make_no_sense_are_named(
    run: Run, cluster: DemoCluster, words: list[str], said: str
) -> None:
    assert said in refused(run(*words, *(["--cluster", cluster.url] if words[-1] != "api" else [])))


# Addresses, tokens, certificates


def test_no_address_at_all_says_how_to_give_one(run: Run) -> None:
    assert "no cluster address: pass --cluster" in refused(run("check", "api", "client=x"))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:7101", "must begin with ringfence://"),
        ("ringfence://", "must name a host"),
        ("ringfence://127.0.0.1:x", "got 'x' in address"),
        ("ringfence://secret@127.0.0.1", "use the line in a .token file"),
        ("ringfence://127.0.0.1?cs=x", "unknown option 'cs'"),
        ("ringfence://127.0.0.1?ca=nowhere.pem", "nowhere.pem"),
        ("ringfence://10.0.0.1", "beyond loopback"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_with_the_mend(
    run: Run, url: str, said: str
) -> None:
    message = refused(run("check", "api", "client=x", "--cluster", url))

    assert said in message
    assert "secret" not in message


def test_a_wrong_token_is_wrong_input(run: Run, cluster: DemoCluster) -> None:
    url = f"ringfence://demo.{'00' * 32}@{cluster.url.partition('@')[2]}"

    message = refused(run("check", "api", "client=x", "--cluster", url))

    assert "the token shown by 'demo' is not one this node knows" in message


def test_another_clusters_certificate_is_not_believed(
    run: Run, cluster: DemoCluster, tmp_path: Path
) -> None:
    write_keys(tmp_path / "keys", [], [], ["app:check"], 2)
    url = cluster.url.partition("?")[0] + f"?ca={tmp_path / 'keys' / 'ca.pem'}"

    assert "does not sign the certificate" in refused(
        run("check", "api", "client=x", "--cluster", url)
    )


def test_an_expired_ca_is_named_with_its_date(run: Run, tmp_path: Path) -> None:
    ca, _ = new_authority(datetime.now(UTC) - timedelta(days=30), days=1)
    (tmp_path / "ca.pem").write_bytes(ca)
    url = f"ringfence://127.0.0.1:7101?ca={tmp_path / 'ca.pem'}"

    assert "expired on" in refused(run("check", "api", "client=x", "--cluster", url))


def test_an_unreachable_cluster_has_its_own_exit_status(run: Run) -> None:
    message = refused(run("members", "--cluster", "ringfence://127.0.0.1:9?timeout=0.1"), 3)

    assert "no node of the cluster answered" in message
    assert "127.0.0.1:9" in message


# Members


def test_members_are_listed_with_their_own_figures(run: Run, cluster: DemoCluster) -> None:
    ran = run("members", "--json", "--cluster", cluster.url)
    [a, b] = ran.row["members"]

    assert ran.row["asked"] == "a"
    assert (a["name"], a["state"], a["reachable"]) == ("a", "alive", True)
    assert (b["name"], b["state"], b["reachable"]) == ("b", "alive", True)
    assert a["owned_shards"] + b["owned_shards"] == 16384
    assert a["counters"]["owned_shards"] == a["owned_shards"]
    assert a["rtt_ms"] is None
    assert b["rtt_ms"] > 0
    for row in (a, b):
        assert abs(row["clock_offset_ms"]) < 1000
        assert row["clock_suspect"] is False
        assert row["generation"] > 0
        assert row["datacenter"] == "dc1"


def test_members_are_a_tree_for_people(run: Run, cluster: DemoCluster) -> None:
    ran = run("members", "--cluster", cluster.url)

    assert ran.status == 0
    lines = ran.out.splitlines()
    assert lines[0] == "2 members, as a sees them"
    assert lines[1] == "└── dc1: 2 members"
    assert " ".join(lines[2].split()[1:9]) == (
        "name address state incarnation shards RTT clock version"
    )
    assert len(lines) == 5


def _member(name: str, **reported: object) -> dict[str, object]:
    counters = {"keys": 123_456, "checks": 12_345_678, "allowed": 11_111_111}
    return {
        "name": name,
        "address": "203.0.113.107:17101",
        "datacenter": "dc1",
        "zone": "",
        "state": "alive",
        "reachable": True,
        "incarnation": 3,
        "version": "0.1.0",
        "owned_shards": 5461,
        "rtt_ms": 0.4321,
        "clock_offset_ms": -1.25,
        "clock_suspect": False,
        "counters": counters,
    } | reported


def shown(width: int, *rows: dict[str, object]) -> list[str]:
    reported = StringIO()
    show_members(Console(file=reported, width=width), "node-north-1", list(rows))
    return reported.getvalue().splitlines()


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (60, "name address state"),
        (80, "name address state shards checks"),
        (120, "name address state shards RTT clock checks denied stood in"),
        (
            200,
            "name address zone state incarnation shards RTT clock version "
            "keys checks allowed denied forwarded stood in connections",
        ),
    ],
)
def test_members_are_one_table_with_the_columns_that_the_screen_holds(
    width: int, columns: str
) -> None:
    lines = shown(
        width,
        _member("node-north-1", zone="n", rtt_ms=None),
        _member("b", clock_offset_ms=None, clock_suspect=None, reachable=False, counters=None),
    )

    whole = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert "…" not in whole
    assert lines[2].split()[1:] == columns.split()
    assert "203.0.113.107:17101" in lines[4]
    assert "alive, silent" in lines[4]
    reported = " ".join(lines[5:])
    assert ("not shown for lack of width:" in reported) is (width < 200)
    assert ("version" in reported) is (width < 200)


def test_members_stand_under_their_data_center() -> None:
    lines = shown(200, _member("a"), _member("b", datacenter="dc2"), _member("c"))

    heads = [line for line in lines if "dc" in line]
    assert heads == ["├── dc1: 2 members", "└── dc2: 1 member"]
    assert "zone" not in "\n".join(lines)


def test_members_that_are_gone_are_not_counted_and_those_in_doubt_are_named() -> None:
    gone = {"reachable": False, "counters": None}
    lines = shown(
        200,
        _member("a"),
        _member("b", state="suspect", **gone),
        _member("c", state="left", **gone),
        _member("d", state="dead", **gone),
        _member("e", state="forwarding", clock_suspect=True),
    )

    assert lines[0].startswith("3 members (1 forwarding, 1 suspect), 1 dead, 1 left, as ")
    assert "suspect, silent" in lines[4]
    assert "silent" not in lines[5] + lines[6]
    assert "0.43 ms" not in lines[5] + lines[6]
    assert "-1.25 ms, far off" in lines[7]


def test_refused_rules_and_nodes_that_differ_are_said() -> None:
    alike = {"counters": {"rules_hash": 7, "rules_refused": 0}}
    older = {"counters": {"rules_hash": 8, "rules_refused": 1}, "version": "0.0.9"}
    calm = shown(160, _member("a", **alike), _member("b", **alike))
    lines = shown(
        160,
        _member("a", **alike),
        _member("b", **alike),
        _member("c", **older),
        _member("d", state="dead", counters=None, reachable=False, state_for_s=250.0, version="1"),
    )

    remarks = "\n".join(lines[lines.index(next(line for line in lines if "refused" in line)) :])
    assert "rules on disk refused by c, the old rules stay in force" in remarks
    assert "rules differ between a, b and c; give all nodes equal files" in remarks
    assert "software versions differ: 0.1.0 at a, b; 0.0.9 at c" in remarks
    assert "dead for 4 min" in "\n".join(lines)
    assert "refused" not in "".join(calm)
    assert "differ" not in "".join(calm)


def test_what_a_stranger_calls_itself_does_no_harm_on_a_screen() -> None:
    lines = shown(200, _member("a\x1b[2J", datacenter="\x1b]0;x"))

    assert "\x1b" not in "".join(lines)


# Leaving


def test_only_a_token_with_the_scope_may_have_a_member_leave(
    run: Run, cluster: DemoCluster
) -> None:
    assert "lacks the scope 'admin'" in refused(run("leave", "b", "--cluster", cluster.url))


def test_leave_needs_the_name_of_a_known_member(run: Run, cluster: DemoCluster) -> None:
    unknown = run("leave", "x", "--cluster", cluster.url)
    unnamed = run("leave", "--cluster", cluster.url)

    assert "no member is called 'x'; known are a, b" in refused(unknown)
    assert "because the address names 2 members; choose from: a, b" in refused(unnamed)


def test_leave_fails_when_no_member_answers(run: Run) -> None:
    ran = run("leave", "--cluster", "ringfence://127.0.0.1:9?timeout=0.1")

    assert "no node of the cluster answered" in refused(ran, 3)


# Nodes that do not start


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ruels = 3\n", "did you mean 'rules'"),
        ("join = [\n", "must be TOML, got: "),
        ('rules = "nowhere.yaml"\n', "nowhere.yaml"),
        ('rules = "bad.yaml"\n', "bad.yaml:2"),
        ('keys = "nowhere"\n', "ringfence keys new"),
        ('listen = "0.0.0.0:7101"\n', "run `ringfence keys new keys`"),
        ('join = ["127.0.0.1"]\nlisten = "127.0.0.1"\nweight = 5\n', "use 0.25 to 4"),
    ],
)
def test_a_node_with_wrong_settings_does_not_start_and_says_why(
    run: Run, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "bad.yaml").write_text("domain: api\nlimits: []\n", "utf-8")
    (tmp_path / "node.toml").write_text(text, "utf-8")

    ran = run("node", "--config", tmp_path / "node.toml", "--name", "a")

    assert said in refused(ran)


def test_a_missing_settings_file_is_named(run: Run) -> None:
    assert "nowhere.toml: no such file" in refused(run("node", "--config", "nowhere.toml"))


def test_an_expired_certificate_keeps_a_node_from_starting(run: Run, tmp_path: Path) -> None:
    keys = KeyDir(tmp_path / "keys")
    write_keys(keys.path, [], [], ["app:check"], 2)
    long_ago = datetime.now(UTC) - timedelta(days=30)
    certificate, key = issue(
        keys.ca.read_bytes(), keys.ca_key.read_bytes(), [], [], long_ago, days=1
    )
    keys.certificate.write_bytes(certificate)
    keys.key.write_bytes(key)

    message = refused(run("node", "--keys", keys.path))

    assert "node.pem expired on" in message
    assert "ringfence keys renew" in message


# Keys


def test_keys_are_made_and_the_next_steps_shown(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "keys"

    ran = run("keys", "new", directory, "--name", "a.example.org", "--address", "10.0.0.1")

    assert ran.status == 0
    assert f'set keys = "{directory}"' in ran.out
    assert "app.token" in ran.out
    assert stat.S_IMODE((directory / "node.key").stat().st_mode) == 0o600
    assert "exists" in refused(run("keys", "new", directory))


def test_keys_of_single_nodes_are_made(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "keys"

    made = run("keys", "new", directory, "--node", "a", "--node", "b", "--json")
    added = run("keys", "add-node", directory, "c", "--json")

    assert {"nodes/a.pem", "nodes/a.key", "nodes/b.pem", "nodes/b.key"} <= set(made.row["files"])
    assert "node.pem" not in made.row["files"]
    assert added.row["files"] == ["nodes/c.pem", "nodes/c.key"]
    assert "give --replace" in refused(run("keys", "add-node", directory, "c"))
    renewed = run("keys", "add-node", directory, "c", "--replace")
    assert f"wrote {directory}/nodes/c.pem" in renewed.out


def test_a_machine_reads_which_files_were_made(run: Run, tmp_path: Path) -> None:
    row = run("keys", "new", tmp_path / "keys", "--token", "web:check", "--json").row

    assert sorted(row["files"]) == sorted(path.name for path in (tmp_path / "keys").iterdir())
    assert "web.token" in row["files"]


def test_a_clusters_keys_grow_and_are_listed(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "keys"
    run("keys", "new", directory, "--node", "a", "--days", "20")

    added = run("keys", "add-token", directory, "batch:check", "--domain", "jobs")
    shown = run("keys", "show", directory)
    revoked = run("keys", "revoke-token", directory, "app")
    renewed = run("keys", "renew", directory, "--days", "90")
    row = run("keys", "show", directory, "--json").row

    assert added.out == (
        f"wrote {directory}/tokens.toml\nwrote {directory}/batch.token\n"
        "copy tokens.toml to every node and send each a SIGHUP\n"
    )
    for words in ("nodes/a.pem", "a.node.ringfence.internal", " 19 ", "batch", "jobs", "operator"):
        assert words in shown.out
    assert f"removed app from {directory}/tokens.toml\n" in revoked.out
    assert f"deleted {directory}/app.token\n" in revoked.out
    assert f"wrote {directory}/nodes/a.key\n" in renewed.out
    assert [each["name"] for each in row["tokens"]] == ["batch", "operator"]
    assert [each["file"] for each in row["certificates"]] == ["ca.pem", "nodes/a.pem"]
    assert row["certificates"][1]["days_left"] == 89
    assert "known are batch, operator" in refused(run("keys", "revoke-token", directory, "app"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--address", "a.example.org"], "give host names by --name"),
        (["--token", "app"], "NAME:SCOPE"),
        (["--token", "app:chekc"], "scopes are check, refund, reset, observe"),
        (["--days", "0"], "--days"),
    ],
)
def test_wrong_wishes_for_keys_are_named(
    run: Run, tmp_path: Path, words: list[str], said: str
) -> None:
    assert said in refused(run("keys", "new", tmp_path / "keys", *words))
    assert not (tmp_path / "keys").exists()


# Rules


def test_rules_are_shown_as_a_tree_with_what_is_to_be_known_of_each(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES.replace("key: watched", "key: watched\n    value: '[/x]*'"), "utf-8")

    ran = run("rules", "check", path)

    assert ran.status == 0
    assert "\n  client  5/year fixed_window\n" in ran.out
    assert "\n    path  2/year fixed_window\n" in ran.out
    assert "watched=[/x]*" in ran.out  # as it stands in the file, not as markup
    for words in ("identity ", "bytes per key", "shadow"):
        assert words in ran.out
    assert "usually at most 5 in any one period, in the worst case 10. A period can" in ran.out
    assert ran.out.endswith("5 rules are good\n")


def test_a_machine_reads_the_same(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES + "  - key: odd\n    shadow_mode: true\n", "utf-8")

    row = run("rules", "check", path, "--json").row

    assert row["count"] == 5
    assert [rule["label"] for rule in row["rules"]] == [
        *("api", "client", "path", "watched", "closed", "free", "odd")
    ]
    assert len(row["rules"][1]["identity"]) == 16
    assert (row["rules"][1]["usual"], row["rules"][1]["worst"]) == (5, 10)
    assert row["warnings"] == row["rules"][-1]["warnings"]
    assert "rules.yaml:17" in row["warnings"][0]


def test_warnings_stand_where_they_belong(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES + "  - key: odd\n    shadow_mode: true\n", "utf-8")

    ran = run("rules", "check", path)

    assert ran.status == 0
    assert "\n  odd\n      warning: " in ran.out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("domain: [", "not YAML"),
        ("domain: api\nlimits: []\n", "rules.yaml:2"),
        (RULES.replace("requests_per_unit: 5", "request_per_unit: 5"), "requests_per_unit"),
        (RULES.replace("fixed_window", "fixed_windw", 1), "fixed_window"),
        ("", "the file is empty"),
    ],
)
def test_rules_that_are_wrong_are_named_by_file_and_line(
    run: Run, tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text, "utf-8")

    message = refused(run("rules", "check", path))

    assert said in message
    assert "rules.yaml" in message


def test_a_missing_rule_file_is_named(run: Run, tmp_path: Path) -> None:
    assert "nowhere.yaml" in refused(run("rules", "check", tmp_path / "nowhere.yaml"))


def test_several_files_share_a_domain_when_merged(run: Run, tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(RULES, "utf-8")
    two.write_text("domain: api\ndescriptors:\n  - key: more\n", "utf-8")

    assert "already in" in refused(run("rules", "check", one, two))
    assert run("rules", "check", "--merge", one, two).status == 0


def test_a_single_rule_is_good_in_the_singular(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(
        "domain: x\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 1}\n",
        "utf-8",
    )

    assert run("rules", "check", path).out.endswith("\n1 rule is good\n")
    assert "is given twice" in refused(run("rules", "check", path, tmp_path / "." / "rules.yaml"))


# The command itself


def test_help_and_version_are_no_errors(run: Run) -> None:
    assert "Exit status" in run("--help").out
    assert run("--version").status == 0
    for verb in (
        "node",
        "demo",
        "check",
        "replay",
        "rules",
        "keys",
        "members",
        "leave",
        "throttled",
        "why",
    ):
        assert run(verb, "--help").status == 0


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES, "utf-8")
    reader, writer = os.pipe()
    os.close(reader)

    ended = subprocess.run(
        [sys.executable, "-m", "node.entry", "rules", "check", path],
        cwd=ROOT,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=90,
        check=False,
    )
    os.close(writer)

    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize(
    "words", [["rules", "check", "FILE"], ["rules", "check", "FILE", "--json"]]
)
def test_output_that_cannot_be_written_is_one_line(tmp_path: Path, words: list[str]) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES, "utf-8")

    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "node.entry", *(str(path) if w == "FILE" else w for w in words)],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=90,
            check=False,
        )

    assert ended.returncode == 2
    assert ended.stderr == (b"ringfence: the output cannot be written: No space left on device\n")
