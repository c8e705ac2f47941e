"""Laws of limits whose parts are divided between data centers (`mode: split`)."""

from dataclasses import replace

import pytest

from hashring import shard_of
from ringfence.rules.keys import encode_key
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import Source
from simulations.judging.broken_connections import Reset
from simulations.judging.disturbance import Disturbances
from simulations.judging.excuses import Excuses
from simulations.scenarios.scenario import Fault, Scenario
from tests.simulations.judging.invariants.judged_runs import (
    KNOWN,
    RULES,
    SLIDING,
    answered,
    borrowed,
    violations,
)


def test_the_parts_of_a_split_limit_are_one_limit():
    parts = {"parts": KNOWN["parts"]}
    here, there = ([answered(at, datacenter=dc) for at in (1.0, 2.0)] for dc in ("dc1", "dc2"))
    more = answered(3.0, datacenter="dc2")

    assert violations(parts, [*here, *there], datacenters=2) == []
    assert violations(parts, [*here, *there, more], datacenters=2) == ["over_admission"]


def test_each_part_of_a_split_bucket_drains_at_its_own_rate():
    parts = {"buckets": KNOWN["buckets"]}
    full = [answered(1.0, cost=3, datacenter="dc2")]  # The part is empty after 10 s.

    for at, found in ((6.0, []), (10.9, []), (11.1, ["wrong_denial"])):
        denied = answered(at, allowed=False, cost=3, datacenter="dc2")
        assert violations(parts, [*full, denied], datacenters=2) == found


def test_a_split_limit_with_one_data_center_is_read_with_its_own_answers():
    parts = {"parts": KNOWN["parts"]}
    answers = [answered(1.0), answered(2.0)]

    assert violations(parts, answers, {"dc1": 2}) == []
    assert violations(parts, answers, {"dc1": 1}) == ["lost_hits"]
    assert violations(parts, answers, {"dc1": 3}) == ["invented_hits"]


def test_units_that_a_data_center_without_clients_lent_of_a_split_limit_are_counted():
    parts = {"parts": KNOWN["parts"]}
    answers = [answered(1.0), answered(2.0), borrowed(3.0)]

    assert violations(parts, answers, {"dc1": 2, "dc2": 1}, datacenters=2) == []
    assert violations(parts, answers, {"dc1": 2, "dc2": 0}, datacenters=2) == ["lost_hits"]


@pytest.mark.parametrize(
    ("units", "at", "used", "found"),
    [
        (1, 12.0, 0, []),  # 0.8 units are in use in each part.
        (4, 9.0, 8, []),
        (4, 9.0, 4, ["lost_hits"]),
    ],
)
def test_each_part_of_a_split_sliding_window_rounds_down(units, at, used, found):
    text = SLIDING.replace("sliding_window", "sliding_window, global: {mode: split}")
    text = text.replace("unit: 3", f"unit: {2 * units}")
    rules = {"sliding": load_text(text).rules.rules()[0]}
    answers = [
        replace(answered(2.0, cost=units), remaining=0),
        replace(borrowed(2.2), cost=units, remaining=0),
    ]

    assert violations(rules, answers, {"dc1": used}, datacenters=2, end=at) == found


def test_units_that_a_data_center_lent_may_be_lost_when_it_loses_all_its_nodes():
    parts, crash = {"parts": KNOWN["parts"]}, Fault(3.5, "crash", 4, {"datacenter": "dc2"})
    answers = [answered(1.0), answered(2.0), borrowed(3.0)]

    for counted, found in (({"dc1": 2}, []), ({"dc1": 1}, ["lost_hits"])):
        assert violations(parts, answers, counted, datacenters=2, faults=[crash]) == found


@pytest.mark.parametrize(
    ("fault", "lasts", "expected"),
    [
        (Fault(2.5, "cut", 5, {"datacenter": "dc2"}), 0.5, []),
        (Fault(2.5, "busy", 5, {"node": "n2,n4,n6", "cost_ms": 20}), 0.5, []),
        (Fault(2.5, "cut", 5, {"datacenter": "dc2"}), 0.09, []),  # The connection was lost.
        (Fault(2.5, "busy", 5, {"node": "n2,n4,n6", "cost_ms": 20}), 0.09, ["invented_hits"]),
        (Fault(2.5, "errors", 5, {"node": "n2,n4,n6"}), 0.5, ["invented_hits"]),
        (Fault(2.5, "clock_step", 5, {"node": "n2,n4,n6", "by_s": -1}), 0.5, ["invented_hits"]),
        (None, 0.5, ["invented_hits"]),
    ],
)
def test_only_units_that_a_fault_held_up_stay_counted_where_they_are(fault, lasts, expected):
    parts = {"parts": KNOWN["parts"]}
    denied = replace(borrowed(3.0), allowed=False, answered_at=3.0 + lasts)
    answers, counted = [answered(1.0), answered(2.0), denied], {"dc1": 2, "dc2": 1}
    faults = [] if fault is None else [fault]

    assert violations(parts, answers, counted, datacenters=2, faults=faults) == expected
    counted["dc2"] = 2
    found = violations(parts, answers, counted, datacenters=2, faults=faults)
    assert found == ["invented_hits"]


@pytest.mark.parametrize(
    ("fault", "lasts", "datacenters", "most"),
    [
        (Fault(2.5, "busy", 5, {"node": "n2", "cost_ms": 20}), 0.09, 3, 1),
        (Fault(2.5, "busy", 5, {"node": "n2,n3", "cost_ms": 20}), 0.09, 3, 1),
        (
            Fault(2.5, "busy", 5, {"node": "n2", "cost_ms": 20}),
            0.09,
            2,
            0,
        ),  # no third lender
        (Fault(2.5, "busy", 5, {"node": "n2", "cost_ms": 20}), 0.001, 3, 0),
        (Fault(5.0, "busy", 6, {"node": "n2", "cost_ms": 20}), 0.09, 3, 0),
        (Fault(2.5, "errors", 5, {"node": "n2"}), 0.09, 3, 0),
        (None, 0.09, 3, 0),
    ],
)
def test_a_lender_may_count_a_check_that_another_one_has_allowed_meanwhile(
    fault, lasts, datacenters, most
):
    rules = load_text(RULES.replace("unit: 4", "unit: 6")).rules.rules()
    parts = {"parts": next(rule for rule in rules if rule.path[-1][0] == "parts")}
    allowed = replace(answered(3.0), answered_at=3.0 + lasts)
    answers, faults = [answered(1.0), allowed], [] if fault is None else [fault]

    for lent in range(1, 4):
        found = violations(
            parts, answers, {"dc1": 1, "dc2": lent}, datacenters=datacenters, faults=faults
        )
        assert found == ["invented_hits"] * (lent > 1 + most)


@pytest.mark.parametrize(
    ("at", "pair", "lent", "expected"),
    [
        (2.9, ["owner", "lender"], 1, []),
        (3.2, ["owner", "lender"], 1, []),
        (3.2, ["owner", "lender"], 2, ["invented_hits"]),
        (2.7, ["owner", "lender"], 1, ["invented_hits"]),
        (3.6, ["owner", "lender"], 1, ["invented_hits"]),
        (3.2, ["standby", "lender"], 1, ["invented_hits"]),
    ],
)
def test_units_that_a_broken_connection_held_up_stay_counted_where_they_are(
    at, pair, lent, expected
):
    parts = {"parts": KNOWN["parts"]}
    scenario = Scenario("judged", "", nodes=6, datacenters=2)
    shard = shard_of(encode_key(KNOWN["parts"].id, ["k"]))
    here, there = (
        Excuses(scenario, Disturbances()).place(name, shard).hosts for name in ("dc1", "dc2")
    )
    names = {"owner": here[0], "standby": here[1], "lender": there[0]}
    resets = [Reset(at, frozenset(names.get(name, name) for name in pair))]
    denied = replace(borrowed(3.0), allowed=False, answered_at=3.5, client="client-0")
    answers, counted = [answered(1.0), answered(2.0), denied], {"dc1": 2, "dc2": lent}

    assert violations(parts, answers, counted, datacenters=2, resets=resets) == expected


def test_a_data_center_admits_more_than_its_part_only_after_a_round_trip():
    parts = {"parts": KNOWN["parts"]}
    part = [answered(1.0), answered(2.0)]

    assert violations(parts, [*part, borrowed(3.0)], datacenters=2) == []
    assert violations(parts, [*part, answered(3.0)], datacenters=2) == ["over_admission"]


def test_a_denial_is_wrong_while_its_part_has_room():
    parts = {"parts": KNOWN["parts"]}
    there = [answered(at, datacenter="dc2") for at in (1.0, 2.0)]
    denied = answered(3.0, allowed=False)

    assert violations(parts, [*there, answered(2.5), denied], datacenters=2) == ["wrong_denial"]
    assert violations(parts, [*there, answered(2.5), answered(2.7), denied], datacenters=2) == []


def test_the_parts_of_a_bucket_drain_slower_than_the_whole_bucket():
    rules = {"shares": KNOWN["shares"]}
    spent = [answered(1.0 + at / 100) for at in range(4)]

    assert violations(rules, spent, {"dc1": 3}, datacenters=2, end=3.0) == []
    assert violations(rules, spent, {"dc1": 4}, datacenters=2, end=3.0) == ["invented_hits"]
    assert violations(rules, [*spent, answered(1.4)], datacenters=2) == ["over_admission"]
    denied = answered(1.4, allowed=False)
    assert violations(rules, [*spent, denied], datacenters=2) == []


def test_each_part_of_a_small_bucket_holds_one_unit():
    rules = {"single": KNOWN["single"]}
    everywhere = [answered(1.0 + at / 100, datacenter=f"dc{at + 1}") for at in range(3)]

    assert violations(rules, everywhere, datacenters=3) == []
    again = [*everywhere, answered(1.1, datacenter="dc2")]
    assert violations(rules, again, datacenters=3) == ["over_admission"]


def test_a_cut_data_center_admits_its_part_and_lends_nothing():
    parts = {"parts": KNOWN["parts"]}
    cut = Fault(0.5, "cut", 20, {"datacenter": "dc2"})
    more = answered(3.0)
    denied = answered(3.0, allowed=False)

    def found(*answers):
        return violations(parts, answers, datacenters=2, faults=[cut])

    assert found(answered(1.0), answered(2.0), denied) == []
    assert found(answered(1.0), denied) == ["wrong_denial"]
    assert found(answered(1.0), answered(2.0), more) == ["over_admission"]


@pytest.mark.parametrize(
    ("source", "expected"), [(Source.OWNER, ["wrong_denial"]), (Source.STANDBY, [])]
)
def test_an_owner_may_borrow_for_a_check_that_its_standby_decided(source, expected):
    parts, first = {"parts": KNOWN["parts"]}, answered(1.0, cost=2)
    quick = answered(3.0, allowed=False, cost=2, source=source)
    elsewhere = answered(5.0, allowed=False, cost=2, datacenter="dc2")
    slow = [Fault(2.5, "slow", 20, {"node": "n1", "extra_ms": 300})]

    answers = [first, quick, elsewhere]
    assert violations(parts, answers, datacenters=2, faults=slow) == expected


def test_a_client_may_refund_what_an_owner_borrowed_after_the_standby_had_decided():
    parts, first = {"parts": KNOWN["parts"]}, answered(1.0, cost=2)
    quick = answered(3.0, allowed=False, cost=2, source=Source.STANDBY)
    again = answered(5.0, cost=2)
    crash = [Fault(2.5, "crash", 4, {"node": "n1"})]

    assert violations(parts, [first, again], datacenters=2, faults=crash) == ["over_admission"]
    assert violations(parts, [first, quick, again], datacenters=2, faults=crash) == []
