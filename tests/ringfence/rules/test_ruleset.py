from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ringfence.errors import ConfigError
from ringfence.limiter.limit import NS_PER_SECOND, Limit
from ringfence.rules import Descriptor, Domain, OnFailure, Open, Rule, RuleSet, rule_id
from ringfence.rules.glob import Glob, is_pattern
from ringfence.rules.keys import MAX_KEY
from ringfence.rules.loading.yaml_files import load_path, load_text
from ringfence.rules.ruleset import metric_of_key

FILES = Path(__file__).parent / "files"
UNIT_NS = {"s": 1, "min": 60, "h": 3600, "day": 86_400}


def load(name):
    return load_path(FILES / f"{name}.yaml").rules


def entries(text):
    return tuple(tuple(entry.split("=", 1)) for entry in text.split(", ") if entry)


def match(rules, text, domain="test-domain", limit=None, cost=None):
    (found,) = rules.match(domain, [Descriptor(entries(text), limit, cost)])
    return found


def amount_and_period(text):
    amount, unit = text.split("/")
    return int(amount), UNIT_NS[unit] * NS_PER_SECOND


def limit_of(text):
    return Limit.of_ns(*amount_and_period(text))


def a_rule(domain="d", *path, **settings):
    return Rule(rule_id(domain, path), domain, path, limit_of("5/s"), **settings)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "key1=something",
        "key1=value1",
        "key2=value2, subkey=subvalue",
        "key5=value5, subkey5=subvalue",
        "key2=value3",
        "key8=anything",
        "subkey1=subvalue1",
        "key1=value1, subkey1=a, subkey1=b",
    ],
)
def test_a_request_that_ends_at_a_descriptor_without_a_limit_matches_nothing(text):
    assert match(load("tree"), text) is None


@pytest.mark.parametrize(
    ("text", "limit", "metric"),
    [
        ("key1=value1, subkey1=something", "5/s", "key1_value1.subkey1"),
        ("key1=value1, subkey1=subvalue1", "10/s", "key1_value1.subkey1_subvalue1"),
        ("key2=something", "20/min", "key2"),
        ("key2=value2", "30/min", "key2_value2"),
        ("key3=foo", "1/h", "key3"),
        ("key4=foo", "1/day", "key4"),
        ("key5=value5", "15/day", "key5_value5"),
        ("key5=value5, subkey5=subvalue5", "25/day", "key5_value5.subkey5_subvalue5"),
        ("key7=unspecified_value", "70/min", "key7_unspecified_value"),
    ],
)
def test_a_request_matches_the_limit_of_its_last_entry(text, limit, metric):
    found = match(load("tree"), text)

    assert (found.rule.limit.amount, found.rule.limit.period_ns) == amount_and_period(limit)
    assert found.metric == f"test-domain.{metric}"


def test_an_unknown_domain_matches_nothing_and_is_detectable():
    rules = load("tree")

    assert rules.match("other", [Descriptor(entries("key2=x"))] * 2) == (None, None)
    assert match(rules, "key2=x", domain="other", limit=limit_of("10/day")) is None
    assert rules.knows_domain("test-domain")
    assert not rules.knows_domain("other")
    assert rules.domains == ("test-domain",)


def test_an_unlimited_rule_matches_and_has_no_limit():
    found = match(load("tree"), "key6=foo")

    assert found.rule.limit is None
    assert found.metric == "test-domain.key6"


def test_a_match_has_the_unit_and_the_name_of_its_limit():
    found = match(load("tree"), "key4=foo")

    assert (found.rule.name, found.rule.unit) == ("key4_rate_limit", "day")
    assert match(load("tree"), "key3=foo").rule.unit == "hour"


def test_shadow_mode_applies_only_to_its_own_descriptor():
    rules = load("shadow")
    texts = [
        "key1=value1, subkey1=any",
        "key1=value1, subkey1=subvalue1",
        "key2=any",
        "key2=value2",
    ]

    assert [match(rules, text).rule.shadow for text in texts] == [False, True, True, False]


def test_a_match_has_the_metadata_of_its_rule():
    rules = load("metadata")

    assert match(rules, "key1=value1, subkey1=x").rule.metadata == {"name": "service_1"}
    quota = match(rules, "key2=x").rule
    assert quota.metadata == {"service_with_quota": {"name": "service_2"}}
    assert quota.quota


def test_merged_files_are_one_domain():
    rules = load_path(FILES / "merged", merge=True).rules

    assert match(rules, "key1=value1").rule.limit == limit_of("10/min")
    assert match(rules, "key2=value2").rule.limit == limit_of("20/min")


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("wild=foo1", "wild_foo*"),
        ("wild=foo2", "wild_foo*"),
        ("wild=foo", "wild_foo*"),
        ("noWild=foo", "noWild_foo"),
        ("noVal=anything", "noVal"),
        ("midWild=barab", "midWild_bar*b"),
        ("midWild=bar123b", "midWild_bar*b"),
        ("midWild=barb", "midWild_bar*b"),
        ("multiWild=foo123bar456baz", "multiWild_foo*bar*baz"),
        ("multiWild=foobarbaz", "multiWild_foo*bar*baz"),
        ("nestedWild=val1, wild=goo2", "nestedWild_val1.wild_goo*"),
    ],
)
def test_a_value_that_matches_a_pattern_has_the_limit_of_the_pattern(text, metric):
    assert match(load("wildcards"), text).metric == f"test-domain.{metric}"


@pytest.mark.parametrize(
    "text",
    [
        "wild=bar",
        "noWild=foo1",
        "midWild=bara",
        "midWild=xbarb",
        "multiWild=foo123baz",
        "multiWild=bar456baz",
        "nestedWild=val1, wild=foo",
        "nestedWild=val2, wild=goo",
    ],
)
def test_a_value_that_matches_no_pattern_has_no_limit(text):
    assert match(load("wildcards"), text) is None


def test_the_first_pattern_in_the_file_applies_when_two_patterns_match():
    limits = "{unit: minute, requests_per_unit: 5}"
    rules = load_text(
        "domain: d\ndescriptors:\n"
        f"  - {{key: path, value: '/a*', rate_limit: {limits}}}\n"
        f"  - {{key: path, value: '*z', rate_limit: {limits}}}\n"
    ).rules

    [both] = rules.match("d", [Descriptor((("path", "/a/z"),))])
    [second] = rules.match("d", [Descriptor((("path", "/b/z"),))])

    assert (both.metric, second.metric) == ("d.path_/a*", "d.path_*z")


def test_each_value_under_a_pattern_has_its_own_counter_unless_the_threshold_is_shared():
    rules = load("wildcards")
    own = [match(rules, f"wild=foo{number}") for number in (1, 2)]
    shared = [match(rules, f"shared=team-{name}") for name in ("red", "blue")]

    assert own[0].key != own[1].key
    assert shared[0].key == shared[1].key
    assert shared[0].metric == "test-domain.shared_team-*"


def test_a_key_begins_with_the_identity_of_its_rule():
    rules = load("tree")
    found = match(rules, "key1=value1, subkey1=something")

    assert rules.by_id(int.from_bytes(found.key[:8], "big")) is found.rule
    assert found.key[8:] == b"\x09something"
    assert rules.by_id(1) is None


def test_an_exact_value_is_part_of_the_identity_and_not_of_the_key():
    assert len(match(load("tree"), "key2=value2").key) == 8


def test_changing_a_limit_keeps_the_keys():
    before = a_rule("d", ("k", None))
    after = replace(before, limit=limit_of("9/h"), name="new", shadow=True)

    assert match(RuleSet.of(before), "k=v", "d").key == match(RuleSet.of(after), "k=v", "d").key


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("route=/a, user=7", "route_/a.user"),
        ("route=/a, method=GET", "route_/a.method_GET"),
        ("team=red-1, user=7", "team_red-*.user_7"),
        ("file=a.png", "file_*.png"),
        ("file=a.css", "file_a.css"),
    ],
)
def test_metric_names_follow_their_precedence(text, metric):
    assert match(load("metrics"), text, "metrics").metric == f"metrics.{metric}"


@pytest.mark.parametrize(
    ("details", "values", "metric"),
    [
        (("", "value"), ("", "x"), "d.route.user_x"),
        (("", "value"), ("/a", ""), "d.route.user"),
        (("detailed", "detailed"), ("", ""), "d.route_.user_"),
        (("detailed", "detailed"), ("/a", "x"), "d.route_/a.user_x"),
    ],
)
def test_metric_names_of_empty_values_equal_those_of_the_envoy_service(details, values, metric):
    rule = replace(a_rule("d", ("route", None), ("user", None)), details=details)
    text = ", ".join(f"{key}={value}" for key, value in zip(("route", "user"), values, strict=True))
    found = match(RuleSet.of(rule), text, "d")

    assert found.metric == metric
    assert metric_of_key(rule, found.key) == metric


def test_an_empty_value_beside_a_shared_threshold_is_absent_from_the_metric_name():
    rule = a_rule("d", ("team", "red-*"), ("user", None))
    rule = replace(rule, details=("share", "detailed"))
    found = match(RuleSet.of(rule), "team=red-1, user=", "d")

    assert found.metric == "d.team_red-*.user"
    assert metric_of_key(rule, found.key) == found.metric


def test_a_key_with_a_digest_has_no_metric_name():
    rule = replace(a_rule("d", ("k", None)), details=("value",))

    assert metric_of_key(rule, match(RuleSet.of(rule), "k=" + "x" * 200, "d").key) is None


def test_values_below_a_shared_threshold_have_their_own_counters():
    rules = load("metrics")
    first, second, third = (
        match(rules, text, "metrics")
        for text in ("team=red-1, user=7", "team=red-2, user=7", "team=red-1, user=8")
    )

    assert first.key == second.key != third.key


def matched_names(*texts):
    found = load("replaces").match("shop", [Descriptor(entries(text)) for text in texts])
    return [None if each is None else each.rule.name for each in found]


def test_a_replaced_limit_is_dropped_when_its_replacement_matches():
    assert matched_names("address=1", "region=eu") == ["by_address", "by_region"]
    assert matched_names("address=1", "user=7", "region=eu") == [None, "by_user", None]
    assert matched_names("address=1", "user=7", "nothing=1") == [None, "by_user", None]


def test_a_replaced_limit_still_replaces_others():
    assert matched_names("address=1", "user=7", "crew=1") == [None, None, ""]


def test_an_override_wins_over_the_rule_and_carries_its_limit():
    found = match(load("tree"), "key1=value1, subkey1=something", limit=limit_of("10/day"), cost=3)

    assert found.rule.limit == limit_of("10/day")
    assert found.rule.carried
    assert found.cost == 3
    assert found.metric == "test-domain.key1_value1.subkey1_something"


def test_overrides_of_one_descriptor_share_one_key():
    rules = load("tree")
    text = "key1=value1, subkey1=something"
    by_day = match(rules, text, limit=limit_of("10/day"))
    by_hour = match(rules, text, limit=limit_of("42/h"))
    other = match(rules, "key1=value1, subkey1=else", limit=limit_of("42/h"))

    assert by_day.key == by_hour.key != other.key
    assert by_day.key[:8] != match(rules, text).key[:8]


def test_the_key_of_an_override_is_no_longer_than_any_other():
    limit = limit_of("10/day")
    rules = load("tree")
    found = [
        rules.match("test-domain", [Descriptor((("key1", "x" * 1000 + end),), limit)])[0].key
        for end in ("a", "b")
    ]

    assert max(map(len, found)) <= MAX_KEY
    assert found[0] != found[1]


def test_an_override_needs_entries_but_no_rule_and_inherits_no_flags():
    rules = load("shadow")

    assert match(rules, "no=rule", limit=limit_of("1/s")).metric == "test-domain.no_rule"
    assert match(rules, "", limit=limit_of("1/s")) is None
    assert not match(rules, "key2=any", limit=limit_of("1/s")).rule.shadow


def test_an_override_uses_the_failure_policy_of_its_domain():
    rules = load_path(FILES / "ours.yaml").rules

    assert match(rules, "a=b", "ours", limit_of("1/s")).rule.on_failure is OnFailure.LOCAL


def test_the_cost_of_a_descriptor_reaches_its_match():
    rules = load("wildcards")

    assert match(rules, "noWild=foo").cost is None
    assert match(rules, "noWild=foo", cost=0).cost == 0
    assert match(rules, "noVal=x", cost=7).cost == 7


def test_values_with_invalid_unicode_have_separate_keys():
    rules = load("wildcards")

    assert match(rules, "noVal=\udcff").key != match(rules, "noVal=\udcfe").key


def test_rule_sets_with_equal_content_are_equal_in_any_version():
    rule = a_rule("d", ("k", None))

    assert RuleSet.of(rule, version=1) == RuleSet.of(rule, version=2)
    assert RuleSet.of(rule) != RuleSet.of(replace(rule, shadow=True))
    assert RuleSet.of(rule) != "rules"
    assert RuleSet().version == 0
    assert repr(RuleSet.of(rule, version=3)) == "RuleSet(d; 1 rules, v3)"


def test_as_carried_changes_only_the_carried_flag():
    rules = RuleSet([Domain("d", (a_rule("d", ("k", None)), Open((("k", "free"),))))], version=4)
    carried = rules.as_carried()

    assert [rule.carried for rule in carried.rules()] == [True]
    assert match(carried, "k=v", "d").key == match(rules, "k=v", "d").key
    assert match(carried, "k=free", "d") is None
    assert carried.version == 4


def test_missing_steps_above_a_rule_are_added():
    deep, above = a_rule("d", ("a", None), ("b", "x")), a_rule("d", ("a", None))
    rules = RuleSet.of(deep, above)

    assert rules.rules() == (deep, above)
    assert match(rules, "a=1, b=x", "d").rule is deep
    assert match(rules, "a=1", "d").rule is above
    assert RuleSet.of(deep).contents[0].rows == (Open((("a", None),)), deep)


def test_a_duplicate_path_is_rejected():
    with pytest.raises(ConfigError, match="d > k=v occurs twice"):
        RuleSet.of(a_rule("d", ("k", "v")), a_rule("d", ("k", "v")))


def test_a_duplicate_domain_is_rejected():
    with pytest.raises(ConfigError, match="domain 'd' occurs twice"):
        RuleSet([Domain("d"), Domain("d")])


def test_two_rules_with_one_identity_are_refused():
    first, second = a_rule("d", ("a", None)), a_rule("e", ("b", None))

    with pytest.raises(ConfigError, match="d > a and e > b have the same 64-bit identity"):
        RuleSet.of(first, replace(second, id=first.id))


steps = st.tuples(
    st.sampled_from(["a", "b"]), st.none() | st.text(alphabet="xy*", min_size=1, max_size=3)
)
tree_paths = st.lists(steps, min_size=1, max_size=3).map(tuple)
places = st.dictionaries(tree_paths, st.booleans(), min_size=1, max_size=8)
requests = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.text(alphabet="xyz", max_size=3)), max_size=3
).map(tuple)


def match_naively(rows, request):
    """Match as Envoy does, by a linear search in each level of the tree."""
    at = ()
    for key, value in request:
        level = dict.fromkeys(path[: len(at) + 1] for path in rows if path[: len(at)] == at)
        level = [path for path in level if len(path) == len(at) + 1 and path[-1][0] == key]
        exact = [path for path in level if path[-1][1] == value]
        matching = [
            path
            for path in level
            if path[-1][1] is not None
            and is_pattern(path[-1][1])
            and Glob(path[-1][1]).matches(value)
        ]
        any_value = [path for path in level if path[-1][1] is None]
        if not (exact or matching or any_value):
            return None
        at = (exact + matching + any_value)[0]
    return at if rows.get(at) else None


@given(rows=places, request=requests)
def test_matching_agrees_with_a_naive_search(rows, request):
    domain = Domain(
        "d", tuple(a_rule("d", *path) if limited else Open(path) for path, limited in rows.items())
    )
    (found,) = RuleSet([domain]).match("d", [Descriptor(request)])

    expected = match_naively(rows, request) if request else None
    assert (None if found is None else found.rule.path) == expected


@given(rows=places, first=requests, second=requests)
def test_two_requests_share_a_counter_only_when_rule_and_counted_values_agree(rows, first, second):
    rules = RuleSet.of(*(a_rule("d", *path) for path in rows))
    one, two = rules.match("d", [Descriptor(first), Descriptor(second)])

    if one is not None and two is not None:
        counted = [
            [
                value
                for (_, value), (_, configured) in zip(request, found.rule.path, strict=True)
                if configured is None or is_pattern(configured)
            ]
            for request, found in ((first, one), (second, two))
        ]
        assert (one.key == two.key) == (one.rule.path == two.rule.path and counted[0] == counted[1])


def test_a_trial_has_counters_separate_from_its_rules_and_from_other_trials():
    limited = "    rate_limit: {unit: day, requests_per_unit: 5}\n"
    rules = load_text(f"domain: log\ndescriptors:\n  - key: client\n{limited}").rules
    first, again, second = (rules.as_trial(salt) for salt in (b"1", b"1", b"2"))

    def key_of(tried):
        (match,) = tried.match("log", [Descriptor((("client", "x"),))])
        assert match.rule.limit == rules.rules()[0].limit
        return match.key

    assert key_of(first) == key_of(again)
    assert len({key_of(rules), key_of(first), key_of(second)}) == 3
    assert all(rule.carried for rule in first.rules())
    assert first.by_id(first.rules()[0].id) is first.rules()[0]
