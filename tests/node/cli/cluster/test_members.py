"""Commands `ringfence members` and `ringfence leave`."""

import pytest

from node.demo.cluster import DemoCluster
from tests.invocation import Run, refused
from tests.node.cli.cluster_rules import render_members

# Members


def test_members_are_listed_with_their_own_figures(run: Run, cluster: DemoCluster) -> None:
    result = run("members", "--json", "--cluster", cluster.url)
    [a, b] = result.row["members"]

    assert result.row["asked"] == "a"
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


def test_members_are_shown_as_a_tree(run: Run, cluster: DemoCluster) -> None:
    result = run("members", "--cluster", cluster.url)

    assert result.status == 0
    lines = result.out.splitlines()
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


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (60, "name address state"),
        (80, "name address state shards checks"),
        (120, "name address state shards RTT clock checks denied as standby"),
        (
            200,
            "name address zone state incarnation shards RTT clock version "
            "keys checks allowed denied forwarded as standby connections",
        ),
    ],
)
def test_members_are_one_table_with_the_columns_that_fit_the_width(
    width: int, columns: str
) -> None:
    lines = render_members(
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


def test_members_are_listed_under_their_data_center() -> None:
    lines = render_members(200, _member("a"), _member("b", datacenter="dc2"), _member("c"))

    heads = [line for line in lines if "dc" in line]
    assert heads == ["├── dc1: 2 members", "└── dc2: 1 member"]
    assert "zone" not in "\n".join(lines)


def test_dead_and_left_members_are_not_counted_and_suspects_are_named() -> None:
    unreachable = {"reachable": False, "counters": None}
    lines = render_members(
        200,
        _member("a"),
        _member("b", state="suspect", **unreachable),
        _member("c", state="left", **unreachable),
        _member("d", state="dead", **unreachable),
        _member("e", state="forwarding", clock_suspect=True),
    )

    assert lines[0].startswith("3 members (1 forwarding, 1 suspect), 1 dead, 1 left, as ")
    assert "suspect, silent" in lines[4]
    assert "silent" not in lines[5] + lines[6]
    assert "0.43 ms" not in lines[5] + lines[6]
    assert "-1.25 ms, far off" in lines[7]


def test_rejected_rules_and_differences_between_nodes_are_reported() -> None:
    current = {"counters": {"rules_hash": 7, "rules_refused": 0}}
    outdated = {"counters": {"rules_hash": 8, "rules_refused": 1}, "version": "0.0.9"}
    healthy = render_members(160, _member("a", **current), _member("b", **current))
    lines = render_members(
        160,
        _member("a", **current),
        _member("b", **current),
        _member("c", **outdated),
        _member("d", state="dead", counters=None, reachable=False, state_for_s=250.0, version="1"),
    )

    remarks = "\n".join(lines[lines.index(next(line for line in lines if "refused" in line)) :])
    assert "rules on disk refused by c, the old rules stay in force" in remarks
    assert "rules differ between a, b and c; give all nodes equal files" in remarks
    assert "software versions differ: 0.1.0 at a, b; 0.0.9 at c" in remarks
    assert "dead for 4 min" in "\n".join(lines)
    assert "refused" not in "".join(healthy)
    assert "differ" not in "".join(healthy)


def test_evicted_counters_are_reported() -> None:
    lines = render_members(
        160,
        _member("a", counters={"evicted": 1200}),
        _member("b", counters={"evicted": 0}),
        _member("c", counters={"evicted": 3}),
    )

    assert (
        "counters were evicted by a (1200), c (3), so their limits admit too much; "
        "raise max_keys or max_bytes there"
    ) in lines


def test_control_characters_in_member_names_are_not_printed() -> None:
    lines = render_members(200, _member("a\x1b[2J", datacenter="\x1b]0;x"))

    assert "\x1b" not in "".join(lines)


# Leaving


def test_only_a_token_with_the_admin_scope_can_make_a_member_leave(
    run: Run, cluster: DemoCluster
) -> None:
    assert "lacks the scope 'admin'" in refused(run("leave", "b", "--cluster", cluster.url))


def test_leave_needs_the_name_of_a_known_member(run: Run, cluster: DemoCluster) -> None:
    unknown = run("leave", "x", "--cluster", cluster.url)
    unnamed = run("leave", "--cluster", cluster.url)

    assert "no member is called 'x'; known are a, b" in refused(unknown)
    assert "because the address names 2 members; choose from: a, b" in refused(unnamed)


def test_leave_fails_when_no_member_answers(run: Run) -> None:
    result = run("leave", "--cluster", "ringfence://127.0.0.1:9?timeout=0.1")

    assert "no node of the cluster answered" in refused(result, 3)
