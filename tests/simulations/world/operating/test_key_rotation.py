"""Rotation of the cluster key: wrong reloads of keys and tokens are noticed."""

import pytest

from gossip.datagrams.seal import Seal
from node.config.access import Access
from node.requests.leases.lease_returns import LeaseReturns
from node.requests.sessions.open_sessions import OpenSessions
from ringfence.wire import Role, node_proof
from simulations.scenarios.scenario import Fault
from simulations.world import run
from tests.simulations.world.operating import closing_phases


@pytest.fixture(autouse=True)
def always(monkeypatch):
    monkeypatch.setattr(run, "_ROTATED", 1.0)


def violated(level="node", seed=1, faults=()):
    return closing_phases.violated(level, seed, bounded_refunds=True, calm_load=2.0, faults=faults)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("level", ["core", "node"])
def test_a_key_rotation_causes_no_violation(level, seed):
    assert violated(level, seed) == set()


@pytest.mark.parametrize("name", ["n1", "n2", "n3"])
def test_a_node_that_a_fault_has_started_without_seeds_joins_again(name):
    restart = Fault(0.5, "crash", 1.0, {"node": name, "seedless": 1})

    assert violated("core", faults=(restart,)) == set()


def test_datagrams_with_another_key_that_are_refused_are_noticed(monkeypatch):
    change_keys = Seal.change_keys
    monkeypatch.setattr(Seal, "change_keys", lambda self, keys: change_keys(self, keys[:1]))

    assert any("key_rotation" in violated(seed=seed) for seed in range(1, 5))


def test_a_session_with_a_revoked_token_is_noticed(monkeypatch):
    monkeypatch.setattr(OpenSessions, "recheck", lambda *_: 0)

    assert "key_rotation" in violated()


def test_a_node_that_accepts_only_one_key_is_noticed(monkeypatch):
    scopes_now = Access.scopes_now

    def first_only(self, role, name, proof, binding):
        if role is Role.NODE:
            proven = proof == node_proof(self.cluster_keys[0], name, self.cluster, binding)
            return scopes_now(self, role, name, proof, binding) if proven else None
        return scopes_now(self, role, name, proof, binding)

    monkeypatch.setattr(Access, "scopes_now", first_only)

    assert "key_rotation" in violated()


def test_borrowed_units_that_stay_charged_after_a_restart_of_their_owner_are_noticed(monkeypatch):
    monkeypatch.setattr(LeaseReturns, "keys_of", lambda *_: [])

    assert any("key_rotation" in violated("core", seed) for seed in range(1, 5))
