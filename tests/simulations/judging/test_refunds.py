"""Judging of counters with refunds: the units that the owner reads at the end."""

from dataclasses import replace

import pytest

from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import Source
from simulations.judging.invariants import Final, Invariants
from simulations.judging.ledger import Answered, Ledger
from simulations.scenarios.scenario import Network, Scenario

RULES = """
domain: sim
descriptors:
  - key: limited
    rate_limit: {unit: day, requests_per_unit: 5, algorithm: %s}
"""
ALGORITHMS = ("fixed_window", "sliding_window_log")
KEPT = [
    Answered(at, at + 0.001, "dc1", "k", 1, allowed=True, source=Source.OWNER) for at in (1.0, 3.0)
]
REFUNDED = replace(KEPT[0], asked_at=2.0, answered_at=2.001, refund_done_at=2.5)
IN_GROUP = replace(REFUNDED, in_denied_group=True)


def violations(algorithm, refunded, used, network=None):
    [rule] = load_text(RULES % algorithm).rules.rules()
    ledger = Ledger()
    for answer in KEPT:
        ledger.add("limited", answer)
    ledger.add_refunded("limited", refunded)
    scenario = Scenario("judged", "", nodes=3, network=network or Network())
    final = Final({("dc1", "limited", "k"): used})
    found = Invariants({"limited": rule}, scenario, 0.2, 0.0).violations(ledger, final, 30.0)
    return [each.property for each in found]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("refunded", [REFUNDED, IN_GROUP])
@pytest.mark.parametrize(
    ("used", "expected"), [(2, []), (1, ["lost_hits"]), (3, ["invented_hits"])]
)
def test_refunded_units_are_given_back_exactly_once(algorithm, refunded, used, expected):
    assert violations(algorithm, refunded, used) == expected


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("refunded", [REFUNDED, IN_GROUP])
def test_an_unanswered_refund_may_be_lost_but_removes_no_other_unit(algorithm, refunded):
    unknown = replace(refunded, refund_done_at=float("inf"))
    assert [violations(algorithm, unknown, used) for used in (1, 2, 3, 4)] == [
        ["lost_hits"],
        [],
        [],
        ["invented_hits"],
    ]


@pytest.mark.parametrize("network", [Network(loss=0.01), Network(resets=10.0)])
def test_the_refund_of_a_group_may_come_too_late_when_the_network_delays_it(network):
    used = range(1, 5)
    assert [violations("sliding_window_log", IN_GROUP, units, network) for units in used] == [
        ["lost_hits"],
        [],
        [],
        ["invented_hits"],
    ]
    assert violations("sliding_window_log", REFUNDED, 3, network) == ["invented_hits"]
