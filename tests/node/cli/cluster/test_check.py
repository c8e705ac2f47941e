"""Commands `check`, `peek`, `charge`, `refund`, `reset` and `why`: decisions and exit statuses."""

from collections import Counter

import pytest

from node.cli.cluster.check import room_left
from node.demo.cluster import DemoCluster
from ringfence.client.decision import Status, decide
from ringfence.limiter import Limit
from ringfence.rules import Rule
from ringfence.wire import Source
from tests.invocation import Run, refused


def test_a_check_within_the_limit_is_allowed_and_one_beyond_is_denied(
    run: Run, cluster: DemoCluster, name: str
) -> None:
    results = [run("check", "api", name, "--cluster", cluster.url) for _ in range(6)]

    assert [each.status for each in results] == [0] * 5 + [1]
    assert results[0].out == "allowed: 4 left of 5/year fixed_window\n"
    assert results[5].out.startswith("denied by 5/year fixed_window: retry after ")


def test_all_nodes_share_one_limit(run: Run, cluster: DemoCluster, name: str) -> None:
    remaining = [
        run("check", "api", name, "--json", "--cluster", url).row["remaining"]
        for url in urls_of(cluster)
    ]

    assert remaining == [4, 3]


def urls_of(cluster: DemoCluster) -> list[str]:
    """Return one address per node. A client with this address uses only that node."""
    head, _, tail = cluster.url.partition("@")
    hosts, _, options = tail.partition("?")
    return [f"{head}@{host}?{options}" for host in hosts.split(",")]


def test_the_address_can_be_set_in_the_environment(
    run: Run, cluster: DemoCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGFENCE_URL", cluster.url)

    assert run("check", "api", name).status == 0


def test_json_output_has_all_fields_of_the_decision(
    run: Run, cluster: DemoCluster, name: str
) -> None:
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
        "hint": None,
    }
    assert row["node"] in ("a", "b")


def test_json_output_names_the_node_that_decided(run: Run, cluster: DemoCluster, name: str) -> None:
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


def test_peek_spends_nothing_refund_returns_units_and_reset_needs_its_scope(
    run: Run, cluster: DemoCluster, name: str
) -> None:
    # Without the scope `refund`, a token may refund only at the node that received its check.
    to, other = (("--cluster", url) for url in urls_of(cluster)[:2])
    run("check", "api", name, "--cost", "5", *to)
    ignored = run("check", "api", name, "--refund", "--cost", "2", *other)

    again = run("check", "api", name, "--refund", "--json", *other)
    peek = run("check", "api", name, "--peek", *to)
    refund = run("check", "api", name, "--refund", "--cost", "2", *to)
    partial = run("check", "api", name, "--refund", "--cost", "4", *to)
    reset = run("check", "api", name, "--reset", *to)

    assert again.row["refunded"] == 0
    assert ignored.out.startswith("refunded nothing, because no units were spent, or the token")
    assert peek.status == 1
    assert (refund.status, refund.out) == (0, "refunded 2 units: 2 left of 5/year fixed_window\n")
    assert partial.out == "refunded 3 of 4 units: 5 left of 5/year fixed_window\n"
    assert "lacks the scope 'reset'" in refused(reset)


def test_a_charge_beyond_the_limit_is_counted_and_reported(
    run: Run, cluster: DemoCluster, name: str
) -> None:
    to = ("--cluster", cluster.url)

    within, beyond = [run("check", "api", name, "--charge", "--cost", "4", *to) for _ in range(2)]
    denied = run("check", "api", name, *to)

    assert (within.status, within.out) == (0, "charged: 1 left of 5/year fixed_window\n")
    assert beyond.status == 0
    assert beyond.out.startswith(
        "charged beyond the limit: 0 left of 5/year fixed_window; checks are denied for "
    )
    assert beyond.out.endswith(" s, until the debt is repaid\n")
    assert denied.status == 1


def test_several_descriptors_are_one_request(run: Run, cluster: DemoCluster, name: str) -> None:
    words = ("check", "api", name, "-d", f"{name},path=/a", "--json", "--cluster", cluster.url)

    assert [run(*words).status for _ in range(3)] == [0, 0, 1]
    assert (
        run("check", "api", name, "--peek", "--json", "--cluster", cluster.url).row["remaining"]
        == 3
    )


def test_an_ad_hoc_limit_needs_no_rule(run: Run, cluster: DemoCluster, name: str) -> None:
    words = ("check", "anything", name, "--limit", "1/year fixed_window", "--cluster", cluster.url)

    assert [run(*words).status for _ in range(2)] == [0, 1]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("1/minute burst 10", "allowed: 9 of 10 left in the bucket of 1/minute burst 10\n"),
        ("1/minute burst 10 queue", "allowed: room for 9 of 10 in the queue\n"),
        ("5/year fixed_window", "allowed: 4 left of 5/year fixed_window\n"),
    ],
)
def test_the_output_shows_the_remaining_units_and_the_limit(
    run: Run, cluster: DemoCluster, name: str, limit: str, expected: str
) -> None:
    assert run("check", "x", name, "--limit", limit, "--cluster", cluster.url).out == expected


def test_a_queueing_limit_reports_the_delay(run: Run, cluster: DemoCluster, name: str) -> None:
    words = ("check", "x", name, "--limit", "1/hour burst 10 queue", "--cluster", cluster.url)
    run(*words)

    output = run(*words).out

    assert output.startswith("allowed, in its turn after 3599.") or "after 3600.00 s" in output
    assert output.endswith(" s: room for 8 of 10 in the queue\n")


def test_an_unlimited_rule_is_named_in_the_output(run: Run, cluster: DemoCluster) -> None:
    result = run("check", "api", "free=x", "--cluster", cluster.url)

    assert (result.status, result.out) == (0, "allowed: the rule api > free is unlimited\n")


def test_descriptors_can_be_given_only_as_options(
    run: Run, cluster: DemoCluster, name: str
) -> None:
    words = ("check", "api", "-d", f"{name},path=/a", "--json", "--cluster", cluster.url)

    assert run(*words).row["rule"] == "api > client > path"


def test_a_denial_by_a_shadow_rule_is_reported(run: Run, cluster: DemoCluster, name: str) -> None:
    words = ("check", "api", f"watched={name}", "--cluster", cluster.url)
    run(*words)

    result = run(*words)

    assert result.status == 0
    assert "a shadow rule would have denied it" in result.out


def test_a_request_that_matches_no_rule_is_allowed_and_reported(
    run: Run, cluster: DemoCluster
) -> None:
    result = run("check", "api", "colour=red", "--cluster", cluster.url)

    assert (result.status, result.out) == (
        0,
        "allowed: no rule applies to this request; rules of 'api' have the keys client, "
        "client > path, watched, small, large, closed, free\n",
    )
    row = run("check", "api", "colour=red", "--json", "--cluster", cluster.url).row
    assert row["hint"].startswith("rules of 'api' have the keys client, ")


def test_a_strict_check_fails_only_when_no_rule_applies(run: Run, cluster: DemoCluster) -> None:
    missed = run("check", "api", "colour=red", "--strict", "--cluster", cluster.url)
    unlimited = run("check", "api", "free=x", "--strict", "--cluster", cluster.url)

    assert (missed.status, missed.out) == (2, "")
    assert "no rule applies to this request, and --strict is set; rules of 'api'" in missed.err
    assert (unlimited.status, unlimited.err) == (0, "")


def test_a_misspelt_key_is_reported_with_the_nearest_known_key(
    run: Run, cluster: DemoCluster
) -> None:
    result = run("check", "api", "clinet=x", "--cluster", cluster.url)

    assert result.status == 0
    assert result.out.endswith("; no rule has the key 'clinet': did you mean 'client'?\n")


def test_keys_in_the_wrong_order_are_reported_with_the_right_order(
    run: Run, cluster: DemoCluster
) -> None:
    result = run("check", "api", "path=/login", "client=x", "--cluster", cluster.url)

    assert result.status == 0
    assert result.out.endswith("; the order of the keys counts: did you mean 'client > path'?\n")


def test_keys_of_sibling_rules_in_one_descriptor_are_reported_with_the_option_for_two(
    run: Run, cluster: DemoCluster
) -> None:
    result = run("check", "api", "client=x", "watched=a b", "--cluster", cluster.url)
    nested = run("check", "api", "client=x", "path=/a", "colour=red", "--cluster", cluster.url)

    assert result.status == 0
    assert result.out.endswith(
        "; one descriptor with client and watched needs a nested rule 'client > watched'; "
        "to send a descriptor for each key, write client=x -d 'watched=a b'\n"
    )
    assert "one descriptor with" not in nested.out


def test_a_cost_over_the_limit_is_denied_permanently(
    run: Run, cluster: DemoCluster, name: str
) -> None:
    result = run("check", "api", name, "--cost", "6", "--cluster", cluster.url)

    assert result.status == 1
    assert (
        result.out
        == "denied permanently: cost 6 is more than 5/year fixed_window ever admits at once\n"
    )
    assert run("check", "api", "closed=x", "--cluster", cluster.url).status == 1


def test_why_names_the_rule_that_denies_and_the_node_that_decided(
    run: Run, cluster: DemoCluster, name: str
) -> None:
    to = ("--cluster", cluster.url)
    run("check", "api", "-d", f"{name},path=/a", "--cost", "2", *to)

    words = ("why", "api", name, "-d", f"{name},path=/a", "-d", "free=x", "-d", "clinet=x", *to)
    text_result, json_result = run(*words), run(*words, "--json")

    rows = json_result.row["descriptors"]
    assert (text_result.status, json_result.status) == (1, 1)
    assert json_result.row["allowed"] is False
    assert [row["allowed"] for row in rows] == [True, False, True, True]
    assert [row["rule"] for row in rows[:2]] == ["api > client", "api > client > path"]
    assert [row["remaining"] for row in rows[:2]] == [5, 0]
    lines = text_result.out.splitlines()
    assert lines[:4] == [
        f"{name}: allowed",
        "  rule: api > client",
        "  5 left of 5/year fixed_window",
        f"  decided by: node {rows[0]['node']}, its owner",
    ]
    assert lines[4:6] == [f"{name}, path=/a: denied", "  rule: api > client > path"]
    assert lines[6].startswith("  0 left of 2/year fixed_window; retry after ")
    assert lines[8] == "free=x: allowed, rule api > free is unlimited"
    assert lines[9] == "clinet=x: allowed, no rule applies"
    assert "did you mean 'client'" in lines[10]


def test_why_spends_nothing_and_explains_shadow_rules_and_limits_of_zero(
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


def test_why_denies_a_request_of_quota_rules_only_when_the_check_denies_it(
    run: Run, cluster: DemoCluster, name: str
) -> None:
    request = ("api", f"small={name}", "-d", f"large={name}", "--cluster", cluster.url)
    run("check", "api", f"small={name}", "--cluster", cluster.url)

    allowed, row = run("why", *request), run("why", *request, "--json").row
    check = run("check", *request)
    run("check", *request)
    denied, denied_check = run("why", *request), run("check", *request)

    assert (allowed.status, row["allowed"], check.status) == (0, True, 0)
    assert (denied.status, denied_check.status) == (1, 1)
    assert [each["allowed"] for each in row["descriptors"]] == [False, True]
    assert [each["quota"] for each in row["descriptors"]] == [True, True]
    reason = "denied, quota mode: only denials by all rules in quota mode deny the request"
    assert allowed.out.startswith(f"small={name}: {reason}\n")
    assert f"large={name}: allowed, quota mode\n" in allowed.out


def test_an_unknown_domain_is_rejected_with_the_known_domains(
    run: Run, cluster: DemoCluster
) -> None:
    message = refused(run("check", "ipa", "client=x", "--cluster", cluster.url))

    assert "domain 'ipa' has no rules" in message
    assert "there are rules for api" in message


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["check", "api"], "KEY=VALUE"),
        (["why", "api"], "nothing to explain: give KEY=VALUE words"),
        (["why", "ipa", "client=x"], "there are rules for api"),
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
        (["check", "api", "client=x", "--limit", "5/s", "--strict"], "--strict must be used"),
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
def test_invalid_arguments_are_reported(
    run: Run, cluster: DemoCluster, words: list[str], expected: str
) -> None:
    assert expected in refused(
        run(*words, *(["--cluster", cluster.url] if words[-1] != "api" else []))
    )


def test_unknown_remaining_units_are_not_shown_as_a_number() -> None:
    rule = Rule(1, "api", (("client", None),), Limit(5, 60))
    undecided = decide([Status(True, rule, 5, None, 0.0, 0.0, 0.0, Source.POLICY)])

    assert room_left(undecided) == "an unknown number of units left of 5/minute"
