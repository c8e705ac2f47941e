"""Views of the admin port: rules, and the counter that a descriptor matches."""

import pytest

from node.admin.http_messages import HttpProblem
from node.admin.views import match_of, rules_view
from ringfence.rules import Descriptor, RuleSet
from ringfence.rules.loading.yaml_files import load_text

RULES = """
domain: api
descriptors:
  - key: client
    rate_limit: {unit: minute, requests_per_unit: 5}
    descriptors:
      - {key: path, rate_limit: {unit: minute, requests_per_unit: 2}}
"""


def rules_of(text: str = RULES) -> RuleSet:
    return load_text(text).rules


def test_a_descriptor_matches_the_counter_of_its_rule() -> None:
    match = match_of(rules_of(), "api", Descriptor([("client", "x"), ("path", "/")]))

    assert match.rule.path == (("client", None), ("path", None))


@pytest.mark.parametrize(
    ("domain", "entries", "status", "title", "detail"),
    [
        ("shop", [("client", "x")], 404, "no rules for domain 'shop'", "known are api"),
        ("d" * 101, [("client", "x")], 404, f"no rules for domain '{'d' * 100}'", "known are api"),
        ("api", [], 400, "no descriptor", "write its entries as the query, in order"),
        ("api", [("color", "red")], 404, "no rule of domain 'api' matches", "in the order of the"),
    ],
)
def test_a_descriptor_without_a_counter_is_refused_with_the_reason(
    domain: str, entries: list[tuple[str, str]], status: int, title: str, detail: str
) -> None:
    with pytest.raises(HttpProblem) as caught:
        match_of(rules_of(), domain, Descriptor(entries))

    assert caught.value.status == status
    assert str(caught.value).startswith(title)
    assert len(str(caught.value)) < 130
    assert detail in caught.value.remedy


def test_an_error_names_twenty_of_the_known_domains() -> None:
    texts = [RULES.replace("api", f"d{number:02}") for number in range(21)]
    rules = RuleSet.of(*[rule for text in texts for rule in rules_of(text).rules()])

    with pytest.raises(HttpProblem) as caught:
        match_of(rules, "shop", Descriptor([("client", "x")]))
    assert "d19" in caught.value.remedy
    assert "d20" not in caught.value.remedy
    with pytest.raises(HttpProblem, match="no rules for domain") as caught:
        match_of(RuleSet(), "shop", Descriptor([("client", "x")]))
    assert caught.value.remedy == "known are none: this node has no rules"


def test_rules_have_their_domain_and_the_number_of_their_keys() -> None:
    rules = rules_of()
    outer, inner = rules.rules()

    view = rules_view(rules, None, {inner.id: 7}, is_compiled=True)

    assert (view["version"], view["count"], view["datacenters"]) == (rules.version, 2, None)
    assert {row["domain"] for row in view["rules"]} == {"api"}
    keys = {row["identity"]: row["keys"] for row in view["rules"]}
    assert keys[f"{outer.id:016x}"] == 0
    assert keys[f"{inner.id:016x}"] == 7
    assert all(row["keys"] is None for row in view["rules"] if not row["identity"])
