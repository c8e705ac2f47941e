import pytest

from ringfence.rules import RuleSet
from ringfence.rules.loading.mapping import load_mapping
from ringfence.rules.unmatched_requests import known_paths, unknown_domain, unknown_path

LIMIT = {"unit": "minute", "requests_per_unit": 5}
RULES = load_mapping(
    {
        "domain": "api",
        "descriptors": [
            {"key": "client", "rate_limit": LIMIT},
            {"key": "client", "value": "10.0.0.5", "rate_limit": {"unlimited": True}},
            {"key": "path", "value": "/login", "descriptors": [{"key": "ip", "rate_limit": LIMIT}]},
            {"key": "open"},
        ],
    }
).rules


def test_known_paths_are_the_distinct_paths_of_the_rules_of_a_domain() -> None:
    assert known_paths(RULES, "api") == (("client",), ("path", "ip"))


def test_a_known_domain_and_a_path_of_a_rule_are_no_problem() -> None:
    assert unknown_domain(RULES, "api") is None
    assert unknown_path(RULES, "api", ["path", "ip"]) is None


def test_a_misspelt_domain_is_described_with_the_nearest_and_all_known() -> None:
    assert unknown_domain(RULES, "apii") == (
        "domain 'apii' has no rules, so its checks are never limited; did you mean 'api'? "
        "there are rules for api"
    )


def test_a_node_without_rules_is_described_as_such() -> None:
    assert "start every node with the same --rules" in (unknown_domain(RuleSet(), "api") or "")


@pytest.mark.parametrize("path", [["ip"], ["path"], ["ip", "path"], ["open"], ["client", "ip"]])
def test_keys_in_another_order_or_number_are_reported_as_unknown(path: list[str]) -> None:
    assert unknown_path(RULES, "api", path) is not None


def test_an_unknown_path_is_described_with_the_nearest_and_the_known_ones() -> None:
    assert unknown_path(RULES, "api", ["clinet"]) == (
        "domain 'api' has no rule for descriptor key 'clinet', so it is never limited; "
        "did you mean 'client'? its rules are for client, path > ip"
    )


def test_keys_in_another_order_are_described_with_the_right_order() -> None:
    message = unknown_path(RULES, "api", ["ip", "path"])

    assert message is not None
    assert "the order of the keys counts: did you mean 'path > ip'? its rules are" in message


def test_a_long_name_is_cut_in_the_message() -> None:
    assert len(unknown_domain(RULES, "x" * 10_000) or "") < 300
