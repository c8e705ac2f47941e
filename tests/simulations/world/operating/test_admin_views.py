"""Laws of statistics and of admin views: a node that publishes a wrong number is noticed."""

import pytest
from msgspec.structs import replace

from node.metrics.counters import Counters
from node.metrics.detailed import Metrics
from node.metrics.node_queries import NodeQueries
from node.metrics.throttled_keys import ThrottledKeys
from ringfence.wire import Stats
from simulations.scenarios.catalog import RULES
from simulations.scenarios.scenario import Fault, Load, Scenario
from simulations.world.run import simulate

CASE = Scenario(
    "views",
    "for a test",
    level="core",
    nodes=4,
    datacenters=2,
    seconds=5.0,
    calm=8.0,
    calm_load=3.0,
    rules=RULES,
    loads=(Load(rule="exact", per_second=40, keys=4, peeks=0.1, charges=0.1),),
)


def violated(case=CASE):
    return {each.property for each in simulate(case, 1, "a command").violations}


@pytest.mark.parametrize("level", ["core", "node"])
def test_nodes_publish_what_clients_received(level):
    faults = (Fault(2, "crash", 3, {"node": "n2"}),)

    assert violated(replace(CASE, level=level, faults=faults)) == set()


def test_a_decision_that_is_not_counted_is_noticed(monkeypatch):
    count = Metrics.decided
    monkeypatch.setattr(
        Metrics,
        "decided",
        lambda self, batch, results, *, as_standby: (
            count(self, batch, results, as_standby=as_standby) if len(self._asked) % 7 else None
        ),
    )

    assert violated() == {"statistics"}


def test_a_wrong_counter_is_noticed(monkeypatch):
    count = Counters.decided

    def decided(self, op, results, *, as_standby):
        count(self, op, results, as_standby=as_standby)
        self.add("denied")

    monkeypatch.setattr(Counters, "decided", decided)

    assert violated() == {"statistics"}


def test_a_denial_that_is_listed_twice_is_noticed(monkeypatch):
    count = ThrottledKeys.denied
    monkeypatch.setattr(ThrottledKeys, "denied", lambda self, keys: count(self, [*keys, *keys]))

    assert violated() == {"statistics"}


@pytest.mark.parametrize(("lost", "found"), [(1, set()), (100, {"views"})])
def test_a_list_of_denials_is_requested_again_if_a_member_does_not_answer(monkeypatch, lost, found):
    ask, left = NodeQueries.throttled_of, [lost]

    async def throttled_of(self, name, count):
        left[0] -= name == "n2"
        return None if name == "n2" and left[0] >= 0 else await ask(self, name, count)

    monkeypatch.setattr(NodeQueries, "throttled_of", throttled_of)

    assert violated() == found


def test_a_wrong_list_of_members_is_noticed(monkeypatch):
    peers = NodeQueries.peers

    def wrong(self, seq):
        found = peers(self, seq)
        found.plain[0]["owned_shards"] += 1
        return found

    monkeypatch.setattr(NodeQueries, "peers", wrong)

    assert violated() == {"views"}


def test_wrong_figures_of_another_member_are_noticed(monkeypatch):
    async def none(self, name):
        return None if name == "n3" else self.stats(1).counters

    monkeypatch.setattr(NodeQueries, "counters_of", none)

    assert violated() == {"views"}


def test_a_metric_that_differs_from_its_counter_is_noticed(monkeypatch):
    stats = NodeQueries.stats

    def once_more(self, seq):
        found = stats(self, seq)
        self._reads = getattr(self, "_reads", 0) + 1
        return Stats(seq, found.counters | {"keys_to_copy": self._reads})

    monkeypatch.setattr(NodeQueries, "stats", once_more)

    assert "views" in violated()
