import pytest
from msgspec.structs import replace

from simulations.scenarios.catalog import RULES, scenario
from simulations.scenarios.generate import generate_scenario
from simulations.scenarios.scenario import Fault, Load, Scenario
from simulations.world.run import simulate
from simulations.world.watches.membership_watch import detection_bound

EXACT = Load(rule="exact", per_second=30, keys=20)


def small(*faults, **changes):
    fields = {"nodes": 4, "seconds": 8.0, "calm": 12.0, "loads": (EXACT,)} | changes
    return Scenario("small", "for a test", level="core", rules=RULES, faults=faults, **fields)


def run(case, seed=1):
    return simulate(case, seed, "a command")


def test_equal_seeds_have_equal_histories_and_other_seeds_have_other_histories():
    case = small(Fault(2, "crash", 4, {"node": "n2"}), seconds=4.0, calm=4.0)
    one, again, other = run(case, 1), run(case, 1), run(case, 2)
    assert one.event_hash == again.event_hash
    assert one.figures == again.figures
    assert one.event_hash != other.event_hash


def test_without_faults_no_hit_is_lost_and_no_check_waits():
    outcome = run(small(calm=2.0))
    assert outcome.violations == []
    assert outcome.figures["by_owner"] > 100
    assert outcome.figures["by_standby"] == outcome.figures["by_policy"] == 0
    assert outcome.figures["deaths"] == 0


def test_a_crash_is_detected_in_time_and_other_nodes_take_over():
    outcome = run(small(Fault(2, "crash", None, {"node": "n2"})))
    assert outcome.violations == []
    assert outcome.marks["member_died"] == 3
    assert outcome.marks["shard_taken_over"] > 1000
    assert 0 < outcome.figures["detection_worst_s"] < outcome.figures["detection_bound_s"]
    assert outcome.figures["converged_at_s"] == pytest.approx(
        2 + outcome.figures["detection_worst_s"], abs=0.001
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_plotted_key_has_a_shard_that_a_crash_moved(seed):
    outcome = run(small(Fault(2, "crash", None, {"node": "n2"}), calm=1.0), seed)
    assert {span.row for span in outcome.histories[-1].states} > {"n2"}


def test_without_a_fault_the_plotted_key_is_the_most_frequent_one():
    outcome = run(small(seconds=2.0, calm=1.0))
    assert [len({span.row for span in each.states}) for each in outcome.histories] == [1]


@pytest.mark.parametrize("seed", [4, 14, 33])
def test_a_takeover_without_a_replica_does_not_overwrite_the_true_counters(seed):
    faults = Fault(1.9, "loss", 4.5, {"share": 0.25}), Fault(2, "crash", 2.3, {"node": "n2"})
    assert run(small(*faults), seed).violations == []


def test_a_node_that_leaves_and_rejoins_loses_no_hit():
    outcome = run(small(Fault(2, "leave", 5, {"node": "n3"})))
    assert outcome.violations == []
    assert outcome.figures["lost"] == 0
    assert outcome.marks["shard_given"] > 1000
    assert outcome.marks["shard_taken_over"] == 0


def test_both_sides_agree_on_members_shards_and_hits_after_a_split():
    outcome = run(small(Fault(1, "cut", 7, {"node": "n1"}), calm=45.0))
    assert outcome.violations == []
    assert outcome.marks["member_died"] > 0
    assert outcome.marks["split_healed"] > 1000
    assert outcome.figures["converged_at_s"] > 7


@pytest.mark.parametrize("until", [999, None])
def test_a_split_that_outlasts_the_run_ends_with_the_load(until):
    outcome = run(small(Fault(1, "cut", until, {"node": "n1"}), calm=45.0))
    assert outcome.violations == []
    assert outcome.scenario.faults[0].until == 8.0
    assert outcome.marks["split_healed"] > 1000


def test_data_centers_receive_each_others_hits():
    load = Load(rule="everywhere", per_second=40, keys=2)
    outcome = run(small(nodes=4, datacenters=2, loads=(load,)))
    assert outcome.violations == []
    assert 0 < outcome.figures["staleness_worst_ms"] <= 2000


def test_lost_repeated_and_late_datagrams_change_no_count():
    faults = (
        Fault(1, "loss", 6, {"share": 0.1}),
        Fault(1, "repeats", 6, {"share": 0.5}),
        Fault(2, "clock_drift", 6, {"node": "n2", "ppm": 500}),
    )
    outcome = run(small(*faults))
    assert outcome.violations == []


def test_a_clock_with_an_hours_offset_is_distrusted_and_trusted_again():
    faults = (
        Fault(1, "clock_step", None, {"node": "n3", "by_s": 3600}),
        Fault(6, "clock_step", None, {"node": "n3", "by_s": -3600}),
    )
    outcome = run(small(*faults, calm=20.0))
    assert outcome.violations == []
    assert outcome.marks["clock_suspect"]
    assert outcome.marks["clock_trusted_again"]


def test_a_split_violates_invariants_that_ignore_faults():
    cut = Fault(1, "cut", 10, {"node": "n1"})
    canary = replace(scenario("canary"), level="core", seconds=10.0, calm=2.0, faults=(cut,))
    blind = run(canary)
    assert {"over_admission", "false_death"} <= {each.property for each in blind.violations}


def test_an_unknown_fault_is_rejected_before_the_run():
    with pytest.raises(ValueError, match="got 'flood'"):
        run(small(Fault(1, "flood")))


def test_generated_scenarios_depend_only_on_the_seed():
    for level in ("core", "node"):
        cases = [generate_scenario(seed, level) for seed in range(60)]
        assert cases == [generate_scenario(seed, level) for seed in range(60)]
        assert {case.datacenters for case in cases} == {1, 2, 3}
        assert {case.nodes for case in cases} == {2, 3, 4, 5, 6, 8}
        assert {case.least_parts for case in cases} == {1, 2, 3}
        assert any(case.faults for case in cases)
        assert all((fault.until or 0) <= case.seconds for case in cases for fault in case.faults)


def test_detection_may_take_longer_among_more_members():
    assert detection_bound(4) < detection_bound(30) < detection_bound(1000) < 40
