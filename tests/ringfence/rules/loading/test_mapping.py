from pathlib import Path

import pytest
import yaml

from ringfence.limiter.limit import Algorithm
from ringfence.rules.loading.rate_limit import Defaults
from ringfence.rules.loading.yaml_files import RuleFileError, load_mapping, load_path, load_text

FILES = sorted((Path(__file__).parents[1] / "files").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_mapping_gives_the_same_rules_as_a_file_with_the_same_content(file):
    mapping = yaml.safe_load(file.read_text("utf-8"))

    assert load_mapping(mapping).rules == load_path(file).rules


def test_defaults_apply_to_mappings():
    rules = {
        "domain": "d",
        "descriptors": ({"key": "k", "rate_limit": {"unit": "day", "requests_per_unit": 5}},),
    }
    (rule,) = load_mapping(rules, defaults=Defaults(Algorithm.TOKEN_BUCKET)).rules.rules()

    assert rule.limit.algorithm is Algorithm.TOKEN_BUCKET


def problems_of(mapping):
    with pytest.raises(RuleFileError) as caught:
        load_mapping(mapping)
    return [str(problem) for problem in caught.value.problems]


def test_an_error_is_reported_with_its_path():
    rules = {"domain": "d", "descriptors": [{"key": "k", "rate_limit": {"unit": "dy"}}]}

    assert problems_of(rules) == [
        "rules: d > k > rate_limit: unknown unit 'dy'; did you mean 'day'?",
        "rules: d > k > rate_limit: requests_per_unit is missing; add it; "
        "`requests_per_unit: 0` denies everything",
    ]


@pytest.mark.parametrize("value", [{1}, b"bytes", object, 1j])
def test_a_value_of_a_type_that_no_file_can_contain_is_rejected(value):
    (problem,) = problems_of({"domain": "d", "descriptors": value})

    assert problem.endswith("; use a type that a rule file can contain")


def test_text_with_invalid_unicode_is_rejected():
    problems = problems_of({"domain": "\ud800", "descriptors": []})

    assert problems[0].startswith("rules: values must be text, numbers, flags, lists or maps")


def test_a_mapping_that_contains_itself_is_rejected():
    rules: dict[str, object] = {"domain": "d"}
    rules["descriptors"] = [rules]

    assert "nested more than 100 deep" in problems_of(rules)[0]


def test_keys_must_be_text():
    (problem,) = problems_of({"domain": "d", 5: 6})

    assert problem == "rules: key '5' must be text, got a whole number; quote it: '5'"


def test_text_and_mapping_are_equal_rules():
    text = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5}}]"

    assert load_text(text).rules == load_mapping(yaml.safe_load(text)).rules
