"""Law of replicas: a standby that lacks units of its owner is noticed without a crash."""

import pytest

from node.shards.replicas import Replicas
from node.shards.replication import Replication
from simulations.scenarios.catalog import RULES
from simulations.scenarios.scenario import Fault, Load, Scenario
from simulations.world.run import simulate


def violated(*faults, level="core"):
    case = Scenario(
        "replicas",
        "for a test",
        level=level,
        nodes=3,
        seconds=6.0,
        calm=10.0,
        rules=RULES,
        loads=(Load(rule="exact", per_second=20, keys=10),),
        faults=faults,
    )
    return {each.property for each in simulate(case, 1, "a command").violations}


@pytest.mark.parametrize("level", ["core", "node"])
@pytest.mark.parametrize("verb", ["crash", "leave", "pause"])
def test_replicas_are_complete_after_a_fault(verb, level):
    assert violated(Fault(2, verb, 4, {"node": "n2"}), level=level) == set()


def test_a_replica_that_is_not_sent_is_noticed(monkeypatch):
    async def nothing(self):
        pass

    monkeypatch.setattr(Replication, "run", nothing)

    assert "replicas" in violated()


def test_a_replica_that_is_not_updated_is_noticed(monkeypatch):
    keep = Replicas.keep

    def first_only(self, sender, counts, *args):
        if not len(self):
            keep(self, sender, counts, *args)

    monkeypatch.setattr(Replicas, "keep", first_only)

    assert "replicas" in violated()
