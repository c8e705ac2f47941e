"""Laws of limits that one data center counts, or several by their counts."""

import pytest

from hashring import shard_of
from ringfence.rules.keys import encode_key
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import Source
from simulations.scenarios.scenario import Fault
from tests.simulations.judging.invariants.judged_runs import (
    ALL,
    CRASH,
    DAY,
    KNOWN,
    RING,
    SLIDING,
    answered,
    charged,
    violations,
)


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
