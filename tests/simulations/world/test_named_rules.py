"""Rules by the names in the ledger: those of the file, and limits in requests."""

import pytest

from ringfence.rules.loading.yaml_files import load_text
from simulations.scenarios.scenario import Load
from simulations.world.named_rules import NamedRules

FILE = """\
domain: sim
descriptors:
  - key: day
    rate_limit: {unit: day, requests_per_unit: 4, algorithm: fixed_window}
  - key: free
    rate_limit: {unlimited: true}
"""


def named(*loads: Load) -> NamedRules:
    return NamedRules(load_text(FILE).rules, loads or (Load(rule="day"),))


def test_names_come_from_the_loads_in_order_and_unlimited_rules_limit_nothing() -> None:
    rules = named(Load(rule="free", also="day"), Load(rule="mine", limit="2/day"))

    assert rules.names == ["free", "day", "mine"]
    assert list(rules.limited()) == ["day", "mine"]


def test_a_load_without_a_rule_is_rejected() -> None:
    with pytest.raises(ValueError, match="got night"):
        named(Load(rule="night"))


def test_limits_in_requests_have_keys_of_their_own() -> None:
    adhoc = named(Load(rule="day2", limit="2/day")).match("day2", "k1")
    override = named(Load(rule="day2", limit="2/day", overrides=True)).match("day2", "k1")
    plain = named().match("day", "k1")

    assert adhoc is not None
    assert override is not None
    assert plain is not None
    assert len({adhoc.key, override.key, plain.key}) == 3
    assert adhoc.rule.limit == override.rule.limit != plain.rule.limit


def test_a_request_has_one_descriptor_for_each_name() -> None:
    assert Load(rule="a", also="b,c").names == ["a", "b", "c"]
    assert Load(rule="a").names == ["a"]
