"""Longest delay of messages by each fault, which the invariants use."""

import pytest

from simulations.scenarios.faults.injection import held_up_s
from simulations.scenarios.scenario import Fault


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault(1.0, "clog", 9.0, {"node": "n1"}), 8.0),
        (Fault(1.0, "slow", 9.0, {"node": "n1", "extra_ms": 100}), 2.0),
        (Fault(1.0, "spikes", 9.0, {"node": "n1", "mean_ms": 400}), 5.0),
        (Fault(1.0, "busy", 9.0, {"node": "n1", "cost_ms": 5}), 0.7),
        (Fault(1.0, "loss", 9.0, {"share": 0.1}), 0.0),
    ],
)
def test_a_fault_holds_up_a_transfer_for_a_known_time(fault: Fault, expected: float) -> None:
    assert held_up_s(fault, 0.7) == pytest.approx(expected)
