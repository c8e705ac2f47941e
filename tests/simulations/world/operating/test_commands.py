"""Commands of an operator at the end of a run: each wrong answer is noticed."""

from types import SimpleNamespace

import pytest

from node.cli.cluster import check, leave, members, throttled, why
from node.metrics.node_queries import NodeQueries
from node.metrics.throttled_keys import ThrottledKeys
from node.node import Node
from node.requests.sessions.permissions import Permissions
from node.shards.transfers.handoff import Handoff
from ringfence.wire import Stats
from simulations.world import run
from simulations.world.operating import command_line, commands
from tests.simulations.world.operating import closing_phases


@pytest.fixture(autouse=True)
def always(monkeypatch):
    monkeypatch.setattr(run, "_COMMANDED", 1.0)
    monkeypatch.setattr(run, "_PAUSED", 0.0)
    monkeypatch.setattr(run, "_ROTATED", 0.0)


@pytest.fixture(params=[0.0, 1.0], ids=["usual", "half"])
def half(request, monkeypatch):
    """Set the share of runs that print JSON, change the rules of a node, and make a node leave."""
    monkeypatch.setattr(commands, "_HALF", request.param)


def violated(level="core", seed=1, **changes):
    return closing_phases.violated(level, seed, calm_load=2.0, **changes)


@pytest.mark.usefixtures("half")
@pytest.mark.parametrize("changes", [{}, {"bounded_refunds": True, "nodes": 4, "datacenters": 2}])
@pytest.mark.parametrize("level", ["core", "node"])
def test_the_commands_cause_no_violation(level, changes):
    assert violated(level, **changes) == set()


def test_a_node_that_was_restarted_counts_denials_from_the_first_query_on(monkeypatch):
    monkeypatch.setattr(run, "_ROTATED", 1.0)

    assert violated(bounded_refunds=True) == set()


def wrong_cell(cell):
    return lambda row, column: cell(row, {"checks": "allowed"}.get(column, column))


async def has_left(*_):
    return "left"


def verb(name, instead, cost=None):
    """Return a bug that makes one verb of `ringfence check` do the operation of another verb."""

    def bug(do):
        def wrong(limiter, verb, domain, request, units):
            if verb != name:
                return do(limiter, verb, domain, request, units)
            return do(limiter, instead, domain, request, units if cost is None else cost)

        return wrong

    return bug


TEXT, HALF = 0.0, 1.0
BUGS = {
    "a peek that spends": (TEXT, check, "_do", verb("peek", "check", 1)),
    "a check that spends one unit": (TEXT, check, "_do", verb("check", "check", 1)),
    "a charge that is denied": (TEXT, check, "_do", verb("charge", "check")),
    "a refund that does nothing": (TEXT, check, "_do", verb("refund", "peek")),
    "a reset that does nothing": (TEXT, check, "_do", verb("reset", "peek")),
    "a peek at an ad-hoc limit that spends": (TEXT, check, "_do_limit", verb("peek", "check", 1)),
    "one descriptor instead of two": (
        *(TEXT, check, "_do"),
        lambda do: (
            lambda limiter, verb, domain, each, cost: do(limiter, verb, domain, each[:1], cost)
        ),
    ),
    "no remaining units": (
        HALF,
        check,
        "decision_row",
        lambda f: lambda d: f(d) | {"remaining": 0},
    ),
    "no deciding node": (HALF, check, "node_of", lambda _: lambda *_: None),
    "no hint": (TEXT, check, "keys_hint", lambda _: lambda *_: ""),
    "the limit as remaining units": (
        TEXT,
        check,
        "room_left",
        lambda _: lambda d: f"{d.limit} left",
    ),
    "no refunded units": (TEXT, check, "_what_was_done", lambda _: lambda *_: "refunded nothing"),
    "no lines of why": (TEXT, why, "_lines", lambda _: lambda _: iter(())),
    "no rule in why": (TEXT, why, "decision_row", lambda f: lambda d: f(d) | {"rule": None}),
    "an allowed request in why": (
        *(TEXT, why, "decision_row"),
        lambda f: lambda d: f(d) | {"allowed": not d.allowed},
    ),
    "no node in why": (TEXT, why, "node_of", lambda _: lambda *_: None),
    "no remarks": (HALF, members, "_remarks", lambda _: lambda _: []),
    "a wrong number of members": (TEXT, members, "_count", lambda _: lambda _: "7 members"),
    "a wrong column": (TEXT, members, "_cell", wrong_cell),
    "members that do not answer": (
        *(TEXT, members, "_row_of"),
        lambda f: lambda peer, _, counters: f(peer, None, counters),
    ),
    "the denials of one node": (
        *(TEXT, throttled, "joined"),
        lambda f: lambda lists: f(dict([*lists.items()][:1])),
    ),
    "no node of a denied key": (TEXT, throttled, "_decider", lambda _: lambda _: ""),
    "no name of a denied key": (TEXT, throttled, "_name", lambda _: lambda _: ""),
    "a leave that does not wait": (HALF, leave, "_state_of", lambda _: has_left),
    "one status of all errors": (TEXT, command_line, "exit_status", lambda _: lambda _: 2),
}
"""Bugs by description: the value of `_HALF`, and a function with its replacement."""


def test_a_request_is_denied_by_all_its_rules_in_quota_mode():
    def peek(allowed, quota):
        return SimpleNamespace(allowed=allowed, rule=SimpleNamespace(quota=quota))

    allowed, plain, spent = peek(True, True), peek(True, False), peek(False, True)
    assert not commands._is_denied([plain, allowed, spent])
    assert commands._is_denied([plain, spent, spent])
    assert commands._is_denied([peek(False, False), allowed])
    assert not commands._is_denied([])


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_a_command_is_noticed(monkeypatch, bug):
    share, module, name, replace = BUGS[bug]
    monkeypatch.setattr(commands, "_HALF", share)
    monkeypatch.setattr(module, name, replace(getattr(module, name)))

    assert violated() == {"commands"}


WRONG_ROWS = [
    *({"state": "suspect"}, {"zone": "z9"}, {"datacenter": "dc9"}, {"owned_shards": 5000}),
    *({"rtt_ms": None}, {"port": 1}, {"clock_suspect": True}, {"version": "9"}),
]


@pytest.mark.parametrize("changes", WRONG_ROWS, ids=lambda changes: next(iter(changes)))
def test_a_wrong_row_of_a_member_is_noticed(monkeypatch, changes):
    query = NodeQueries.peers

    def wrong(self, seq):
        found = query(self, seq)
        for row in found.plain[:2]:
            row.update(changes)
        return found

    monkeypatch.setattr(NodeQueries, "peers", wrong)

    assert "commands" in violated()


def test_a_wrong_counter_of_a_member_is_noticed(monkeypatch):
    stats = NodeQueries.stats

    def once_more(self, seq):
        found = stats(self, seq)
        self._reads = getattr(self, "_reads", 0) + 1
        return Stats(seq, found.counters | {"keys": self._reads})

    monkeypatch.setattr(NodeQueries, "stats", once_more)

    assert "commands" in violated()


def test_a_denial_that_is_not_counted_is_noticed(monkeypatch):
    denied = ThrottledKeys.denied
    monkeypatch.setattr(ThrottledKeys, "denied", lambda self, keys: denied(self, keys[1:]))

    assert "commands" in violated()


def test_a_scope_that_no_node_requires_is_noticed(monkeypatch):
    monkeypatch.setattr(Permissions, "may", lambda *_: True)

    assert "commands" in violated(bounded_refunds=True)


@pytest.mark.parametrize(
    ("kind", "name"), [(Node, "ask_to_leave"), (Handoff, "wait_all_transferred")]
)
def test_a_leave_that_fails_is_noticed(monkeypatch, kind, name):
    monkeypatch.setattr(commands, "_HALF", HALF)

    async def nothing(*_):
        return None

    monkeypatch.setattr(kind, name, nothing if kind is Handoff else lambda _: None)

    assert violated() == {"commands"}
