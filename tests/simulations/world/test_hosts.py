from types import SimpleNamespace
from typing import Any

import pytest

from simulations.reporting.events import Events
from simulations.scenarios.scenario import Scenario
from simulations.world.hosts import Hosts, is_majority_close

_NS = 1_000_000_000


def build_hosts(
    *clocks_s: float,
    suspect: tuple[str, ...] = ("n3",),
    forwarding: tuple[str, ...] | None = None,
    adjustments_s: dict[str, float] | None = None,
    datacenters: int = 1,
) -> Hosts:
    """Create hosts with wrong clocks, whose members left the ring because of their clocks."""
    scenario = Scenario("hosts", "for a test", nodes=len(clocks_s), datacenters=datacenters)
    hosts = Hosts(scenario, Events(), lambda: 30.0)
    for host, clock_s in zip(hosts.by_name.values(), clocks_s, strict=True):
        host.clock.step(clock_s)
        add_node(
            host,
            is_suspect=host.name in suspect,
            is_forwarding=host.name in (suspect if forwarding is None else forwarding),
            adjustment_s=(adjustments_s or {}).get(host.name, 0),
        )
    return hosts


def add_node(host: Any, *, is_suspect: bool, is_forwarding: bool, adjustment_s: float) -> None:
    cluster = SimpleNamespace(is_suspect=is_suspect, offset_ns=round(adjustment_s * _NS))
    membership = SimpleNamespace(me=SimpleNamespace(forward_only=is_forwarding), is_damped=False)
    host.node = SimpleNamespace(clock=SimpleNamespace(cluster=cluster), membership=membership)
    host.scope = object()


@pytest.mark.parametrize(
    ("clocks_s", "is_close"),
    [
        ((), False),
        ((0,), False),
        ((0, 0), True),
        ((0, 3600), False),
        ((0, 0.9), True),
        ((0, 0.1, 3600), True),
        ((-10, 0, 3600), False),
        ((0, 0, 3600, 3600), False),
        ((0, 0, 0, 3600), True),
    ],
)
def test_more_than_half_of_the_clocks_must_be_close_to_the_median(
    clocks_s: tuple[float, ...], is_close: bool
) -> None:
    assert is_majority_close([round(each * _NS) for each in clocks_s]) is is_close
    late = 1_800_000_000 * _NS
    assert is_majority_close([late + round(each * _NS) for each in clocks_s]) is is_close


def test_a_distrusted_member_may_be_out_while_no_other_clocks_agree() -> None:
    assert build_hosts(3600, 0, -10).in_ring() == {"n1", "n2"}


def test_a_distrusted_member_must_be_in_while_a_majority_agrees() -> None:
    assert build_hosts(0, 0, -10).in_ring() == {"n1", "n2", "n3"}
    assert build_hosts(0, 3600, 0.2, 0).in_ring() == {"n1", "n2", "n3", "n4"}


def test_a_member_whose_clock_is_trusted_must_be_in_the_ring() -> None:
    hosts = build_hosts(3600, 0, -10, suspect=(), forwarding=("n3",))
    assert hosts.in_ring() == {"n1", "n2", "n3"}
    hosts = build_hosts(3600, 0, -10, forwarding=())
    assert hosts.in_ring() == {"n1", "n2", "n3"}


def test_wrong_host_clocks_that_were_adjusted_count_as_a_majority() -> None:
    hosts = build_hosts(3600, 0, -10, suspect=("n1",), adjustments_s={"n3": 10})
    assert hosts.in_ring() == {"n1", "n2", "n3"}


def test_a_wrong_adjustment_of_correct_clocks_excuses_no_member() -> None:
    hosts = build_hosts(0, 0, -10, adjustments_s={"n1": 3600})
    assert hosts.in_ring() == {"n1", "n2", "n3"}


def test_the_clocks_of_other_data_centers_count() -> None:
    suspect, datacenters = ("n3",), 2  # n1 and n3 are in one data center
    hosts = build_hosts(3600, 0, -10, 0, 0, suspect=suspect, datacenters=datacenters)
    assert hosts.in_ring() == {"n1", "n2", "n3", "n4", "n5"}


def test_a_data_center_keeps_a_member_in_the_ring() -> None:
    hosts = build_hosts(3600, 0, -10, datacenters=3)
    assert hosts.in_ring() == {"n1", "n2", "n3"}


def test_the_clocks_of_stopped_hosts_do_not_count() -> None:
    hosts = build_hosts(0, 0, -10, 3600)
    stopped = hosts.by_name["n1"]
    stopped.node = stopped.scope = None
    assert hosts.in_ring() == {"n2", "n4"}
