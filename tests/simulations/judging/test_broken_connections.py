from dataclasses import replace

import pytest

from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import Source
from simulations.judging.broken_connections import BrokenConnections, Deciders, Reset
from simulations.judging.invariants import Final, Invariants
from simulations.judging.ledger import Answered, Ledger
from simulations.scenarios.scenario import Scenario

NODES = {"n1": "dc1", "n2": "dc1", "n3": "dc1", "n4": "dc2"}
ANSWER = Answered(5.0, 5.1, "dc1", "k", 1, True, Source.STANDBY, client="client-0")
DECIDERS = Deciders("n1", "n2")
CLIENT, FORWARDER, STANDBY = ("client-0", "n1"), ("n3", "n1"), ("n2", "n1")


def reset(at, hosts):
    return Reset(at, frozenset(hosts))


def violations(*resets, answer=ANSWER, beside=None, deciders=DECIDERS, rules=(), is_undone=False):
    """Return the violated laws; `beside` is an answer for another limit, `near`. With `is_undone`,
    `answer` was allowed in a group that `beside` denies."""
    ledger = Ledger()
    if beside is not None:
        ledger.add("near", beside)
    (ledger.add_refunded if is_undone else ledger.add)("day", answer)

    def deciders_of(datacenter, rule, key):
        return {deciders} if (datacenter, rule, key) == ("dc1", "day", "k") else set()

    broken = BrokenConnections([*resets], NODES, deciders_of, "regions")
    scenario = Scenario("judged", "", nodes=4, datacenters=2)
    found = Invariants(dict(rules), scenario, 0.2, 0.0).violations(
        ledger, Final(broken=broken), 30.0
    )
    return [each.property for each in found]


@pytest.mark.parametrize("asker", [CLIENT, FORWARDER])
@pytest.mark.parametrize("at", [4.81, 5.0, 5.1])
def test_a_standby_may_decide_while_the_owner_has_lost_client_and_standby(asker, at):
    assert violations(reset(at, asker), reset(5.05, STANDBY)) == []
    assert violations(reset(5.05, asker), reset(at, STANDBY)) == []


def test_a_standby_must_not_decide_without_broken_connections():
    assert violations() == ["outage"]


def test_a_standby_must_not_decide_while_one_side_reaches_the_owner():
    assert violations(reset(5.0, CLIENT)) == ["outage"]
    assert violations(reset(5.0, STANDBY)) == ["outage"]


@pytest.mark.parametrize(
    "pair", [("client-1", "n1"), ("client-0", "n2"), ("client-0", "n3"), ("n4", "n1"), ("n3", "n2")]
)
def test_breaks_of_other_connections_explain_no_answer(pair):
    assert violations(reset(5.0, pair), reset(5.0, STANDBY)) == ["outage"]


@pytest.mark.parametrize("at", [4.79, 5.11])
def test_breaks_long_before_or_after_a_check_explain_no_answer(at):
    assert violations(reset(at, CLIENT), reset(5.0, STANDBY)) == ["outage"]
    assert violations(reset(5.0, CLIENT), reset(at, STANDBY)) == ["outage"]


@pytest.mark.parametrize("source", [Source.POLICY, Source.SHED])
def test_the_policy_must_not_decide_while_the_client_reaches_the_standby(source):
    answer = replace(ANSWER, source=source)
    assert violations(reset(5.0, CLIENT), reset(5.0, STANDBY), answer=answer) == ["outage"]


@pytest.mark.parametrize("source", [Source.POLICY, Source.LOCAL, Source.SHED])
@pytest.mark.parametrize("asker", ["client-0", "n3"])
def test_the_policy_may_decide_for_an_asker_that_has_lost_owner_and_standby(source, asker):
    answer = replace(ANSWER, source=source)
    to_owner, to_standby = reset(4.9, (asker, "n1")), reset(5.05, (asker, "n2"))
    assert violations(to_owner, to_standby, answer=answer) == []
    assert violations(to_owner, answer=answer) == ["outage"]
    assert violations(to_standby, answer=answer) == ["outage"]


def test_the_policy_must_not_decide_when_two_askers_have_lost_one_member_each():
    answer = replace(ANSWER, source=Source.POLICY)
    found = violations(reset(5.0, CLIENT), reset(5.0, ("n3", "n2")), answer=answer)
    assert found == ["outage"]


SHED = replace(ANSWER, source=Source.SHED)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"key": "other"}, ["outage"]),
        ({"client": "client-2"}, ["outage"]),
        ({"asked_at": 4.99}, ["outage"]),
        ({"source": Source.STANDBY}, ["outage"]),
    ],
)
def test_breaks_explain_that_the_policy_decides_the_whole_group_of_a_check(changed, expected):
    to_owner, to_standby = reset(4.9, CLIENT), reset(5.05, ("client-0", "n2"))
    beside = replace(SHED, **changed)
    assert violations(to_owner, to_standby, answer=SHED, beside=beside) == expected
    assert violations(to_owner, answer=SHED, beside=beside) == ["outage", "outage"]


def test_breaks_for_an_allowed_check_explain_that_the_policy_denies_its_group():
    to_owner, to_standby = reset(4.9, CLIENT), reset(5.05, ("client-0", "n2"))
    denied = replace(SHED, allowed=False, retry_after=1.0)
    assert violations(to_owner, to_standby, answer=SHED, beside=denied, is_undone=True) == []
    assert violations(to_owner, answer=SHED, beside=denied, is_undone=True) == ["outage"]


ELSEWHERE = {"n1": "dc2", "n2": "dc2", "n3": "dc1", "n4": "dc1"}
FAR = replace(ANSWER, source=Source.POLICY)


def far_violations(*resets, monkeypatch, answer=FAR):
    """Judge an answer for a key of the data center dc2, 34 ms away, asked by a client of dc1."""
    monkeypatch.setattr(f"{__name__}.NODES", ELSEWHERE)
    return violations(*resets, answer=answer)


@pytest.mark.parametrize("at", [4.6, 5.0])
def test_a_connection_to_another_data_center_takes_two_round_trips_to_return(at, monkeypatch):
    lost = reset(at, ("n3", "n1")), reset(5.0, ("n3", "n2"))
    assert far_violations(*lost, monkeypatch=monkeypatch) == []
    assert far_violations(lost[0], monkeypatch=monkeypatch) == ["outage"]
    long_ago = reset(4.59, ("n3", "n1"))
    assert far_violations(long_ago, lost[1], monkeypatch=monkeypatch) == ["outage"]


@pytest.mark.parametrize("source", [Source.POLICY, Source.SHED])
@pytest.mark.parametrize(("asked_at", "expected"), [(0.44, []), (0.46, ["outage"])])
def test_no_connection_to_another_data_center_exists_at_the_start(
    asked_at, expected, source, monkeypatch
):
    answer = replace(FAR, asked_at=asked_at, answered_at=0.9, source=source)
    assert far_violations(monkeypatch=monkeypatch, answer=answer) == expected
    nearby = replace(FAR, asked_at=asked_at, answered_at=0.9)
    monkeypatch.undo()
    assert violations(answer=nearby) == ["outage"]


def test_broken_connections_explain_only_keys_of_the_owner():
    others = Deciders("n2", "n1")
    found = violations(reset(5.0, CLIENT), reset(5.0, STANDBY), deciders=others)
    assert found == ["outage"]
    other_key = replace(ANSWER, key="other")
    assert violations(reset(5.0, CLIENT), reset(5.0, STANDBY), answer=other_key) == ["outage"]


SHARED = """
domain: sim
descriptors:
  - key: day
    rate_limit: {unit: day, requests_per_unit: 9, algorithm: fixed_window, %s}
"""


@pytest.mark.parametrize(
    ("how", "expected"), [("global: {mode: split}", []), ("scope: global", ["outage"])]
)
def test_a_client_asks_the_standby_too_while_the_owner_borrows(how, expected):
    rules = {"day": load_text(SHARED % how).rules.rules()[0]}
    assert violations(reset(5.0, STANDBY), rules=rules) == expected
    assert violations(reset(5.0, CLIENT), rules=rules) == ["outage"]
    quick = replace(ANSWER, answered_at=5.009)
    assert violations(reset(5.0, STANDBY), rules=rules, answer=quick) == ["outage"]
