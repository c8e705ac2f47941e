"""Judging of counters with refunds: the units that the owner reads at the end."""

from dataclasses import replace

import pytest

from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import Source
from simulations.judging.broken_connections import BrokenConnections, Reset
from simulations.judging.invariants import Final, Invariants
from simulations.judging.ledger import Answered, Ledger
from simulations.scenarios.scenario import Network, Scenario

RULES = """
domain: sim
descriptors:
  - key: limited
    rate_limit: {unit: day, requests_per_unit: 5, algorithm: %s}
"""
SHARED = """
domain: sim
descriptors:
  - key: shared
    rate_limit: {unit: day, requests_per_unit: 5, algorithm: fixed_window, scope: global}
"""
BUCKET = """
domain: sim
descriptors:
  - key: bucket
    rate_limit: {period: 10s, requests_per_unit: 1, algorithm: token_bucket, burst: 2}
"""
ALGORITHMS = ("fixed_window", "sliding_window_log")
KEPT = [
    Answered(at, at + 0.001, "dc1", "k", 1, allowed=True, source=Source.OWNER) for at in (1.0, 3.0)
]
REFUNDED = replace(KEPT[0], asked_at=2.0, answered_at=2.001, refund_done_at=2.5)
IN_GROUP = replace(REFUNDED, in_denied_group=True)


def violations(algorithm, refunded, used, network=None, resets=(), more=()):
    [rule] = load_text(RULES % algorithm).rules.rules()
    ledger = Ledger()
    for answer in [*KEPT, *more]:
        ledger.add("limited", answer)
    ledger.add_refunded("limited", refunded)
    scenario = Scenario("judged", "", nodes=3, network=network or Network())
    final = Final({("dc1", "limited", "k"): used}, broken=BrokenConnections([*resets]))
    found = Invariants({"limited": rule}, scenario, 0.2, 0.0).violations(ledger, final, 30.0)
    return [each.property for each in found]


@pytest.mark.parametrize(("done_at", "used"), [(2.339, {2}), (2.361, {2, 3})])
def test_a_refund_from_a_log_with_an_age_may_be_50_ms_late(done_at, used):
    refunded = replace(REFUNDED, refund_age=0.3, refund_done_at=done_at)

    possible = {
        units for units in range(5) if not violations("sliding_window_log", refunded, units)
    }
    assert possible == used


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_reservation_is_judged_by_its_estimate_and_leaves_its_real_cost(algorithm):
    """Two of five units are used, so three fit. Two of these are refunded."""
    kept = replace(REFUNDED, cost=1, estimate=3, refund_done_at=float("inf"), remaining=0)
    refunded = replace(REFUNDED, cost=2, asked_at=3.5, answered_at=3.501, refund_age=0.5)
    refunded = replace(refunded, refund_done_at=4.01)
    kept = replace(kept, asked_at=3.5, answered_at=3.501)

    def found(used, **changes):
        return violations(algorithm, refunded, used, more=[replace(kept, **changes)])

    assert [found(used) for used in (2, 3, 4)] == [["lost_hits"], [], ["invented_hits"]]
    assert found(3, remaining=2) == ["remaining"]
    too_large = violations(
        algorithm,
        replace(refunded, cost=3),
        3,
        more=[replace(kept, estimate=4, remaining=None)],
    )
    assert too_large == ["over_admission"]


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


BETWEEN_NODES = frozenset({"n1", "n2"})
BREAK = Reset(2.2, BETWEEN_NODES)


def test_the_refund_of_a_group_may_come_too_late_when_the_network_delays_it():
    used, faulty = range(1, 5), {"network": Network(resets=10.0), "resets": [BREAK]}
    assert [violations("sliding_window_log", IN_GROUP, units, **faulty) for units in used] == [
        ["lost_hits"],
        [],
        [],
        ["invented_hits"],
    ]
    assert violations("sliding_window_log", REFUNDED, 3, **faulty) == ["invented_hits"]


def test_lost_datagrams_delay_no_refund():
    """Refunds travel on connections. Only membership sends datagrams."""
    found = violations("sliding_window_log", IN_GROUP, 3, Network(loss=0.01))

    assert found == ["invented_hits"]


@pytest.mark.parametrize(
    "resets",
    [
        [],
        [Reset(1.5, BETWEEN_NODES), Reset(2.6, BETWEEN_NODES)],
        [Reset(2.2, frozenset({"n1", "client-7"}))],
    ],
)
def test_only_a_break_near_a_refund_delays_it(resets):
    found = violations("sliding_window_log", IN_GROUP, 3, Network(resets=10.0), resets)

    assert found == ["invented_hits"]


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ({"dc1": 2, "dc2": 2}, []),
        ({"dc1": 2, "dc2": 3}, []),
        ({"dc1": 3, "dc2": 2}, ["agreement"]),
        ({"dc1": 2, "dc2": 1}, ["agreement"]),
        ({"dc1": 2, "dc2": 4}, ["agreement"]),
    ],
)
def test_another_data_center_may_keep_a_refunded_unit_that_it_has_received(used, expected):
    [rule] = load_text(SHARED).rules.rules()
    ledger = Ledger()
    for answer in [KEPT[0], replace(KEPT[1], datacenter="dc2")]:
        ledger.add("shared", answer)
    ledger.add_refunded("shared", REFUNDED)
    scenario = Scenario("judged", "", nodes=4, datacenters=2)
    final = Final({(where, "shared", "k"): units for where, units in used.items()})
    found = Invariants({"shared": rule}, scenario, 0.2, 0.0).violations(ledger, final, 30.0)
    assert [each.property for each in found] == expected


@pytest.mark.parametrize(("retry_after", "expected"), [(7.0, []), (6.9, ["retry_after"])])
def test_a_group_that_one_member_denied_left_nothing_in_a_bucket(retry_after, expected):
    [rule] = load_text(BUCKET).rules.rules()
    ledger = Ledger()
    for answer in [replace(KEPT[0], asked_at=0.999, answered_at=1.0), replace(KEPT[0], cost=1)]:
        ledger.add("bucket", answer)
    for number in range(50):
        at = 1.1 + number / 100
        passing = replace(IN_GROUP, asked_at=at, answered_at=at + 0.001, refund_done_at=at + 0.101)
        ledger.add_refunded("bucket", passing)
    denied = replace(KEPT[0], asked_at=4.0, answered_at=4.001, allowed=False)
    ledger.add("bucket", replace(denied, retry_after=retry_after))
    found = Invariants({"bucket": rule}, Scenario("judged", "", nodes=3), 0.2, 0.0).violations(
        ledger, Final(), 30.0
    )
    assert [each.property for each in found] == expected
