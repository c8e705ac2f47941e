"""Law of replicas: a standby that lacks units of its owner is noticed without a crash."""

import pytest

from node.cross_dc.counts import CrossDcCounts
from node.shards.replicas import Replicas
from node.shards.replication import Replication
from simulations.judging.excuses.clock_errors import ClockErrors
from simulations.scenarios.catalog import RULES
from simulations.scenarios.scenario import Fault, Load, Scenario
from simulations.world.run import simulate

BUCKETS = """
domain: sim
descriptors:
  - key: bucket
    rate_limit: {unit: minute, requests_per_unit: 4, algorithm: token_bucket}
  - key: shared
    rate_limit: {unit: minute, requests_per_unit: 20, algorithm: leaky_bucket, scope: global}
"""
AN_HOUR_AHEAD = Fault(2, "clock_step", None, {"node": "n1", "by_s": 3600})


def violated(*faults, level="core", rules=RULES, rule="exact", datacenters=1, nodes=3):
    case = Scenario(
        "replicas",
        "for a test",
        level=level,
        nodes=nodes * datacenters,
        datacenters=datacenters,
        seconds=6.0,
        calm=10.0,
        rules=rules,
        loads=(Load(rule=rule, per_second=20, keys=10),),
        faults=faults,
    )
    return {each.property for each in simulate(case, 1, "a command").violations}


@pytest.mark.parametrize("level", ["core", "node"])
@pytest.mark.parametrize("verb", ["crash", "leave", "pause"])
def test_replicas_are_complete_after_a_fault(verb, level):
    assert violated(Fault(2, verb, 4, {"node": "n2"}), level=level) == set()


@pytest.mark.parametrize("rule", ["bucket", "shared"])
@pytest.mark.parametrize(
    "fault",
    [
        Fault(2, "rules", 4, {"part": 0.5}),
        Fault(2, "crash", 4, {"node": "n2"}),
        Fault(2, "clog", 5, {"node": "n2"}),
        Fault(2, "clock_step", None, {"node": "n2", "by_s": 3}),
    ],
    ids=lambda fault: fault.verb,
)
def test_replicas_of_buckets_are_complete_after_a_fault(fault, rule):
    assert violated(fault, rules=BUCKETS, rule=rule, datacenters=2) == set()


def test_a_replica_that_is_not_sent_is_noticed(monkeypatch):
    async def nothing(self):
        pass

    monkeypatch.setattr(Replication, "run", nothing)

    assert "replicas" in violated()


@pytest.mark.parametrize(
    ("faults", "more"),
    [
        ([], {}),
        ([], {"rules": BUCKETS, "rule": "bucket"}),
        ([], {"rule": "window"}),
        # The standby refuses the windows in any case, as they have not begun at its clock.
        ([AN_HOUR_AHEAD], {"rule": "window", "nodes": 2}),
    ],
)
def test_a_replica_that_is_not_updated_is_noticed(monkeypatch, faults, more):
    keep = Replicas.keep

    def first_only(self, sender, counts, *args):
        if not len(self):
            keep(self, sender, counts, *args)

    monkeypatch.setattr(Replicas, "keep", first_only)

    assert "replicas" in violated(*faults, **more)


def test_windows_that_a_standby_refuses_by_its_clock_are_excused_only_after_a_step(monkeypatch):
    assert violated(AN_HOUR_AHEAD, rule="window", nodes=2) == set()

    monkeypatch.setattr(ClockErrors, "steps_s", lambda self, place: 0.0)

    assert "replicas" in violated(AN_HOUR_AHEAD, rule="window", nodes=2)


def test_a_replica_of_a_bucket_that_drains_by_an_old_limit_is_noticed(monkeypatch):
    began = Replication.__init__

    def without_conversions(self, me, ownership, sender, engine, *args):
        began(self, me, ownership, sender, engine, *args)
        engine.on_conversion.clear()

    monkeypatch.setattr(Replication, "__init__", without_conversions)

    assert "replicas" in violated(
        Fault(3, "rules", 90, {"part": 0.5}), rules=BUCKETS, rule="bucket"
    )


@pytest.mark.parametrize("more", [{"rule": "everywhere"}, {"rules": BUCKETS, "rule": "shared"}])
def test_a_replica_without_the_counts_of_another_data_center_is_noticed(monkeypatch, more):
    receive = CrossDcCounts.receive_counts

    def unmarked(self, sender, message):
        answer = receive(self, sender, message)
        for key in message.keys:
            self._ownership.changed.keys.pop(key, None)
        return answer

    monkeypatch.setattr(CrossDcCounts, "receive_counts", unmarked)

    assert "replicas" in violated(datacenters=2, **more)
