"""Validation of rule files: first the checks that Envoy also has, then those that it lacks."""

import pytest

from ringfence.rules.loading.yaml_files import RuleFileError, load_files, load_text

LIMIT = "{unit: minute, requests_per_unit: 5}"


def problems_of(text):
    with pytest.raises(RuleFileError) as caught:
        load_text(text, "rules.yaml")
    return [str(problem) for problem in caught.value.problems]


def rules_text(*lines):
    return "\n".join(["domain: d", "descriptors:", *lines])


OTHER = f"- {{key: other, rate_limit: {LIMIT}}}"


def warnings_of(*lines):
    return [str(warning) for warning in load_text(rules_text(*lines), "rules.yaml").warnings]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            ["- {key: k, 0.25: x}"],
            "3: d > k: key '0.25' must be text, got a number with a point; quote it: '0.25'",
        ),
        (["- {key: k, [a]: x}"], "3: d > k: a key must be text, got a list; write one word"),
        (["- a"], "3: d: a descriptor must be a map, got the text 'a'; write `key: value` pairs"),
        (["- [a]"], "3: d: a descriptor must be a map, got a list; write `key: value` pairs"),
        (["- 0.5"], "3: d: a descriptor must be a map, got a number with a point"),
        (
            ["- key: k", f"  ratelimit: {LIMIT}"],
            "4: d > k: unknown key 'ratelimit'; did you mean 'rate_limit'?",
        ),
        (
            ["- key: k", "  rate_limit: {unit: day, requestsperunit: 5}"],
            "4: d > k > rate_limit: unknown key 'requestsperunit'; "
            "did you mean 'requests_per_unit'?",
        ),
        (
            ["- {key: k, zzz: 1}"],
            "3: d > k: unknown key 'zzz'; use one of: key, value, rate_limit, descriptors, "
            "share_threshold, value_to_metric, shadow_mode, quota_mode, detailed_metric, metadata",
        ),
        (
            ["- {key: k, value: 1.5}"],
            "3: d > k=1.5: value must be text, got a number with a point; quote it: value: '1.5'",
        ),
        (
            ["- {key: k, value: 2001-01-01}"],
            "3: d > k=2001-01-01: value must be text, got a date; quote it: value: '2001-01-01'",
        ),
        (["- {key: k, value: [a]}"], "3: d > k: value must be text, got a list; write one value"),
        (["- {key: k, value: {a: b}}"], "3: d > k: value must be text, got a map; write one value"),
        (["- {key: ''}"], "3: d > ?: key is missing or empty; write `key: NAME`"),
        (["- {key: null}"], "3: d > ?: key is missing or empty; write `key: NAME`"),
        (["- {value: v}"], "3: d > ?=v: key is missing or empty; write `key: NAME`"),
        (
            ["- {key: k, value: v}", "- {key: j}", "- {key: k, value: v}"],
            "5: d > k=v: the same key and value are already in line 3; keep one of them",
        ),
        (
            ["- key: k", "  descriptors:", "  - {key: a}", "  - {key: a}"],
            "6: d > k > a: the same key and value are already in line 5; keep one of them",
        ),
        (
            ["- {key: k, key: l}"],
            "3: d > l: key 'key' is given twice, first in line 3; keep one of them",
        ),
        (["- {key: k, rate_limit: 5}"], "3: d > k: rate_limit must be a map, got a whole number"),
        (["- {key: k, descriptors: {a: b}}"], "3: d > k: descriptors must be a list, got a map"),
        (["- {key: k, shadow_mode: 1}"], "3: d > k: shadow_mode is a whole number; write true"),
        (["- {key: k, quota_mode: 'yes'}"], "3: d > k: quota_mode is the text 'yes'; write true"),
        (
            ["- {key: k, value: v, share_threshold: true}"],
            "3: d > k=v: share_threshold needs a `*` in the value; write a pattern, or remove",
        ),
        (["- {key: k, share_threshold: true}"], "3: d > k: share_threshold needs a `*`"),
        (
            ["- {key: k, unit: day}"],
            "3: d > k: unit is only allowed inside rate_limit; move it",
        ),
        (
            ["- {key: k, on_failure: deny}"],
            "3: d > k: on_failure is only allowed inside rate_limit; move it into `rate_limit:`",
        ),
        (["- {key: k, global: true}"], "3: d > k: global is only allowed inside rate_limit"),
        (["- {key: k, <<: {ky: v}}"], "3: d > k: unknown key 'ky'; did you mean 'key'?"),
        (["- {key: k, metadata: [a]}"], "3: d > k > metadata: metadata must be a map, got a list"),
    ],
)
def test_a_wrong_descriptor_is_reported_with_line_path_and_fix(lines, problem):
    (found,) = problems_of(rules_text(*lines))

    assert found.startswith(f"rules.yaml:{problem}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("descriptors: []", "1: domain is missing or empty; begin the file with `domain: NAME`"),
        ("domain: ''", "1: domain is missing or empty; begin the file with `domain: NAME`"),
        ("domain: [a]", "1: domain must be text, got a list; write one value"),
        (
            "domain: 1.5",
            "1: domain must be text, got a number with a point; quote it: domain: '1.5'",
        ),
        ("domain: d\ndescriptors: 5", "2: d: descriptors must be a list, got a whole number"),
        ("domain: d\ndescriptor: []", "2: unknown key 'descriptor'; did you mean 'descriptors'?"),
        (
            "domain: d\nalgorithm: x",
            "2: algorithm is not allowed at the top of the file",
        ),
        ("domain: d\nglobal: {}", "2: global is not allowed at the top of the file"),
        ("domain: d\ndefaults: 5", "2: d > defaults: defaults must be a map, got a whole number"),
    ],
)
def test_a_wrong_key_at_the_top_is_reported_with_line_and_fix(text, problem):
    (found,) = problems_of(text)

    assert found.startswith(f"rules.yaml:{problem}")


def test_an_unknown_replaced_name_is_rejected():
    lines = [
        f"- {{key: a, rate_limit: {{name: by_address, {LIMIT[1:]}}}",
        "- key: b",
        "  rate_limit:",
        "    unit: day",
        "    requests_per_unit: 1",
        "    replaces: [{name: by_adress}]",
    ]

    assert problems_of(rules_text(*lines)) == [
        "rules.yaml:8: d > b > rate_limit: replaces 'by_adress', but no limit of this domain has "
        "that name; did you mean 'by_address'?"
    ]


def test_a_rule_with_another_error_can_still_be_replaced_by_name():
    lines = [
        "- {key: a, rate_limit: {name: by_address, unit: fortnight, requests_per_unit: 1}}",
        "- {key: b, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: by_address}]}}",
    ]

    (problem,) = problems_of(rules_text(*lines))

    assert "unknown unit 'fortnight'" in problem


def test_names_of_other_domains_are_not_replaced(tmp_path):
    replacing = f"- {{key: b, rate_limit: {{replaces: [{{name: x}}], {LIMIT[1:]}}}"
    named = f"- {{key: a, rate_limit: {{name: x, {LIMIT[1:]}}}"
    own, other = tmp_path / "own.yaml", tmp_path / "other.yaml"
    own.write_text(rules_text(replacing))
    other.write_text(rules_text(named).replace("domain: d", "domain: other"))

    with pytest.raises(RuleFileError) as caught:
        load_files([own, other])
    assert str(caught.value.problems[0]).endswith("add `name:` to the limit that must be replaced")

    assert warnings_of(named, replacing) == [], "the same name in the same domain is replaced"


@pytest.mark.parametrize(
    ("first", "second"), [("foo*", "foo*bar"), ("*", "a*"), ("*a*", "*ba*"), ("a*b*", "a*b*b")]
)
def test_a_pattern_after_a_broader_pattern_is_rejected(first, second):
    lines = [f'- {{key: k, value: "{value}", rate_limit: {LIMIT}}}' for value in (first, second)]

    assert problems_of(rules_text(*lines)) == [
        f"rules.yaml:4: d > k={second}: this pattern can never match: {first!r} in line 3 matches "
        "all its values; move it above the broader one, or remove it"
    ]
    assert warnings_of(*reversed(lines)) == []


def test_two_spellings_of_one_pattern_are_rejected_in_either_order():
    lines = [f'- {{key: k, value: "{value}"}}' for value in ("a*", "a**")]

    assert "can never match" in problems_of(rules_text(*lines))[0]
    assert "can never match" in problems_of(rules_text(*reversed(lines)))[0]


def test_patterns_of_different_keys_do_not_hide_each_other():
    assert warnings_of('- {key: a, value: "*"}', '- {key: b, value: "x*"}', OTHER) == []


def test_too_many_patterns_under_one_key_are_refused():
    lines = [f'- {{key: k, value: "{number}-*"}}' for number in range(1001)]

    assert "more than 1000 patterns" in problems_of(rules_text(*lines))[0]


def test_a_value_exempt_from_a_general_limit_causes_a_warning():
    lines = [f"- {{key: k, rate_limit: {LIMIT}}}", "- {key: k, value: v}"]

    assert warnings_of(*lines) == [
        "rules.yaml:4: d > k=v: this value has no limit, and the limit for any 'k' in line 3 does "
        "not apply to it; unless it is an allow-list, add a rate_limit or remove the descriptor"
    ]


def test_an_inner_step_that_hides_a_general_limit_causes_a_warning():
    lines = [
        f"- {{key: k, rate_limit: {LIMIT}}}",
        f"- {{key: k, value: v, descriptors: [{{key: l, rate_limit: {LIMIT}}}]}}",
    ]

    (warning,) = warnings_of(*lines)

    assert warning.endswith("does not apply to it; unless it is an allow-list, add a rate_limit")


def test_a_rule_hidden_by_a_catch_all_pattern_causes_a_warning():
    lines = [f'- {{key: k, value: "*", rate_limit: {LIMIT}}}', f"- {{key: k, rate_limit: {LIMIT}}}"]

    assert warnings_of(*lines) == [
        "rules.yaml:4: d > k: this can never match: '*' in line 3 matches every value; "
        "remove one of them"
    ]


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("- {key: k, value: ''}", "an empty value means any value"),
        ("- {key: k, value: }", "value is empty, as if it were absent; write its value, or rem"),
        (
            "- {key: k, rate_limit: {unit: day, requests_per_unit: 1, algorithm: }}",
            "algorithm is empty, as if it were absent; write its value, or remove it",
        ),
        (
            "- {key: k, rate_limit: {unit: day, requests_per_unit: 5, soft: 19.9%}}",
            "soft is less than one unit, so it has no effect; write a margin of at least one unit, "
            "or remove it",
        ),
        ("- {key: 'k*'}", "a `*` in a key is an ordinary character"),
        ("- {key: k, shadow_mode: true}", "shadow_mode has no effect without a rate_limit"),
        (
            "- {key: k, rate_limit: {unlimited: true}, value_to_metric: true}",
            "value_to_metric has no effect on an unlimited rule",
        ),
        (
            "- {key: k, rate_limit: {unlimited: true}, detailed_metric: true}",
            "detailed_metric has no effect on an unlimited rule",
        ),
        ("- {key: k, metadata: {a: b}}", "metadata has no effect without a rate_limit"),
    ],
)
def test_legal_but_suspicious_keys_cause_warnings(line, warning):
    (found,) = warnings_of(line, OTHER)

    assert found.startswith("rules.yaml:3: d > k")
    assert warning in found


@pytest.mark.parametrize("soft", ["20%", "0%"])
def test_a_soft_margin_of_one_unit_or_of_zero_causes_no_warning(soft):
    line = f"- {{key: k, rate_limit: {{unit: day, requests_per_unit: 5, soft: {soft}}}}}"

    assert warnings_of(line) == []


def test_whole_numbers_and_flags_keep_their_spelling_as_values():
    rules = load_text(
        rules_text(
            f"- {{key: port, value: 8080, rate_limit: {LIMIT}}}",
            f"- {{key: debug, value: on, rate_limit: {LIMIT}}}",
            f"- {{key: mask, value: 0x1F, rate_limit: {LIMIT}}}",
        )
    ).rules

    values = [value for rule in rules.rules() for _, value in rule.path]
    assert values == ["8080", "on", "0x1F"]


def test_a_key_with_an_empty_value_is_treated_as_absent():
    rules = load_text(
        rules_text("- {key: k, value: , rate_limit: , descriptors: , shadow_mode: }")
    ).rules

    assert rules.rules() == ()
    assert rules.knows_domain("d")


@pytest.mark.parametrize(
    "text", ["domain: d", "domain: d\ndescriptors: []", "domain: d\ndescriptors: [{key: k}]"]
)
def test_a_domain_without_a_limit_causes_a_warning(text):
    loaded = load_text(f"# Comment\n{text}\n", "rules.yaml")

    assert loaded.rules.knows_domain("d")
    assert [str(warning) for warning in loaded.warnings] == [
        "rules.yaml:2: d: the domain has no rate_limit, so its checks are never limited; add "
        "descriptors with a rate_limit, unless all limits are in requests"
    ]


def test_an_unlimited_rule_is_a_limit_that_was_chosen():
    assert warnings_of("- {key: k, rate_limit: {unlimited: true}}") == []


def test_metadata_keeps_every_kind_of_value():
    text = rules_text(
        "- key: k",
        f"  rate_limit: {LIMIT}",
        "  metadata: {a: 1, b: -2.5, c: yes, d: null, e: [x, {f: 1e3}], g: {h: {}}, '1': 0}",
    )
    (rule,) = load_text(text).rules.rules()

    assert rule.metadata == {
        "a": 1,
        "b": -2.5,
        "c": True,
        "d": None,
        "e": ["x", {"f": "1e3"}],
        "g": {"h": {}},
        "1": 0,
    }


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ("{a: 2001-01-01}", "2001-01-01 cannot be kept exactly as a date; quote it: '2001-01-01'"),
        ("{a: .inf}", ".inf cannot be kept exactly as a number with a point; quote it: '.inf'"),
        ("{a: .nan}", ".nan cannot be kept exactly as a number with a point"),
        ("{a: 99999999999999999999}", "cannot be kept exactly as a whole number"),
        ("{a: 0x1F}", "0x1F cannot be kept exactly as a whole number; quote it: '0x1F'"),
        ("{a: 010}", "010 cannot be kept exactly as a whole number"),
        ("{a: 190:20:30.5}", "190:20:30.5 cannot be kept exactly as a number with a point"),
        ("{1: x}", "key '1' must be text, got a whole number; quote it: '1'"),
        ("{a: 1, a: 2}", "key 'a' is given twice"),
        ("{a: " + "[" * 40 + "]" * 40 + "}", "nested more than 32 deep; flatten it"),
    ],
)
def test_metadata_that_cannot_be_encoded_is_rejected(metadata, problem):
    text = rules_text("- key: k", f"  rate_limit: {LIMIT}", f"  metadata: {metadata}")

    (found,) = problems_of(text)

    assert found.startswith("rules.yaml:5: d > k > metadata")
    assert problem in found
