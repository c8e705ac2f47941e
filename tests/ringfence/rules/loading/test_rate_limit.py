"""Keys of `rate_limit` and `defaults`: of Envoy, of Ringfence, and not available yet."""

from pathlib import Path

import pytest

from ringfence.limiter.limit import NS_PER_SECOND, Algorithm, Calendar, Limit
from ringfence.rules import OnFailure
from ringfence.rules.loading.yaml_files import Defaults, RuleFileError, load_path, load_text

RINGFENCE_RULES = load_path(Path(__file__).parents[1] / "files" / "ours.yaml").rules
SECOND = NS_PER_SECOND
MINUTE, DAY = 60 * SECOND, 86_400 * SECOND
FIXED = Algorithm.FIXED_WINDOW


def text_of(rate_limit, defaults="{}"):
    return (
        f"domain: d\ndefaults: {defaults}\ndescriptors:\n- key: k\n  rate_limit: {{{rate_limit}}}\n"
    )


def rule_of(rate_limit, defaults="{}", node=None):
    (rule,) = load_text(text_of(rate_limit, defaults), defaults=node).rules.rules()
    return rule


def problems_of(rate_limit, defaults="{}"):
    with pytest.raises(RuleFileError) as caught:
        load_text(text_of(rate_limit, defaults), "rules.yaml")
    return [str(problem) for problem in caught.value.problems]


def rule_with_key(key):
    (rule,) = (rule for rule in RINGFENCE_RULES.rules() if rule.path == ((key, None),))
    return rule


@pytest.mark.parametrize(
    ("key", "limit"),
    [
        ("plain", Limit.of_ns(10, MINUTE, FIXED)),
        ("bucket", Limit.of_ns(5, SECOND, Algorithm.TOKEN_BUCKET, burst=20)),
        ("implied_bucket", Limit.of_ns(5, SECOND, Algorithm.TOKEN_BUCKET, burst=20)),
        ("meter", Limit.of_ns(5, SECOND, Algorithm.LEAKY_BUCKET)),
        ("queue", Limit.of_ns(5, SECOND, Algorithm.LEAKY_BUCKET, burst=7, queue=True)),
        ("slots", Limit.of_ns(60, MINUTE, slots=6)),
        ("log", Limit.of_ns(5, 15 * MINUTE, Algorithm.SLIDING_WINDOW_LOG)),
        ("seconds", Limit.of_ns(5, 90 * SECOND, FIXED)),
        ("fraction", Limit.of_ns(5, SECOND // 2, FIXED)),
        ("as_unit", Limit.of_ns(5, 60 * MINUTE, FIXED)),
        (
            "calendar",
            Limit.of_ns(5, 30 * DAY, FIXED, calendar=Calendar.MONTH, timezone="Europe/Berlin"),
        ),
        ("soft", Limit.of_ns(100, MINUTE, FIXED, soft_permille=100)),
        ("jobs", Limit.of_ns(20, MINUTE, Algorithm.CONCURRENCY)),
    ],
)
def test_ringfence_keys_set_the_algorithm_and_its_parameters(key, limit):
    assert rule_with_key(key).limit == limit


def test_ringfence_keys_set_the_failure_policy_and_the_scope():
    assert rule_with_key("plain").on_failure is OnFailure.LOCAL
    assert rule_with_key("denying").on_failure is OnFailure.DENY
    assert rule_with_key("here").scope == "datacenter"


def test_a_period_of_exactly_one_unit_has_the_name_of_the_unit():
    assert [rule_with_key(key).unit for key in ("as_unit", "seconds", "plain")] == [
        "hour",
        "",
        "minute",
    ]


@pytest.mark.parametrize("unit", ["second", "MINUTE", "Hour", "day", "week", "month", "year"])
def test_the_seven_units_may_be_written_in_any_case(unit):
    assert rule_of(f"unit: {unit}, requests_per_unit: 1").unit == unit.lower()


@pytest.mark.parametrize("amount", ["0", "4294967295", "+5", "1_000"])
def test_amounts_are_whole_numbers_of_32_bits(amount):
    rule = rule_of(f"unit: day, requests_per_unit: {amount}")

    assert rule.limit.amount == int(amount)


@pytest.mark.parametrize(
    ("rate_limit", "problem"),
    [
        (
            "unit: fortnite, requests_per_unit: 5",
            "unknown unit 'fortnite'; use one of: second, minute, hour, day, week, month, year",
        ),
        ("unit: minuts, requests_per_unit: 5", "unknown unit 'minuts'; did you mean 'minute'?"),
        ("unit: '', requests_per_unit: 5", "unknown unit ''; use one of: second"),
        ("unit: 5, requests_per_unit: 5", "unknown unit '5'; use one of: second"),
        ("unit: [day], requests_per_unit: 5", "unit must be text, got a list; write one value"),
        ("requests_per_unit: 5", "unit is missing; add `unit:` with one of: second"),
        (
            "unit: day",
            "requests_per_unit is missing; add it; `requests_per_unit: 0` denies everything",
        ),
        ("unit: day, requests_per_unit: ", "requests_per_unit is missing; add it"),
        (
            "unit: day, requests_per_unit: -1",
            "requests_per_unit is -1; write a whole number from 0",
        ),
        ("unit: day, requests_per_unit: 4294967296", "requests_per_unit is 4294967296; write a"),
        ("unit: day, requests_per_unit: 1.0", "requests_per_unit is a number with a point; write"),
        ("unit: day, requests_per_unit: '5'", "requests_per_unit is the text '5'; write a whole"),
        ("unit: day, requests_per_unit: 010", "requests_per_unit is '010'; write a whole number"),
        ("unit: day, requests_per_unit: 0x10", "requests_per_unit is '0x10'; write a whole number"),
        ("unit: day, requests_per_unit: {}", "requests_per_unit is a map; write a whole number"),
        ("unlimited: true, unit: day", "unlimited excludes unit; keep one of them"),
        ("unlimited: true, burst: 5", "unlimited excludes burst; keep one of them"),
        ("unlimited: maybe", "unlimited is the text 'maybe'; write true or false"),
        (
            "unit: day, requests_per_unit: 1, replaces: [{name: ''}]",
            "name is missing or empty; write `- name: NAME` with the name of",
        ),
        ("unit: day, requests_per_unit: 1, replaces: [{}]", "name is missing or empty; write"),
        (
            "unit: day, requests_per_unit: 1, name: me, replaces: [{name: me}]",
            "replaces its own name 'me'; name another limit",
        ),
        (
            "unit: day, requests_per_unit: 1, replaces: [me]",
            "an item of replaces must be a map, got the text 'me'",
        ),
        (
            "unit: day, requests_per_unit: 1, replaces: {name: me}",
            "replaces must be a list, got a map",
        ),
        (
            "unit: day, requests_per_unit: 1, replaces: [{nam: me}]",
            "unknown key 'nam'; did you mean 'name'?",
        ),
    ],
)
def test_a_wrong_envoy_key_is_reported_with_its_fix(rate_limit, problem):
    assert problems_of(rate_limit)[0].startswith(f"rules.yaml:5: d > k > rate_limit: {problem}")


@pytest.mark.parametrize(
    ("rate_limit", "problem"),
    [
        ("unit: day, period: 5", "period and unit are both given; keep one of them"),
        ("period: 0", "period: must be whole ns, at least 1, got '0'; use a longer period"),
        ("period: -5", "period: must be a period, got '-5'; write it as `90s` or `15m`"),
        ("period: 5 parsecs", "period: unknown unit 'parsecs'; use one of: second"),
        ("period: [5]", "period is a list; write one value"),
        ("period: 1000 years", "period must be more than 0 s and at most 146 years"),
        ("unit: day, algorithm: token_buket", "unknown algorithm 'token_buket'; did you mean"),
        ("unit: day, burst: 0", "burst is 0; write a whole number from 1 to 4294967295"),
        (
            "unit: day, algorithm: fixed_window, burst: 5",
            "burst needs token_bucket or leaky_bucket, got fixed_window; "
            "remove it, or write `algorithm: token_bucket`",
        ),
        (
            "unit: day, algorithm: token_bucket, mode: queue",
            "mode needs leaky_bucket, got token_bucket",
        ),
        ("unit: day, algorithm: leaky_bucket, mode: pipe", "unknown mode 'pipe'; use one of"),
        ("unit: day, algorithm: token_bucket, slots: 2", "slots needs sliding_window, got"),
        ("unit: day, slots: 0", "slots is 0; write a whole number from 1 to 3600"),
        ("unit: second, slots: 7", "slots must divide the period of 1 s into equal parts, got 7"),
        (
            "unit: day, algorithm: sliding_window, align: calendar",
            "align needs fixed_window, got sliding_window",
        ),
        (
            "unit: hour, align: calendar",
            "`align: calendar` needs a unit of a day or longer; use one of the units day, week, "
            "month, year, or remove align",
        ),
        ("period: 86400, align: calendar", "`align: calendar` needs a unit of a day or longer"),
        ("unit: day, align: moon", "unknown align 'moon'; use one of: calendar, epoch"),
        (
            "unit: day, timezone: Europe/Berlin",
            "timezone has no effect without calendar",
        ),
        (
            "unit: day, align: calendar, timezone: Europe/Berln",
            "timezone must be an IANA name that this host knows, got 'Europe/Berln'",
        ),
        ("unit: day, soft: 10", "soft: must be a percentage, got '10'; write it as `10%`"),
        ("unit: day, soft: 5000%", "soft must be from 0 % to 1000 %, got 5000 %"),
        ("unit: day, on_failure: alow", "unknown on_failure 'alow'; did you mean 'allow'?"),
        ("unit: day, scope: planet", "unknown scope 'planet'; use one of: datacenter, global"),
        (
            "unit: day, elastic: {pool: p, up_to: 200%}",
            "`elastic` is not available yet; use `soft: 20%` to admit a fixed percentage above",
        ),
        (
            "unit: day, shadow_mode: true",
            "shadow_mode is not allowed inside rate_limit",
        ),
        ("unit: day, bursts: 5", "unknown key 'bursts'; did you mean 'burst'?"),
    ],
)
def test_a_wrong_ringfence_key_is_reported_with_its_fix(rate_limit, problem):
    (found,) = problems_of(f"requests_per_unit: 5, {rate_limit}")

    assert found.startswith(f"rules.yaml:5: d > k > rate_limit: {problem}")


def test_all_mistakes_of_one_limit_are_reported_at_once():
    problems = problems_of(
        "unit: dy, requests_per_unit: -1, burst: x, algorithm: y, soft: z, align: a, on_failure: b"
    )

    assert len(problems) == 7


def test_a_limit_beside_unlimited_causes_only_a_warning():
    loaded = load_text(text_of("unlimited: true, requests_per_unit: 5"), "rules.yaml")

    assert [str(warning) for warning in loaded.warnings] == [
        "rules.yaml:5: d > k > rate_limit: requests_per_unit has no effect beside unlimited; "
        "remove one of them"
    ]


@pytest.mark.parametrize(
    ("keys", "algorithm"),
    [
        ("", "sliding_window_log"),
        ("burst: 5", "token_bucket"),
        ("mode: queue", "leaky_bucket"),
        ("mode: meter, burst: 5", "leaky_bucket"),
        ("slots: 2", "sliding_window"),
        ("align: calendar", "fixed_window"),
        ("align: epoch", "sliding_window_log"),
    ],
)
def test_a_key_of_one_algorithm_chooses_it_over_the_default(keys, algorithm):
    rule = rule_of(f"unit: day, requests_per_unit: 5, {keys}", "{algorithm: sliding_window_log}")

    assert rule.limit.algorithm == algorithm


def test_a_burst_keeps_a_default_algorithm_that_supports_burst():
    rule = rule_of("unit: day, requests_per_unit: 5, burst: 9", "{algorithm: leaky_bucket}")

    assert rule.limit.algorithm is Algorithm.LEAKY_BUCKET


def test_a_rule_overrides_its_file_and_a_file_overrides_the_node():
    node = Defaults(algorithm=Algorithm.TOKEN_BUCKET, on_failure=OnFailure.DENY)
    plain, named = "unit: day, requests_per_unit: 5", "algorithm: fixed_window"

    def algorithm(rate_limit, defaults):
        return rule_of(rate_limit, defaults, node).limit.algorithm.value

    assert algorithm(plain, "{}") == "token_bucket"
    assert algorithm(plain, "{algorithm: leaky_bucket}") == "leaky_bucket"
    assert algorithm(f"{plain}, {named}", "{algorithm: leaky_bucket}") == "fixed_window"
    assert rule_of(plain, "{}", node).on_failure is OnFailure.DENY
    assert rule_of(plain, "{on_failure: local}", node).on_failure is OnFailure.LOCAL
    assert rule_of(f"{plain}, on_failure: allow", "{}", node).on_failure is OnFailure.ALLOW


def test_defaults_apply_only_to_rules_that_support_them():
    defaults = "{mode: queue, slots: 6, align: calendar, timezone: Europe/Berlin, soft: 5%}"

    def limit(keys):
        return rule_of(f"requests_per_unit: 5, {keys}", defaults).limit

    assert limit("unit: minute") == Limit.of_ns(5, MINUTE, slots=6, soft_permille=50)
    assert limit("unit: day, algorithm: token_bucket, soft: 0%") == Limit.of_ns(
        5, DAY, Algorithm.TOKEN_BUCKET
    )
    assert limit("unit: minute, algorithm: leaky_bucket").queue
    assert limit("unit: minute, algorithm: fixed_window").calendar is None
    assert limit("unit: day, algorithm: fixed_window").calendar is Calendar.DAY
    assert limit("unit: day, algorithm: fixed_window").timezone == "Europe/Berlin"
    assert limit("unit: day, algorithm: fixed_window, align: epoch").calendar is None


@pytest.mark.parametrize(
    ("defaults", "problem"),
    [
        ("{burst: 5}", "burst cannot be a default; write it in each rate_limit that needs it"),
        ("{unit: day}", "unit cannot be a default"),
        ("{elastic: {}}", "`elastic` is not available yet"),
        ("{algoritm: x}", "unknown key 'algoritm'; did you mean 'algorithm'?"),
        ("{algorithm: x}", "unknown algorithm 'x'; use one of: token_bucket"),
        (
            "{timezone: Mars/Base}",
            "timezone must be an IANA name that this host knows, got 'Mars/Base'",
        ),
    ],
)
def test_wrong_defaults_are_reported_with_their_fix(defaults, problem):
    (found,) = problems_of("unit: day, requests_per_unit: 5", defaults)

    assert found.startswith(f"rules.yaml:2: d > defaults: {problem}")


def test_a_default_that_does_not_fit_the_numbers_of_a_rule_is_named():
    (found,) = problems_of("unit: minute, requests_per_unit: 5", "{slots: 7}")

    assert "slots must divide the period of 60 s into equal parts, got 7 (the map `defa" in found


def test_leases_are_allowed_unless_rule_or_file_forbid_them():
    limit, no = "unit: minute, requests_per_unit: 5", "{leases: false}"

    assert rule_of(limit).leases
    assert not rule_of(f"{limit}, leases: false").leases
    assert not rule_of(limit, no).leases
    assert rule_of(f"{limit}, leases: true", no).leases
