"""Lending at the end of a run: wrong leases, reports, resets and refunds are noticed."""

import pytest

from node.requests.client_caches import ClientCaches
from node.requests.denial_subscriptions import DenialSubscriptions
from node.requests.leases.lease_grants import Lender
from node.requests.leases.lease_returns import LeaseReturns
from node.requests.sessions.permissions import Permissions
from tests.simulations.world.operating import closing_phases


def violated(level="core", seed=1):
    return closing_phases.violated(level, seed, bounded_refunds=True)


@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("level", ["core", "node"])
def test_every_unit_is_counted_once(level, seed):
    assert violated(level, seed) == set()


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (Lender, "_charge", lambda *_: None),
        (Lender, "recall", lambda *_: None),
        (Lender, "lent_keys", lambda *_: []),
        (LeaseReturns, "must_precede", lambda *_: False),
        (ClientCaches, "record_report", lambda *_: None),
        (DenialSubscriptions, "end_denials", lambda *_: None),
        (Permissions, "may", lambda *_: True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bug_is_noticed(monkeypatch, owner, name, wrong):
    monkeypatch.setattr(owner, name, wrong)

    assert any("lending" in violated(seed=seed) for seed in range(1, 16))
