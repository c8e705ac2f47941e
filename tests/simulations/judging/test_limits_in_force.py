"""Limits of each host under faults that lower them."""

import pytest

from ringfence.limiter import Limit
from simulations.judging.limits_in_force import LimitsInForce
from simulations.scenarios.scenario import Fault, Load, Scenario

LIMIT = Limit(21, 10.0)


def amounts(faults, host, begin, end=None, **fields):
    """Return the amounts that a host may apply, in ascending order."""
    scenario = Scenario("limits", "", nodes=3, faults=tuple(faults), **fields)
    limits = LimitsInForce(scenario).of("client", LIMIT)
    found = limits.changes(host, begin, begin if end is None else end)
    return sorted(limit.amount for _, limit in found)


@pytest.mark.parametrize(("at", "found"), [(1, [21]), (5, [10]), (9, [21])])
def test_a_fault_lowers_the_limits_of_its_node_until_it_ends(at, found) -> None:
    lower = [Fault(2, "limits", 8, {"node": "n2", "part": 0.5})]

    assert amounts(lower, "n2", at) == found
    assert amounts(lower, "n1", at) == [21]


def test_a_span_with_a_change_has_both_limits() -> None:
    lower = [Fault(2, "rules", 8, {"part": 0.5})]

    assert amounts(lower, "n3", 1.9, 2.1) == [10, 21]
    assert amounts(lower, "n3", 7.9, 8.1) == [10, 21]


def test_factors_are_rounded_one_after_the_other() -> None:
    both = [
        Fault(1, "rules", 20, {"part": 0.5}),
        Fault(2, "limits", 8, {"node": "n2", "part": 0.5}),
    ]

    assert amounts(both, "n2", 3) == [5]
    assert amounts(both, "n2", 9) == [10]
    assert amounts(both, "n1", 3) == [10]


def test_a_node_that_starts_applies_the_lower_limits_too() -> None:
    faults = [
        Fault(1, "limits", 20, {"node": "n2", "part": 0.5}),
        Fault(3, "crash", 6, {"node": "n2"}),
    ]

    assert amounts(faults, "n2", 2) == [10]
    assert amounts(faults, "n2", 7) == [10]


def test_a_limit_in_the_request_does_not_change() -> None:
    lower = [Fault(2, "rules", 8, {"part": 0.5})]
    carried = Load(rule="client", limit="21/10s")

    assert amounts(lower, "n1", 5, loads=(carried,)) == [21]
