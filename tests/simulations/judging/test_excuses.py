from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import pytest

from hashring import Member, NodeId, Ring
from ringfence.wire import Source
from simulations.judging.allowed_loss import members_of
from simulations.judging.disturbance import Disturbances
from simulations.judging.excuses import Excuses
from simulations.judging.ledger import Answered
from simulations.scenarios.scenario import Fault, Scenario


def checked_at(at: float) -> Answered:
    return Answered(at, at + 0.01, "dc1", "k", 1, True, Source.OWNER, client="client-0")


def ring_without(members, names: Iterable[str]) -> Ring:
    """Return the ring of the members except those with these names."""
    return _ring_without(tuple(members), frozenset(names))


@cache
def _ring_without(members, names) -> Ring:
    return Ring.of([member for member in members if member.name not in names])


@pytest.mark.parametrize("zones", [1, 2, 3])
def test_the_hosts_of_a_shard_are_the_owner_the_standby_and_their_successors(zones):
    scenario = Scenario("judged", "", nodes=6, zones=zones)
    members = [Member(NodeId(name), *where) for name, where in members_of(scenario).items()]
    ring, excuses = ring_without(members, ()), Excuses(scenario, Disturbances())

    for shard in range(0, 16384, 100):
        first, second, *others = excuses.place("dc1", shard).hosts

        assert (first, second) == ring.owners(shard, 2)
        assert ring_without(members, [first]).owner(shard) in [second, others[0]]
        assert sorted([first, second, *others]) == sorted(member.name for member in members)


def test_a_check_may_be_lost_if_its_owner_crashed_before_the_answer_arrived():
    crash = Fault(2.0, "crash", 8.0, {"node": "n1"})
    scenario = Scenario("judged", "", nodes=1, faults=(crash,))
    excuses = Excuses(scenario, Disturbances())
    place = excuses.place("dc1", 7)

    assert excuses.may_be_lost(place, 1.95, 2.8)
    assert not excuses.may_be_lost(place, 2.5, 2.8)


def test_a_node_that_starts_alone_may_decide_for_the_shards_of_all_others():
    crash = Fault(1.0, "crash", 3.0, {"node": "n5", "seedless": 1})
    excuses = Excuses(Scenario("judged", "", nodes=5, faults=(crash,)), Disturbances())
    places = [excuses.place("dc1", shard) for shard in range(200)]
    other = next(place for place in places if "n5" not in place.hosts[:2])
    away, alone = (
        [each.is_splitting for each in excuses.of(other, checked_at(at))] for at in (2.0, 4.0)
    )

    assert (away, alone) == ([], [True])


@pytest.mark.parametrize(("nodes", "zones"), [(5, 1), (6, 2), (7, 3)])
def test_the_hosts_of_a_shard_decide_in_the_order_of_rings_without_earlier_owners(nodes, zones):
    scenario = Scenario("judged", "", nodes=nodes, zones=zones)
    members = [Member(NodeId(name), *where) for name, where in members_of(scenario).items()]
    excuses = Excuses(scenario, Disturbances())

    for shard in range(0, 16384, 500):
        left, found = [], {}
        while len(left) < nodes:
            ring = ring_without(members, left)
            owner = ring.owner(shard)
            found |= dict.fromkeys([owner, ring.standby(shard) or owner])
            left.append(owner)

        assert excuses.place("dc1", shard).hosts == tuple(found)


def test_the_excuse_of_one_check_holds_for_its_whole_group():
    """The caller got no answer, because a member waited for the home of another limit."""
    pause = Fault(1, "pause", 30, {"node": "n2,n4"})
    scenario = Scenario("judged", "", nodes=4, datacenters=2, faults=(pause,))
    excuses = Excuses(scenario, Disturbances())
    here, home = excuses.place("dc1", 7), excuses.place("dc2", 7)
    shed = Answered(5.0, 6.0, "dc1", "k", 1, True, Source.SHED, client="client-0")
    other = replace(shed, key="other")
    assert not excuses.of(here, shed)

    excuses.add_to_group(home, shed)

    assert [each.reason for each in excuses.of(here, shed)] == ["owner_away"]
    assert not excuses.of(here, other)
    assert not excuses.of(here, replace(shed, source=Source.OWNER))


@pytest.mark.parametrize(("at", "is_excused"), [(5.0, True), (25.0, False), (41.0, True)])
def test_members_may_distrust_a_stepped_clock_long_after_the_step(at, is_excused):
    step = Fault(4.0, "clock_step", 6.0, {"node": "n1,n2,n3", "by_s": -10})
    scenario = Scenario("judged", "", nodes=3, faults=(step,))
    moved = Disturbances(samples={"dc1": [(0.0, 0), (40.0, 255 << 56), (42.0, 0)]})
    excuses = Excuses(scenario, moved)
    place = excuses.place("dc1", 7)

    found = excuses.of(place, Answered(at, at + 0.001, "dc1", "k", 1, True, Source.STANDBY))
    assert [each.reason for each in found] == ["clock"] * is_excused


@pytest.mark.parametrize(
    ("at", "source", "is_excused"),
    [
        (13.0, Source.POLICY, True),
        (13.0, Source.STANDBY, False),
        (17.5, Source.POLICY, False),
    ],
)
def test_a_client_that_connects_during_a_cut_waits_for_its_handshake(at, source, is_excused):
    cut = Fault(8.0, "cut", 10.0, {"node": "n1"})
    scenario = Scenario("judged", "", nodes=3, faults=(cut,))
    settled = Disturbances(samples={"dc1": [(0.0, 0), (8.5, 1), (10.1, 0)]})
    excuses = Excuses(scenario, settled)

    answer = Answered(at, at + 0.001, "dc1", "k", 1, True, source, client="client-0")
    found = excuses.of(excuses.place("dc1", 7), answer)
    assert [each.reason for each in found] == ["links"] * is_excused


def test_windows_shift_with_clocks_that_follow_a_stepped_clock_in_another_data_center():
    step = Fault(10, "clock_step", 12, {"node": "n1", "by_s": 0.2})
    scenario = Scenario("judged", "", nodes=4, datacenters=2, faults=(step,))
    excuses = Excuses(scenario, Disturbances(samples={"dc1": [(0.0, 0)], "dc2": [(0.0, 0)]}))
    place = excuses.place("dc2", 7)

    shifts = [excuses.clocks.offset_s(place, at, at) for at in (9.0, 20.0, 90.0)]

    assert shifts == [0.0, pytest.approx(0.05), 0.2]


def test_hits_seem_younger_by_at_most_the_longest_queue_of_a_busy_host():
    busy = Fault(8.0, "busy", 12.0, {"node": "n1,n2,n3", "cost_ms": 30})
    scenario = Scenario("judged", "", nodes=3, faults=(busy,))
    moved = Disturbances(samples={"dc1": [(0.0, 0), (8.5, 255 << 56), (13.0, 0)]})
    place = Excuses(scenario, moved).place("dc1", 7)

    short, long = (
        Excuses(scenario, moved, longest_queue_s=longest).clocks.in_span(place, 9.0, 11.0)[0]
        for longest in (0.1, 1.4)
    )

    assert long - short == pytest.approx(1.3)


def test_a_node_that_restarts_without_a_seed_may_know_no_other_data_center_until_it_settles():
    crashes = [
        Fault(8.0, "crash", 10.0, {"node": "n1", "seedless": 1}),
        Fault(8.0, "crash", 10.0, {"node": "n2"}),
    ]
    scenario = Scenario("judged", "", nodes=4, datacenters=2, faults=tuple(crashes))
    quiet = {"dc1": [(0.0, 0), (8.5, 1), (12.0, 0)]}
    excuses = Excuses(scenario, Disturbances(samples=quiet))
    here, there = excuses.place("dc1", 7), excuses.place("dc2", 7)

    assert excuses.seedless(here, "n1") == [(10.0, pytest.approx(13.1))]
    assert excuses.seedless(here, "n3") == excuses.seedless(there, "n2") == []


@pytest.mark.parametrize(("cut_at", "known_at"), [(12.0, 42.5), (20.0, 16.5)])
def test_a_cut_delays_counts_that_an_earlier_fault_still_holds_up(cut_at, known_at):
    """Faults of links between data centers have an effect for ten seconds after their end."""
    cuts = [
        Fault(at, "cut", until, {"datacenter": "dc2"}) for at, until in ((2.0, 4.0), (cut_at, 30.0))
    ]
    scenario = Scenario("judged", "", nodes=6, datacenters=3, faults=tuple(cuts))
    excuses = Excuses(scenario, Disturbances(samples={"dc1": [(0.0, 0)], "dc2": [(0.0, 0)]}))
    here, there, third = (excuses.place(name, 7) for name in ("dc1", "dc2", "dc3"))

    cut_off, reachable = (replace(checked_at(1.0), datacenter=name) for name in ("dc2", "dc3"))
    assert excuses.shared_at(here, there, cut_off) == known_at
    assert excuses.shared_at(here, third, reachable) == pytest.approx(3.51)
