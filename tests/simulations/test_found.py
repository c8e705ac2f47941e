"""Bugs that the simulation found in the shipped code, each as its smallest failing run."""

from typing import Any

import pytest
from msgspec.structs import replace

from simulations.running import run_scenario
from simulations.scenarios.catalog import RULES
from simulations.scenarios.rule_changes import parse_fault
from simulations.scenarios.scenario import Holds, Level, Load, Network, Scenario

BURSTS = Load("bursts", 30, 60, "client")
WINDOW = Load("zipf", 15, 5, "window")


def run(
    *faults: str,
    nodes: int = 3,
    datacenters: int = 1,
    calm: float = 20,
    seconds: float = 14,
    keys: int = 20,
    level: Level = "core",
) -> list[str]:
    scenario = Scenario(
        "found",
        "a bug",
        level=level,
        nodes=nodes,
        datacenters=datacenters,
        seconds=seconds,
        calm=calm,
        rules=RULES,
        loads=(Load(rule="exact", per_second=15, keys=keys),),
        faults=tuple(parse_fault(text) for text in faults),
    )
    outcome = run_scenario(scenario, 7)
    return [f"{each.property}: {each.text}" for each in outcome.violations]


def run_drawn(seed: int, *faults: str, **fields: Any) -> list[str]:
    """Run a case that was once drawn from this seed, and return its violations."""
    scenario = Scenario("found", "a bug", level="core", seconds=15, calm=45, rules=RULES)
    scenario = replace(scenario, faults=tuple(parse_fault(text) for text in faults), **fields)
    return [str(each) for each in run_scenario(scenario, seed).violations]


def _exact(per_second: float, keys: int) -> Load:
    return Load(rule="exact", per_second=per_second, keys=keys)


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
    assert run("busy@2-12 node=n3 cost_ms=20", "leave@8-13 node=n2", level="node") == []


def test_a_replica_of_the_sender_is_not_added_to_its_transfer() -> None:
    crash = "crash@3.77-11.77 node=n2 seedless=1"

    assert run_drawn(150, crash, nodes=3, loads=(BURSTS, _exact(25, 30))) == []


def test_slots_that_the_standby_granted_during_a_stall_stay_in_use() -> None:
    loads = Load("hot", 60, 60, "client"), _exact(10, 5), WINDOW
    network = Network("near", loss=0.01, repeats=0.02)
    holds = (Holds(4, 1, max_wait=3),)
    stall = "stall@7.4-9.4 node=n4"
    case = {"nodes": 6, "least_parts": 2, "network": network, "holds": holds, "loads": loads}

    assert run_drawn(900074, stall, **case) == []


def test_a_member_with_a_wrong_clock_stays_out_while_no_clocks_agree() -> None:
    faults = (
        *("cut@2.06-2.36 node=n3 from=n2", "clock_drift@3.08-5.08 node=n1 ppm=-100"),
        *("clock_step@3.66-11.66 node=n3 by_s=-10", "busy@3.98-5.98 node=n2 cost_ms=5"),
        *("spikes@4.21-12.21 node=n1 mean_ms=50", "stall@5.82-6.02 node=n3"),
        *("corrupt@7.25-9.25 share=0.233", "corrupt@7.27-7.57 share=0.132"),
        *("clock_step@7.31-15 node=n1 by_s=3600", "replay@7.98-15 share=0.102"),
        *("spikes@8.06-15 node=n2 mean_ms=5", "cut@8.45-15 node=n2 from=n1"),
        "replay@8.81-15 share=0.128",
    )
    loads = BURSTS, replace(_exact(10, 30), charges=0.2)

    assert run_drawn(3000039, *faults, nodes=3, loads=loads, holds=(Holds(2, 1),)) == []


def test_a_node_that_restarts_alone_recovers_its_standbys_replicas() -> None:
    loads = (
        Load("bursts", 10, 60, "client", charges=0.05),
        replace(_exact(25, 30), charges=0.2),
        replace(WINDOW, charges=0.2),
    )
    network = Network("regions", resets=10.0)
    case = {"nodes": 2, "zones": 2, "least_parts": 3, "network": network, "loads": loads}

    assert run_drawn(3000133, "crash@2-4 node=n1 seedless=1", **case) == []


def test_a_node_that_restarts_while_it_knows_one_member_recovers_the_replicas_of_another() -> None:
    case = {"nodes": 3, "seconds": 4, "calm": 14, "loads": (_exact(40, 30),)}

    assert run_drawn(2, "crash@5-7 node=n2 seedless=1", **case) == []


def test_a_node_need_not_detect_the_crash_of_an_unknown_member() -> None:
    faults = (
        *("crash@2.81-4.81 node=n3 seedless=1", "crash@6.4-6.7 node=n5"),
        *("repeats@7.75-9.75 share=0.282", "reset@7.93-8.23 node=n1"),
    )
    loads = (
        *(Load("zipf", 60, 20, "client"), _exact(10, 30)),
        *(Load(rule="everywhere", per_second=30, keys=3), Load("zipf", 15, 5, "world")),
    )
    case = {"nodes": 6, "datacenters": 2, "zones": 2, "least_parts": 2}

    assert run_drawn(388, *faults, network=Network(repeats=0.02), loads=loads, **case) == []


def test_a_takeover_without_a_replica_does_not_overwrite_the_replica_of_a_stalled_standby() -> None:
    stalls = "stall@7.87-12.87 node=n2", "stall@8.21-13.21 node=n4"
    loads = Load("poisson", 30, 3, "client"), _exact(25, 5), WINDOW
    case = {"nodes": 5, "least_parts": 3, "network": Network("regions"), "loads": loads}

    assert run_drawn(3000286, *stalls, holds=(Holds(4, 1, max_wait=3),), **case) == []


HOME = """\
domain: sim
descriptors:
  - key: home
    rate_limit: {unit: day, requests_per_unit: 8, algorithm: sliding_window_log,
                 global: {mode: home, home: dc1}}
"""
SPLIT = """\
domain: sim
descriptors:
  - key: split
    rate_limit: {unit: minute, requests_per_unit: 9, algorithm: token_bucket,
                 global: {mode: split}}
"""


def test_a_standby_in_another_data_center_decides_no_rule_of_the_home_data_center() -> None:
    load = Load("zipf", 10, 40, "home", cost=3)
    case = {"nodes": 4, "datacenters": 2, "calm": 10, "rules": HOME, "loads": (load,)}

    assert run_drawn(0, network=Network("regions"), **case) == []


def test_a_standby_waits_for_an_owner_that_borrows_from_another_data_center() -> None:
    load = Load("poisson", 10, 4, "split")
    case = {"nodes": 6, "datacenters": 3, "calm": 10, "rules": SPLIT, "loads": (load,)}

    assert run_drawn(22, network=Network("regions"), **case) == []


SHARED = """\
domain: sim
descriptors:
  - key: everywhere
    rate_limit: {unit: day, requests_per_unit: 3, algorithm: fixed_window, scope: global}
"""


def test_other_data_centers_get_a_check_once_that_a_standby_counts_again() -> None:
    """The replica from which the standby starts has the check."""
    checks = "5.936 client-5 k2\n6.865 client-0 k2"
    load = Load("listed", rule="everywhere", batch=3, args={"checks": checks})
    case = {"nodes": 6, "datacenters": 3, "rules": SHARED, "seconds": 7, "calm": 5}

    assert run_drawn(3830074, "cut@5.66-5.96 node=n6", loads=(load,), **case) == []


GROUPS = """\
domain: sim
descriptors:
  - key: everywhere
    rate_limit: {unit: day, requests_per_unit: 400, algorithm: fixed_window, scope: global}
  - key: world
    rate_limit: {unit: minute, requests_per_unit: 600, algorithm: sliding_window, scope: global}
  - key: r1
    rate_limit: {period: 2s, requests_per_unit: 3, global: {mode: home, home: dc1}}
  - key: r2
    rate_limit: {requests_per_unit: 1, algorithm: fixed_window, unit: month, align: calendar}
"""
SHORT = """
domain: sim
descriptors:
  - key: short
    rate_limit: {period: 10s, requests_per_unit: 8, algorithm: sliding_window}
"""


def test_a_denied_group_is_refunded_in_another_data_center_while_a_node_is_busy() -> None:
    checks = {
        ("everywhere", "r1"): "2.931 client-3 k0",
        ("world", "r1"): "3.573 client-3 k1",
        ("r1", "r2"): "2.129 client-2 k1\n2.946 client-3 k1",
    }
    loads = tuple(
        Load("listed", rule=rule, also=also, args={"checks": lines})
        for (rule, also), lines in checks.items()
    )
    case = {"nodes": 5, "datacenters": 3, "rules": GROUPS, "seconds": 5, "calm": 5}

    assert run_drawn(3830224, "busy@1.95-3.95 node=n5 cost_ms=20", loads=loads, **case) == []


@pytest.mark.parametrize("node", ["n1", "n2"])
@pytest.mark.parametrize("by_s", [-3600, 5, 7, 12, 3600])
def test_a_standby_with_another_clock_forgets_or_refuses_windows(by_s: float, node: str) -> None:
    """Two nodes cannot find out whose clock is wrong."""
    loads = (Load(rule="short", per_second=12, keys=12),)
    case = {"nodes": 2, "rules": SHORT, "loads": loads, "calm_load": 10.0}

    assert run_drawn(2000978, f"clock_step@5.68-5.98 node={node} by_s={by_s}", **case) == []
