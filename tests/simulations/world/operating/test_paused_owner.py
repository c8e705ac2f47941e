"""Pause of an owner: lost refunds, resets and reports of leases are noticed."""

import pytest

from node.requests.leases.lease_grants import Lender
from node.shards.applied_refunds import AppliedRefunds
from node.shards.fallback_log import FallbackLog
from ringfence.client.local_cache.leases import Leases
from simulations.world import run
from tests.simulations.world.operating import closing_phases


@pytest.fixture(autouse=True)
def always(monkeypatch):
    monkeypatch.setattr(run, "_PAUSED", 1.0)
    monkeypatch.setattr(run, "_ROTATED", 0.0)


def violated(level="core", seed=1, *, bounded_refunds=False):
    return closing_phases.violated(level, seed, bounded_refunds=bounded_refunds, calm_load=2.0)


@pytest.mark.parametrize("bounded_refunds", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("level", ["core", "node"])
def test_a_pause_of_an_owner_causes_no_violation(level, seed, bounded_refunds):
    assert violated(level, seed, bounded_refunds=bounded_refunds) == set()


def test_a_lost_refund_of_a_standby_is_noticed(monkeypatch):
    monkeypatch.setattr(FallbackLog, "add_refunded", lambda *_: None)

    assert "paused_owner" in violated()


def test_a_lost_reset_of_a_standby_is_noticed(monkeypatch):
    monkeypatch.setattr(AppliedRefunds, "reset", lambda self, keys, count, now: count())

    assert "paused_owner" in violated()


@pytest.mark.parametrize(
    ("kind", "name"), [(Leases, "_add_unreported"), (Lender, "_refund_unspent")]
)
def test_borrowed_units_that_stay_charged_are_noticed(monkeypatch, kind, name):
    monkeypatch.setattr(kind, name, lambda *_: None)

    assert any("paused_owner" in violated(seed=seed) for seed in range(1, 5))
