"""Keys that set which data centers share a limit."""

import pytest

from ringfence.rules import RuleSet
from ringfence.rules.loading.yaml_files import RuleFileError, load_text

DAY = "unit: day, requests_per_unit: 5"


def text_of(keys, defaults="{}", limit=DAY):
    words = ", ".join(filter(None, [limit, keys]))
    return f"domain: d\ndefaults: {defaults}\ndescriptors:\n- key: k\n  rate_limit: {{{words}}}\n"


def scope_of(keys, defaults="{}", limit=DAY):
    loaded = load_text(text_of(keys, defaults, limit))
    (rule,) = loaded.rules.rules()
    assert RuleSet.from_plain(loaded.rules.to_plain()) == loaded.rules
    return f"{rule.scope} {rule.home}".strip()


def problem_of(keys, defaults="{}", limit=DAY):
    with pytest.raises(RuleFileError) as caught:
        load_text(text_of(keys, defaults, limit), "rules.yaml")
    (problem,) = caught.value.problems
    return str(problem)


@pytest.mark.parametrize(
    ("keys", "scope"),
    [
        ("", "datacenter"),
        ("scope: datacenter", "datacenter"),
        ("global: ", "datacenter"),
        ("scope: global", "global"),
        ("scope: GLOBAL", "global"),
        ("global: {}", "global"),
        ("global: {mode: gossip}", "global"),
        ("scope: global, global: {mode: gossip}", "global"),
        ("global: {mode: split}", "split"),
        ("scope: global, global: {mode: split}", "split"),
        ("global: {mode: home, home: eu}", "home eu"),
    ],
)
def test_the_scope_of_a_rule_is_read(keys, scope):
    assert scope_of(keys) == scope


@pytest.mark.parametrize(
    ("keys", "defaults", "scope"),
    [
        ("", "{scope: global}", "global"),
        ("", "{global: {mode: home, home: eu}}", "home eu"),
        ("scope: datacenter", "{global: {mode: home, home: eu}}", "datacenter"),
        ("global: {mode: split}", "{global: {mode: home, home: eu}}", "split"),
        ("global: {mode: gossip}", "{global: {mode: split}}", "global"),
        ("scope: global", "{global: {mode: home, home: eu}}", "home eu"),
        ("scope: global", "{scope: datacenter}", "global"),
    ],
)
def test_a_file_may_set_the_scope_for_its_rules(keys, defaults, scope):
    assert scope_of(keys, defaults) == scope


@pytest.mark.parametrize("mode", ["gossip", "split", "home, home: eu"])
@pytest.mark.parametrize(
    "algorithm", ["sliding_window", "fixed_window", "token_bucket", "leaky_bucket"]
)
def test_four_algorithms_support_every_mode_of_a_global_limit(algorithm, mode):
    words = mode.replace("gossip", "global").replace(", home:", "")
    assert scope_of(f"algorithm: {algorithm}, global: {{mode: {mode}}}") == words


@pytest.mark.parametrize(
    ("keys", "scope"),
    [
        ("algorithm: sliding_window_log, global: {mode: split}", "split"),
        ("algorithm: sliding_window_log, global: {mode: home, home: eu}", "home eu"),
        ("algorithm: concurrency, global: {mode: home, home: eu}", "home eu"),
        ("mode: queue, global: {mode: home, home: eu}", "home eu"),
    ],
)
def test_the_other_algorithms_support_modes_that_do_not_add_remote_counts(keys, scope):
    assert scope_of(keys) == scope


@pytest.mark.parametrize(
    ("keys", "limit"),
    [
        ("scope: global", "period: 4, requests_per_unit: 5"),
        ("global: {mode: split}", "unit: second, requests_per_unit: 5"),
        ("global: {mode: home, home: eu}", "unit: second, requests_per_unit: 5"),
        ("scope: global", "unlimited: true"),
    ],
)
def test_only_counts_of_other_data_centers_need_a_long_period(keys, limit):
    assert scope_of(keys, limit=limit) != "datacenter"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (
            "scope: global, algorithm: sliding_window_log",
            ": sliding_window_log cannot use counts of other data centers; "
            "use sliding_window with `slots`, `global: {mode: split}`, "
            "`global: {mode: home, home: NAME}` or "
            "`scope: datacenter`",
        ),
        (
            "scope: global, algorithm: concurrency",
            ": concurrency cannot use counts of other data centers; use one of sliding_window, "
            "fixed_window, token_bucket, leaky_bucket, `global: {mode: home, home: NAME}` or",
        ),
        (
            "algorithm: concurrency, global: {mode: split}",
            ": concurrency limits and queues cannot be split among data centers; "
            "use `global: {mode: home, home: NAME}` or `scope: datacenter`",
        ),
        ("mode: queue, global: {mode: split}", ": concurrency limits and queues cannot be split"),
        (
            "scope: datacenter, global: {}",
            ": `scope: datacenter` excludes global; keep one of them",
        ),
        ("global: true", ": global must be a map, got true or false; write `key: value` pairs"),
        ("global: {lag: 1s}", " > global: unknown key 'lag'; use one of: mode, home"),
        ("global: {mode: gosip}", " > global: unknown mode 'gosip'; did you mean 'gossip'?"),
        (
            "global: {mode: home}",
            " > global: mode home needs a home; add `home: NAME` with the name of the "
            "data center that decides",
        ),
        ("global: {mode: home, home: ''}", " > global: mode home needs a home"),
        (
            "global: {home: eu}",
            " > global: home needs mode home; write `mode: home`, or remove it",
        ),
        ("global: {mode: split, home: eu}", " > global: home needs mode home"),
    ],
)
def test_an_unsupported_scope_is_reported_with_its_fix(keys, problem):
    assert problem_of(keys).startswith(f"rules.yaml:5: d > k > rate_limit{problem}")


def test_a_period_shorter_than_the_delay_of_counts_is_rejected():
    found = problem_of("scope: global", limit="period: 3.9, requests_per_unit: 5")

    assert found == (
        "rules.yaml:5: d > k > rate_limit: counts of other data centers arrive too late for a "
        "period of 3.9 s; use at least 4 s, `global: {mode: split}`, `global: {mode: home, home: "
        "NAME}` or `scope: datacenter`"
    )


@pytest.mark.parametrize(
    ("keys", "defaults", "problem"),
    [
        (
            "algorithm: concurrency",
            "{scope: global}",
            "concurrency cannot use counts of other data centers (the map `defaults` sets "
            "`scope: global`); use one of sliding_window, ",
        ),
        (
            "mode: queue",
            "{global: {mode: split}}",
            "concurrency limits and queues cannot be split among data centers (the map `defaults` "
            "sets `global: {mode: split}`); use `global: {mode: home, home: NAME}` or `scope: dat",
        ),
        (
            "mode: queue, scope: global",
            "{global: {mode: split}}",
            "concurrency limits and queues cannot be split among data centers (the map `defaults`",
        ),
        (
            "algorithm: concurrency, scope: global",
            "{scope: global}",
            "concurrency cannot use counts of other data centers; use one of",
        ),
        (
            "algorithm: concurrency, global: {mode: split}",
            "{global: {mode: split}}",
            "concurrency limits and queues cannot be split among data centers; use",
        ),
    ],
)
def test_a_default_that_a_rule_does_not_support_is_reported_at_the_rule(keys, defaults, problem):
    found = problem_of(keys, defaults)

    assert found.startswith(f"rules.yaml:5: d > k > rate_limit: {problem}")


def test_an_invalid_default_is_reported_at_its_own_line():
    found = problem_of("", "{global: {mode: home}}")

    assert found.startswith("rules.yaml:2: d > defaults > global: mode home needs a home")
