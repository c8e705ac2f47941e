"""Lending at the end of a run: wrong leases, reports, resets and refunds are noticed."""

import pytest

from node.requests.client_caches import ClientCaches
from node.requests.denial_subscriptions import DenialSubscriptions
from node.requests.leases.lease_grants import Lender
from node.requests.leases.lease_returns import LeaseReturns
from node.requests.sessions.permissions import Permissions
from simulations.scenarios.catalog import RULES
from simulations.scenarios.generate_rules import generate_lent_rule
from simulations.scenarios.scenario import Load, Scenario
from simulations.scenarios.seeds import stream
from simulations.world.run import simulate


def violated(level="core", seed=1):
    case = Scenario(
        "lending",
        "for a test",
        level=level,
        seconds=2.0,
        calm=8.0,
        rules=RULES + generate_lent_rule(stream(seed, "rule")),
        loads=(Load(rule="exact", per_second=5, keys=4),),
        bounded_refunds=True,
    )
    return {each.property for each in simulate(case, seed, "a command").violations}


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
