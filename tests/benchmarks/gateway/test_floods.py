"""Figures of the benchmark of floods, computed without its processes."""

import logging

import pytest

from benchmarks.gateway import attackers, floods
from benchmarks.gateway.floods import Found, Phase, figures_of
from gossip.effects import Changed
from gossip.members.record import Record, Status
from node.membership.cluster_view import log_change


def record(status: Status) -> Record:
    return Record("b", "127.0.0.1", 7101, "main", "", 1.0, 1, 0, status)


def phase(*milliseconds: float, failed: int = 0) -> Phase:
    return Phase([each / 1e3 for each in milliseconds], failed)


def test_every_flood_has_an_attacker_a_port_and_a_memory_bound() -> None:
    assert floods.PORTS.keys() == attackers.FLOODS.keys() == floods.BOUNDS.keys()


def test_the_ratio_compares_the_99th_percentiles_of_both_phases() -> None:
    quiet = phase(*[1.0] * 98, 2.0, 50.0)
    flooded = phase(*[1.0] * 98, 8.0, 60.0, failed=3)
    found = Found(quiet, flooded, 3 << 20, 1, 0.5, 0.25, 100)

    values = {each.name: each.value for each in figures_of("p4_hellos", [found])}

    assert values["floods.p4_hellos.p99_ratio"] == pytest.approx(4.0)
    assert values["floods.p4_hellos.p99_ms"] == pytest.approx(8.0)
    assert values["floods.p4_hellos.rss_growth_mb"] == 3.0
    assert values["floods.p4_hellos.failed"] == 3.0
    assert values["floods.p4_hellos.suspicions"] == 1.0


@pytest.mark.parametrize(
    ("status", "expected"), [(Status.SUSPECT, 1), (Status.DEAD, 1), (Status.ALIVE, 0)]
)
def test_the_log_lines_of_a_node_about_suspected_and_dead_members_are_counted(
    caplog: pytest.LogCaptureFixture, status: Status, expected: int
) -> None:
    caplog.set_level(logging.INFO)

    log_change(Changed(record(Status.JOINING), record(status)))

    assert len(floods.SUSPICION.findall(caplog.text)) == expected
