"""Invariants of slots: which runs they accept, and which violations they detect."""

import pytest
from msgspec.structs import replace

from hashring import shard_of
from ringfence.client.cluster.cluster import Cluster
from ringfence.limiter import Algorithm, Limit
from ringfence.limiter.reference.concurrency import Concurrency
from ringfence.rules.keys import encode_key
from ringfence.wire import Source
from simulations.judging.excuses import Holders
from simulations.judging.invariants import Final, Invariants
from simulations.judging.ledger import Ledger
from simulations.judging.slots import HeldSlot, HoldLedger, slot_violations
from simulations.scenarios.catalog import RULES
from simulations.scenarios.scenario import Fault, Holds, Load, Scenario
from simulations.world.run import simulate
from tests.simulations.judging.histories import KNOWN, OTHERS, OWNER, STANDBY
from tests.simulations.judging.histories import judged as judge

SMALL = Scenario(
    "slots",
    "for a test",
    seconds=8.0,
    calm=25.0,
    rules=RULES,
    loads=(Load(rule="exact", per_second=1, keys=2),),
    holds=(Holds(6, 2),),
)


def properties(case, level="core"):
    outcome = simulate(replace(case, level=level), 1, "a command")
    return {each.property for each in outcome.violations}


@pytest.mark.parametrize(
    ("faults", "level"),
    [
        ((), "core"),
        ((Fault(3, "leave", 6, {"node": "n2"}),), "core"),
        ((Fault(3, "crash", 6, {"node": "n2"}),), "core"),
        ((Fault(3, "crash", 6, {"node": "n2"}),), "node"),
    ],
    ids=str,
)
def test_slots_are_shared_after_any_fault_of_an_owner(faults, level):
    assert properties(replace(SMALL, faults=faults), level) == set()


@pytest.mark.parametrize("level", ["node", "core"])
def test_lost_wakeups_of_waiters_are_detected(monkeypatch, level):
    monkeypatch.setattr(Cluster, "on_slots_free", lambda *_: None)
    monkeypatch.setattr(Cluster, "slot_pause", lambda _: 60.0)

    assert "lost_wakeup" in properties(SMALL, level)


def test_leaked_slots_are_detected(monkeypatch):
    monkeypatch.setattr(Concurrency, "refund", lambda *_: None)
    long = replace(SMALL, rules=RULES.replace("period: 20s", "period: 300s"))

    assert "slot_leak" in properties(long)


def test_one_holder_too_many_is_detected(monkeypatch):
    fair = Concurrency.check

    def check(self, cost, now):
        row = fair(self, cost, now)
        return row if row[5] or not cost else (0, 0, 0, 0, 0, self.grant(cost, now))

    monkeypatch.setattr(Concurrency, "check", check)

    assert "over_admission" in properties(SMALL)


def held(asked, reported, until, *, is_held=True):
    return HeldSlot(asked, reported, "dc1", "k", 8.0, is_held, until, until)


def judged(*column, slots=1, **changes):
    known = {"sides": 1, "lost_spans": (), "is_clean": True} | changes
    return [each.property for each in slot_violations(column, slots, **known)]


def test_two_holders_of_one_slot_are_allowed_only_after_a_fault():
    column = held(0, 0, 5), held(1, 1, 5)

    assert judged(*column) == ["over_admission"]
    assert judged(*column, sides=2) == []
    assert judged(*column, lost_spans=[(0.5, 1.5)]) == []
    assert judged(*column, slots=2) == []
    assert judged(*column, is_beside_owner=lambda slot: slot is column[0]) == []


def test_a_waiter_beside_a_free_slot_is_a_lost_wakeup():
    assert judged(held(0, 0, 1), held(0.5, 8.5, 8.5, is_held=False)) == ["lost_wakeup"]
    assert judged(held(0, 0, 7), held(0.5, 8.5, 8.5, is_held=False)) == []
    assert judged(held(0, 0, 1), held(0.5, 1.1, 2)) == []


def test_a_wait_beyond_the_maximum_is_detected():
    assert judged(held(0, 14, 14), is_clean=False) == ["deadline"]


@pytest.mark.parametrize(
    ("fault", "accepts"),
    [
        (Fault(1.0, "errors", 2.0, {"node": OWNER, "count": 30}), True),
        (Fault(1.0, "errors", 2.0, {"node": OTHERS[-1], "count": 30}), False),
        (Fault(70.0, "errors", 71.0, {"node": OWNER, "count": 30}), False),
    ],
    ids=["of the owner", "of another node", "later"],
)
def test_a_standby_may_grant_a_slot_beside_the_owner_while_the_owner_fails(fault, accepts):
    rule = replace(KNOWN["log"], limit=Limit(2, 20.0, algorithm=Algorithm.CONCURRENCY))
    slots = HoldLedger()
    for at, source in ((1.2, Source.STANDBY), (1.8, Source.OWNER), (1.9, Source.OWNER)):
        slots.add("log", HeldSlot(at, at + 0.01, "dc1", "k", 8.0, True, 3.0, 3.1, "c", source))
    invariants, _ = judge("log", [], [fault])

    found = invariants.slot_violations(slots, {"log": rule}, Final(), 100.0)

    assert [each.property for each in found] == ([] if accepts else ["over_admission"])


@pytest.mark.parametrize(
    ("is_bounded", "moved_at", "found"),
    [(True, 2.0, []), (True, 4.0, ["slot_leak"]), (False, 2.0, ["slot_leak"])],
)
def test_a_slot_may_stay_when_its_client_may_release_it_only_at_the_owner_that_granted_it(
    is_bounded, moved_at, found
):
    rule = replace(KNOWN["log"], limit=Limit(2, 20.0, algorithm=Algorithm.CONCURRENCY))
    slots, holders, shard = HoldLedger(), Holders(), shard_of(encode_key(rule.id, ["k"]))
    slots.add("log", HeldSlot(1.0, 1.1, "dc1", "k", 8.0, True, 3.0, 3.1, "c", Source.OWNER))
    for at, host, is_holder in ((0, OWNER, 1), (moved_at, OWNER, 0), (moved_at, STANDBY, 1)):
        holders.add(host, at, bytes(shard) + bytes([is_holder]))
    scenario = Scenario("judged", "", nodes=6, bounded_refunds=is_bounded)
    invariants = Invariants({"log": rule}, scenario, 0.2, 0.0)
    final = Final({("dc1", "log", "k"): 1}, holders=holders)
    invariants.violations(Ledger(), final, 10.0)

    violations = invariants.slot_violations(slots, {"log": rule}, final, 10.0)

    assert [each.property for each in violations] == found
