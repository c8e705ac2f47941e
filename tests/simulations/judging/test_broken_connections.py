from dataclasses import replace

import pytest

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


def violations(*resets, answer=ANSWER, deciders=DECIDERS):
    ledger = Ledger()
    ledger.add("day", answer)
    broken = BrokenConnections([*resets], NODES, {("dc1", "day", "k"): {deciders}})
    scenario = Scenario("judged", "", nodes=4, datacenters=2)
    found = Invariants({}, scenario, 0.2, 0.0).violations(ledger, Final(broken=broken), 30.0)
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
def test_broken_connections_explain_no_decision_of_the_policy(source):
    answer = replace(ANSWER, source=source)
    assert violations(reset(5.0, CLIENT), reset(5.0, STANDBY), answer=answer) == ["outage"]


def test_broken_connections_explain_only_keys_of_the_owner():
    others = Deciders("n2", "n1")
    found = violations(reset(5.0, CLIENT), reset(5.0, STANDBY), deciders=others)
    assert found == ["outage"]
    other_key = replace(ANSWER, key="other")
    assert violations(reset(5.0, CLIENT), reset(5.0, STANDBY), answer=other_key) == ["outage"]
