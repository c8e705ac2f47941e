"""Bugs that the simulation found in the shipped code, each as its smallest failing run."""

from dataclasses import replace

import pytest

from simulations.running import run_scenario
from simulations.scenarios.catalog import RULES
from simulations.scenarios.generate import generate_scenario
from simulations.scenarios.rule_changes import parse_fault
from simulations.scenarios.scenario import Load, Scenario


def run(
    *faults: str,
    nodes: int = 3,
    datacenters: int = 1,
    calm: float = 20,
    seconds: float = 14,
    keys: int = 20,
) -> list[str]:
    scenario = Scenario(
        "found",
        "a bug",
        nodes=nodes,
        datacenters=datacenters,
        seconds=seconds,
        calm=calm,
        rules=RULES,
        loads=(Load(rule="exact", per_second=15, keys=keys),),
        faults=tuple(parse_fault(text) for text in faults),
    )
    outcome = run_scenario(scenario, 7, scenario)
    return [f"{each.property}: {each.text}" for each in outcome.violations]


def test_counters_of_a_lost_transfer_are_offered_again() -> None:
    assert run("cut@2-12 node=n3 one_way=1") == []


@pytest.mark.parametrize("by_s", [-10, -1.5, 5])
def test_a_clock_that_is_seconds_off_is_put_right_within_seconds(by_s: float) -> None:
    assert run(f"clock_step@3 node=n2 by_s={by_s}", calm=15) == []


def test_a_node_alone_in_its_data_center_decides_despite_its_clock() -> None:
    assert run("clock_step@3 node=n1 by_s=5", datacenters=3) == []


def test_changes_during_a_cut_are_replicated_after_it() -> None:
    assert run("cut@3-4.2 node=n1 from=n2", "crash@13 node=n1", calm=12) == []
    # The cut is so long that no frame in flight arrives later. The keys are so many that most of
    # them are not used again before the crash.
    cut, crash = "cut@3-8 node=n1 from=n2", "crash@17 node=n1"
    assert run(cut, crash, calm=12, seconds=18, keys=400) == []


def test_a_busy_host_changes_no_clock() -> None:
    assert run("busy@2-12 node=n3 cost_ms=20", "leave@8-13 node=n2") == []


def test_a_replica_of_the_sender_is_not_added_to_its_transfer() -> None:
    drawn_case = generate_scenario(150, "core")
    scenario = replace(drawn_case, faults=drawn_case.faults[:1])

    outcome = run_scenario(scenario, 150, scenario)

    assert [str(fault) for fault in scenario.faults] == ["3.77-11.77 s: crash node=n2 seedless=1"]
    assert outcome.violations == []


def test_slots_that_the_standby_granted_during_a_stall_stay_in_use() -> None:
    drawn_case = generate_scenario(900074, "core")
    scenario = replace(drawn_case, faults=drawn_case.faults[1:])

    outcome = run_scenario(scenario, 900074, scenario)

    assert [str(fault) for fault in scenario.faults] == ["7.4-9.4 s: stall node=n4"]
    assert outcome.violations == []


def test_a_member_with_a_wrong_clock_stays_out_while_no_clocks_agree() -> None:
    scenario = generate_scenario(3000039, "core")

    assert run_scenario(scenario, 3000039, scenario).violations == []


def test_a_node_need_not_detect_the_crash_of_an_unknown_member() -> None:
    scenario = generate_scenario(388, "core")

    assert run_scenario(scenario, 388, scenario).violations == []


def test_a_takeover_without_a_replica_does_not_overwrite_the_replica_of_a_stalled_standby() -> None:
    scenario = generate_scenario(3000286, "core")

    assert [fault.args["node"] for fault in scenario.faults] == ["n2", "n4"]
    assert run_scenario(scenario, 3000286, scenario).violations == []
