"""Hits that a run may lose: as few as its faults allow."""

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.judging.allowed_loss import members_of, unreplicated_spans
from simulations.scenarios.generate import generate_scenario
from simulations.scenarios.rule_changes import parse_fault
from simulations.scenarios.scenario import Scenario


def world(*faults: str, nodes: int = 5, datacenters: int = 1, zones: int = 1) -> Scenario:
    return Scenario(
        "losses",
        "for a test",
        nodes=nodes,
        datacenters=datacenters,
        zones=zones,
        faults=tuple(parse_fault(text) for text in faults),
    )


def spans(*faults: str, nodes: int = 5, datacenters: int = 1) -> list[tuple[float, float]]:
    return unreplicated_spans(world(*faults, nodes=nodes, datacenters=datacenters))


def test_without_faults_no_loss_is_allowed() -> None:
    assert spans() == []


@pytest.mark.parametrize(
    "fault",
    ["cut@8-25 node=n1,n2", "pause@8-20 node=n1", "loss@3-9 share=0.3", "clock_step@3 by_s=3600"],
)
def test_nothing_may_be_lost_while_every_node_lives(fault: str) -> None:
    assert spans(fault) == []


def test_a_graceful_leave_loses_no_hit() -> None:
    assert spans("leave@10-15 node=n2") == []


def test_a_crash_may_lose_hits_not_yet_replicated() -> None:
    assert spans("crash@10-20 node=n2") == [pytest.approx((9.65, 10.1))]


def test_two_crashes_far_apart_may_each_lose_units_of_a_short_time() -> None:
    assert spans("crash@10-12 node=n2", "crash@40-45 node=n3") == [
        pytest.approx((9.65, 10.1)),
        pytest.approx((39.65, 40.1)),
    ]


@pytest.mark.parametrize(
    "faults",
    [
        ("crash@10-20 node=n2,n3",),
        ("crash@10-20 node=n2", "crash@15-30 node=n3"),
        ("crash@10-14 node=n2", "crash@15-30 node=n3"),
    ],
)
def test_simultaneous_crashes_of_owner_and_standby_may_lose_everything(
    faults: tuple[str, ...],
) -> None:
    [(begin, end)] = spans(*faults)

    assert begin == -inf
    assert end >= 10.1


@pytest.mark.parametrize("other", ["pause@12-40 node=n3", "cut@8-15 node=n1", "clog@25-26 node=n4"])
def test_a_second_failure_before_replication_recovers_may_hide_every_replica(other: str) -> None:
    [(begin, _)] = spans("crash@10-20 node=n2", other)

    assert begin == -inf


@pytest.mark.parametrize("other", ["loss@8-15 share=0.3", "clock_step@12 node=n3 by_s=3600"])
def test_a_slow_node_keeps_its_replica_while_another_is_down(other: str) -> None:
    [(begin, _)] = spans("crash@10-20 node=n2", other)

    assert begin > 0


def test_a_failure_in_another_data_center_hides_no_replica() -> None:
    [(begin, _)] = spans("crash@10-20 node=n1", "pause@12-40 node=n2", nodes=6, datacenters=2)

    assert begin == pytest.approx(9.65)


def test_the_only_node_of_a_data_center_loses_all_when_leaving() -> None:
    [(begin, _)] = spans("leave@10-20 node=n2", nodes=3, datacenters=3)

    assert begin == -inf


def test_hits_not_replicated_during_a_disturbance_may_be_lost_in_a_crash() -> None:
    [(begin, end)] = spans("cut@4-9 node=n1", "crash@10-20 node=n2")

    assert (begin, end) == pytest.approx((3.65, 10.1))


def test_an_old_disturbance_has_no_effect() -> None:
    assert spans("cut@1-2 node=n1", "crash@30-40 node=n2") == spans("crash@30-40 node=n2")


def test_a_broken_connection_is_an_instantaneous_disturbance() -> None:
    [(begin, _)] = spans("reset@8 node=n1", "crash@10-20 node=n2")

    assert begin == pytest.approx(7.65)


def test_after_two_simultaneous_disturbances_replication_is_uncertain() -> None:
    [(begin, _)] = spans("cut@4-9 node=n1", "loss@5-9 share=0.2", "crash@10-20 node=n2")

    assert begin == -inf


@pytest.mark.parametrize(
    "harmless",
    ["repeats@5-15 share=0.5", "replay@5-15 share=0.3", "clock_drift@5-15 node=n1 ppm=500"],
)
def test_faults_that_delay_no_replication_allow_no_loss(harmless: str) -> None:
    assert spans(harmless, "crash@10-20 node=n2") == spans("crash@10-20 node=n2")


def test_shared_counts_survive_in_other_data_centers() -> None:
    def reported(*faults: str) -> list[tuple[float, float]]:
        return unreplicated_spans(world(*faults, nodes=6, datacenters=3), is_shared=True)

    assert reported("crash@10-25 datacenter=dc3") == [(8.0, 10.1)]
    assert reported("cut@8-12 datacenter=dc3", "crash@10-25 datacenter=dc3") == [(-inf, 10.1)]
    assert (-inf, 12.1) in reported("crash@10-25 datacenter=dc3", "crash@12-25 datacenter=dc2")


def test_hosts_are_assigned_to_data_centers_and_then_to_zones() -> None:
    assert members_of(world(nodes=5, datacenters=2, zones=2)) == {
        "n1": ("dc1", "z1"),
        "n2": ("dc2", "z1"),
        "n3": ("dc1", "z2"),
        "n4": ("dc2", "z2"),
        "n5": ("dc1", "z1"),
    }


@given(st.integers(0, 10_000))
def test_spans_are_ordered_and_disjoint(seed: int) -> None:
    found = unreplicated_spans(generate_scenario(seed, "node"))

    assert all(begin < end for begin, end in found)
    assert all(one[1] < other[0] for one, other in pairwise(found))
