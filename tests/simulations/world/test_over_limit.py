import pytest

from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import Source
from simulations.judging.ledger import Answered, Ledger
from simulations.scenarios.scenario import Load, Scenario
from simulations.world.over_limit import Excess, worst_excess
from simulations.world.run import simulate

RULES = """
domain: sim
descriptors:
  - key: each
    rate_limit: {unit: day, requests_per_unit: 12, algorithm: fixed_window}
  - key: all
    rate_limit: {unit: day, requests_per_unit: 12, algorithm: fixed_window, scope: global}
"""
KNOWN = {rule.path[-1][0]: rule for rule in load_text(RULES).rules.rules()}


def worst(rule: str, **units: int) -> Excess:
    """Return the excess of a key that admitted these units in each data center."""
    ledger = Ledger()
    for datacenter, cost in units.items():
        ledger.add(rule, Answered(1.0, 1.1, datacenter, "k1", cost, True, Source.OWNER))
    return worst_excess(ledger, lambda name, _: KNOWN.get(name))


def test_a_rule_without_a_scope_admits_its_limit_in_each_data_center() -> None:
    assert worst("each", dc1=12, dc2=12, dc3=12) == Excess()


def test_units_over_the_limit_of_one_data_center_are_counted() -> None:
    found = worst("each", dc1=5, dc2=14)

    assert (found.units, found.subject) == (2, ("each", "k1"))
    assert found.part is not None
    assert found.part.datacenters == {"dc2"}


def test_units_over_a_limit_of_all_data_centers_are_counted_together() -> None:
    assert worst("all", dc1=7, dc2=7).units == 2


def test_a_key_without_a_limit_has_no_excess() -> None:
    assert worst("unknown", dc1=100) == Excess()


@pytest.mark.parametrize(("rule", "is_global"), [("each", False), ("all", True)])
def test_the_history_of_a_key_says_whether_data_centers_share_its_counts(
    rule: str, is_global: bool
) -> None:
    load = Load(rule=rule, per_second=20, keys=1)
    outcome = simulate(
        Scenario("two", "", "core", 2, 2, seconds=4, calm=1, rules=RULES, loads=(load,)), 1, ""
    )

    assert outcome.violations == []
    assert (outcome.figures["over_admitted_worst_key"] > 0) == is_global
    assert [each.is_global for each in outcome.histories] == [is_global]
