from dataclasses import replace

import pytest

from hashring import Member, Ring, shard_of
from ringfence.rules.keys import encode_key
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import Source
from simulations.judging.broken_connections import Reset
from simulations.judging.disturbance import Disturbances
from simulations.judging.excuses import Excuses
from simulations.judging.invariants import Final, Invariants
from simulations.judging.ledger import Answered, Ledger
from simulations.scenarios.scenario import Fault, Scenario

RULES = """
domain: sim
descriptors:
  - key: day
    rate_limit: {unit: day, requests_per_unit: 3, algorithm: fixed_window}
  - key: log
    rate_limit: {period: 10s, requests_per_unit: 3, algorithm: sliding_window_log}
  - key: bucket
    rate_limit: {unit: second, requests_per_unit: 1, algorithm: token_bucket, burst: 3}
  - key: log_day
    rate_limit: {unit: day, requests_per_unit: 3, algorithm: sliding_window_log}
  - key: world
    rate_limit: {unit: minute, requests_per_unit: 600, algorithm: sliding_window, scope: global}
  - key: parts
    rate_limit: {unit: day, requests_per_unit: 4, algorithm: fixed_window, global: {mode: split}}
  - key: buckets
    rate_limit: {period: 10s, requests_per_unit: 6, algorithm: leaky_bucket, global: {mode: split}}
  - key: shared
    rate_limit: {period: 10s, requests_per_unit: 10, algorithm: token_bucket, scope: global}
  - key: shares
    rate_limit: {period: 4s, requests_per_unit: 8, algorithm: token_bucket, global: {mode: split}}
  - key: single
    rate_limit:
      {period: 5s, requests_per_unit: 9, algorithm: token_bucket, burst: 1, global: {mode: split}}
"""
RING = Ring.of([Member(f"n{number}", "dc1", "z1") for number in range(1, 7)])
SLIDING = """
domain: sim
descriptors:
  - key: sliding
    rate_limit: {period: 10s, requests_per_unit: 3, algorithm: sliding_window}
"""
KNOWN = {rule.path[-1][0]: rule for rule in load_text(RULES).rules.rules()}
DAY = {"day": KNOWN["day"]}
UNKNOWN = 60.0
"""Retry time of denials whose retry time a test does not check."""
CRASH = (Fault(1, "crash", 2, {"node": "n1"}),)


def answered(at, *, allowed=True, datacenter="dc1", retry_after=None, cost=1, source=Source.OWNER):
    if not allowed and retry_after is None:
        retry_after = UNKNOWN
    return Answered(at, at + 0.001, datacenter, "k", cost, allowed, source, retry_after=retry_after)


def charged(at, cost, source=Source.OWNER):
    return Answered(at, at + 0.001, "dc1", "k", cost, True, source, is_charge=True)


def violations(
    rules, answers, used=None, *, faults=(), datacenters=1, late=(), end=30.0, resets=()
):
    ledger = Ledger()
    name = next(iter(rules))
    for answer in answers:
        ledger.add(name, answer)
    for asked in late:
        ledger.ask(name, "k", asked)
    final = Final({(where, name, "k"): units for where, units in (used or {}).items()})
    final.broken.resets += resets
    scenario = Scenario("judged", "", nodes=6, datacenters=datacenters, faults=tuple(faults))
    invariants = Invariants(rules, scenario, 0.2, 0.0)
    is_timed = any(each.retry_after not in (None, UNKNOWN) for each in answers)
    found = [each.property for each in invariants.violations(ledger, final, end)]
    return [each for each in found if is_timed or each != "retry_after"]


ALL = [answered(1.0), answered(2.0), answered(3.0)]


def test_a_correct_run_has_no_violation():
    assert violations(DAY, [*ALL, answered(4.0, allowed=False)]) == []


def test_an_unanswered_check_violates_the_deadline():
    assert violations(DAY, ALL, late=[20.0]) == ["deadline"]
    assert violations(DAY, ALL, late=[29.0]) == []


@pytest.mark.parametrize("retry_after", [0.0, -1.0, 1e9])
def test_a_denial_must_have_a_retry_time(retry_after):
    denied = answered(4.0, allowed=False, retry_after=retry_after)

    assert violations(DAY, [*ALL, denied]) == ["retry_after"]


def test_one_window_admits_its_amount_only_once():
    assert "over_admission" in violations(DAY, [*ALL, answered(4.0)])


def test_charges_count_exactly_beyond_the_limit():
    answers = [answered(1.0), charged(2.0, 7), charged(3.0, 5), answered(4.0, allowed=False)]

    assert violations(DAY, answers, {"dc1": 13}) == []
    assert violations(DAY, answers, {"dc1": 12}) == ["lost_hits"]
    assert violations(DAY, answers, {"dc1": 14}) == ["invented_hits"]
    assert violations(DAY, [*answers, charged(5.0, 9, Source.POLICY)], {"dc1": 13}) == ["outage"]


@pytest.mark.parametrize("rule", ["day", "log"])
def test_a_check_that_passes_after_an_overdrawing_charge_is_over_admission(rule):
    rules = {rule: KNOWN[rule]}

    assert violations(rules, [charged(1.0, 3)]) == []
    assert violations(rules, [charged(1.0, 3), answered(2.0)]) == ["over_admission"]
    assert violations(rules, [charged(1.0, 2), answered(2.0)]) == []


def test_a_bucket_in_debt_admits_nothing_until_it_has_drained():
    rules = {"bucket": KNOWN["bucket"]}
    debt = [charged(1.0, 9)]

    assert violations(rules, [*debt, answered(6.5)]) == ["over_admission"]
    assert violations(rules, [*debt, answered(8.1)]) == []
    for reported, found in ((6.0, []), (25.0, ["retry_after"])):
        denied = answered(2.0, allowed=False, retry_after=reported)
        assert violations(rules, [*debt, denied]) == found


def test_both_sides_of_a_partition_drain_their_own_buckets():
    rules = {"bucket": KNOWN["bucket"]}
    cut = Fault(1, "cut", 30, {"node": "n1,n2,n3"})

    def admitted(count):
        """Return what `count` members admit, each of them up to its whole bucket."""
        sources = [Source.OWNER, *[Source.STANDBY] * (count - 1)]
        first = [answered(2.0, source=source) for source in sources for _ in range(3)]
        then = [answered(2.1 + at, source=each) for at in range(1, 11) for each in sources]
        return [*first, *then]

    assert violations(rules, admitted(2), faults=[cut]) == []
    assert violations(rules, admitted(4), faults=[cut]) == ["over_admission"]


def test_a_bucket_that_two_members_had_was_drained_by_both():
    rules = {"bucket": KNOWN["bucket"]}
    cut = Fault(1, "cut", 12, {"node": "n1,n2,n3"})
    cut_off = [charged(2.0, 30), charged(2.0, 30, Source.STANDBY)]

    assert violations(rules, [*cut_off, answered(45.0)], faults=[cut]) == []
    assert violations(rules, [charged(2.0, 60), answered(45.0)]) == ["over_admission"]
    many = [answered(45.0 + at / 5) for at in range(6)]
    assert violations(rules, [*cut_off, *many], faults=[cut]) == ["over_admission"]


def test_both_sides_of_a_partition_round_down_their_sliding_windows():
    rules = {"sliding": load_text(SLIDING).rules.rules()[0]}
    cut = Fault(1, "cut", 30, {"node": "n1,n2,n3"})
    before = [
        answered(8.0 + at / 10, source=source)
        for at in range(3)
        for source in (Source.OWNER, Source.STANDBY)
    ]
    once = [answered(11.0), answered(11.2, source=Source.STANDBY)]

    assert violations(rules, [*before, *once], faults=[cut]) == []
    assert violations(rules, [*before, *once, answered(11.4)], faults=[cut]) == ["over_admission"]


def test_a_wrong_clock_in_one_data_center_empties_a_bucket_that_others_share():
    rules = {"shared": KNOWN["shared"]}
    step = Fault(2, "clock_step", 3, {"node": "n2,n4,n6", "by_s": 3600})
    there = [answered(1.0 + at / 100, datacenter="dc2") for at in range(10)]
    here = [answered(6.0 + at / 100) for at in range(8)]

    assert violations(rules, [*there, *here], datacenters=2) == ["over_admission"]
    assert violations(rules, [*there, *here], datacenters=2, faults=[step]) == []
    more = [answered(6.5 + at / 100) for at in range(8)]
    assert violations(rules, [*here, *more], datacenters=2, faults=[step]) == ["over_admission"]


def test_a_crash_excuses_no_denial_of_a_check_that_fits():
    denied = answered(2.5, allowed=False)

    assert "wrong_denial" in violations(DAY, [answered(1.0), denied], {"dc1": 1})
    assert "wrong_denial" in violations(DAY, [answered(1.0), denied], {"dc1": 1}, faults=CRASH)


def test_sliding_counts_of_data_centers_are_right_except_for_drained_units():
    world = {"world": KNOWN["world"]}
    some = [answered(1.0 + at / 100, datacenter=f"dc{1 + at % 2}") for at in range(200)]

    assert violations(world, some, {"dc1": 200, "dc2": 203}, datacenters=2) == []
    assert violations(world, some, {"dc1": 200, "dc2": 220}, datacenters=2) == ["agreement"]
    assert violations(world, some, {"dc1": 180, "dc2": 180}, datacenters=2) == ["lost_hits"] * 2


def test_the_parts_of_a_split_limit_are_one_limit():
    parts = {"parts": KNOWN["parts"]}
    here, there = ([answered(at, datacenter=dc) for at in (1.0, 2.0)] for dc in ("dc1", "dc2"))
    more = answered(3.0, datacenter="dc2")

    assert violations(parts, [*here, *there], datacenters=2) == []
    assert violations(parts, [*here, *there, more], datacenters=2) == ["over_admission"]


def test_each_part_of_a_split_bucket_drains_at_its_own_rate():
    parts = {"buckets": KNOWN["buckets"]}
    full = [answered(1.0, cost=3, datacenter="dc2")]  # Is empty after 10 s, not after 5 s.

    for at, found in ((6.0, []), (10.9, []), (11.1, ["wrong_denial"])):
        denied = answered(at, allowed=False, cost=3, datacenter="dc2")
        assert violations(parts, [*full, denied], datacenters=2) == found


def test_a_split_limit_with_one_data_center_is_read_with_its_own_answers():
    parts = {"parts": KNOWN["parts"]}
    answers = [answered(1.0), answered(2.0)]

    assert violations(parts, answers, {"dc1": 2}) == []
    assert violations(parts, answers, {"dc1": 1}) == ["lost_hits"]
    assert violations(parts, answers, {"dc1": 3}) == ["invented_hits"]


def borrowed(at, datacenter="dc1"):
    """Return an allowed check whose answer takes a round trip to another data center."""
    return replace(answered(at, datacenter=datacenter), answered_at=at + 0.09)


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
        (Fault(2.5, "busy", 5, {"node": "n2", "cost_ms": 20}), 0.09, 2, 0),  # No third one lends.
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


def test_partitioned_data_centers_exceed_limits_only_by_unshared_hits():
    world = {"world": KNOWN["world"]}
    slowly = [answered(at / 40, datacenter=f"dc{1 + at % 2}") for at in range(1600)]
    used = {"dc1": 600, "dc2": 600}

    def found(answers, *faults):
        return violations(world, answers, used, datacenters=2, faults=faults, end=40.0)

    assert "over_admission" in found(slowly[:1100])
    for args in ({"datacenter": "dc1"}, {"node": "n1"}):
        cut = Fault(1, "cut", 20, args)
        assert "over_admission" not in found(slowly[:1100], cut)
        assert "over_admission" in found(slowly, cut)


def test_a_drifting_clock_lengthens_the_checked_period():
    log = {"log": KNOWN["log"]}
    drift = (Fault(1, "clock_drift", 20, {"node": "n1", "ppm": -500}),)
    soon, late = ([*ALL, answered(at, allowed=False)] for at in (11.005, 11.05))

    assert violations(log, soon) == ["wrong_denial"]
    assert violations(log, soon, faults=drift) == []
    assert violations(log, late, faults=drift) == ["wrong_denial"]


@pytest.mark.parametrize(("begin", "end"), [(11.01, 20), (1, 3)])
def test_a_clock_is_wrong_only_from_its_drift_on_and_by_at_most_what_it_drifted(begin, end):
    log, drift = (
        {"log": KNOWN["log"]},
        Fault(begin, "clock_drift", end, {"node": "n1", "ppm": -500}),
    )
    denied = [*ALL, answered(11.005, allowed=False)]

    assert violations(log, denied, faults=[drift]) == ["wrong_denial"]


def test_the_failure_policy_may_decide_only_without_a_reachable_member():
    answers = [*ALL, answered(5.0, datacenter="dc2", source=Source.POLICY)]
    used = {"dc1": 3}
    two, three = (
        [Fault(1, "leave", 20, {"node": f"n{number}"}) for number in gone]
        for gone in ((2, 4), (2, 4, 6))
    )
    in_turn = [Fault(10 * at, "leave", 10 * at + 2, {"node": f"n{at}"}) for at in (2, 4, 6)]

    assert violations(DAY, answers, used, datacenters=2, faults=two) == ["outage"]
    assert violations(DAY, answers, used, datacenters=2, faults=three) == []
    assert violations(DAY, answers, used, datacenters=2, faults=in_turn) == ["outage"]


def test_an_aligned_window_of_a_sliding_limit_admits_only_the_limit():
    rules = {"sliding": load_text(SLIDING).rules.rules()[0]}
    full = [answered(float(each)) for each in range(1, 5)]

    assert violations(rules, full[:3]) == []
    assert "over_admission" in violations(rules, full)
    assert violations(rules, [*full[:3], answered(19.5)]) == []


def stalls(first, second):
    return (
        Fault(5.0, "stall", 10.0, {"node": first}),
        Fault(6.0, "stall", 11.0, {"node": second}),
    )


@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_limit_may_pass_again_while_owner_and_standby_are_stalled(is_reversed):
    owner, standby, third = RING.owners(shard_of(encode_key(KNOWN["log_day"].id, ["k"])), 3)
    rules = {"log_day": KNOWN["log_day"]}
    pair = (standby, owner) if is_reversed else (owner, standby)
    again = [answered(at, source=Source.STANDBY) for at in (8.0, 8.5, 9.0)]
    late = [*ALL, *again[:2], answered(10.5, source=Source.STANDBY)]
    used = {"dc1": 6}

    assert violations(rules, [*ALL, *again], used, faults=stalls(*pair)) == []
    assert violations(rules, late, used, faults=stalls(*pair)) == ["over_admission"]
    others = stalls(owner, third)
    assert violations(rules, [*ALL, *again], used, faults=others) == ["over_admission"]
    more = [*ALL, *again, answered(9.5, source=Source.STANDBY)]
    assert violations(rules, more, {"dc1": 7}, faults=stalls(*pair)) == ["over_admission"]


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
