from pathlib import Path

from ringfence.limiter import bytes_per_key, over_admission
from ringfence.limiter.limit import NS_PER_SECOND, Limit
from ringfence.rules import RuleSet, adhoc_rule
from ringfence.rules.cross_dc_bounds import cross_dc_bounds
from ringfence.rules.loading.yaml_files import load_path, load_text
from ringfence.rules.report import Datacenters, describe, too_short

FILES = Path(__file__).parent / "files"
LIMIT = "{unit: minute, requests_per_unit: 5}"
MINUTE = 60 * NS_PER_SECOND
THREE_DATACENTERS = Datacenters(3, 80_000_000)


def test_rows_are_in_file_order_and_have_the_depth_of_their_descriptor():
    rows = describe(load_path(FILES / "tree.yaml").rules)

    assert [(row.depth, row.label) for row in rows[:8]] == [
        (0, "test-domain"),
        (1, "key1=value1"),
        (2, "subkey1"),
        (2, "subkey1=subvalue1"),
        (1, "key2"),
        (1, "key2=value2"),
        (1, "key2=value3"),
        (1, "key3"),
    ]


def test_a_rule_shows_its_limit_identity_cost_and_bound():
    rules = load_path(FILES / "ours.yaml").rules
    row = next(row for row in describe(rules) if row.label == "queue")
    rule = next(rule for rule in rules.rules() if rule.path == (("queue", None),))

    assert row.limit == "5/second burst 7 queue"
    assert row.identity == f"{rule.id:016x}"
    assert row.algorithm == "leaky_bucket"
    assert row.bytes_per_key == bytes_per_key(rule.limit, is_compiled=True)
    [uncompiled] = [each for each in describe(rules, is_compiled=False) if each.label == "queue"]
    assert uncompiled.bytes_per_key == bytes_per_key(rule.limit, is_compiled=False)
    assert (row.usual, row.worst, row.bound) == (
        over_admission(rule.limit).usual,
        over_admission(rule.limit).worst,
        over_admission(rule.limit).reason,
    )
    assert row.flags == ("on_failure local",)


def test_a_row_without_a_limit_has_no_cost():
    rows = {row.label: row for row in describe(load_path(FILES / "tree.yaml").rules)}

    assert rows["key6"].limit == "unlimited"
    assert rows["key6"].bytes_per_key is None
    assert rows["key6"].identity != ""
    assert rows["key2=value3"].limit == ""
    assert rows["key2=value3"].identity == ""


def test_a_value_with_control_characters_is_shown_quoted():
    text = f'domain: d\ndescriptors:\n- {{key: k, value: "\\e[31m\\n", rate_limit: {LIMIT}}}'

    assert describe(load_text(text).rules)[1].label == r"'k=\x1b[31m\n'"


def test_flags_and_names_are_shown():
    rows = {row.label: row for row in describe(load_path(FILES / "replaces.yaml").rules)}

    assert rows["user"].name == "by_user"
    assert rows["user"].flags == (
        "replaces by_address",
        "replaces by_region",
        "on_failure allow",
    )
    shared = describe(load_path(FILES / "wildcards.yaml").rules)[-1]
    assert shared.flags == ("share", "on_failure allow")


def test_every_warning_is_in_the_row_that_caused_it():
    loaded = load_text(
        f"domain: d\ndescriptors:\n- {{key: k, rate_limit: {LIMIT}}}\n- {{key: k, value: v}}\n"
        "- {key: u, rate_limit: {unlimited: true, requests_per_unit: 5}}\n",
        "rules.yaml",
    )
    rows = describe(loaded.rules, loaded.warnings)

    assert [len(row.warnings) for row in rows] == [0, 0, 1, 1]
    assert rows[2].warnings == (str(loaded.warnings[0]),)


def test_an_empty_rule_set_has_no_rows():
    assert describe(RuleSet()) == []


def test_an_ad_hoc_limit_has_a_row_like_a_rule_of_a_file():
    rule = adhoc_rule(Limit.of_ns(5, NS_PER_SECOND), "uploads")

    assert [row.label for row in describe(RuleSet.of(rule))] == ["", "uploads"]


GLOBAL = (
    "domain: d\ndescriptors:\n"
    "- {key: here, rate_limit: {unit: minute, requests_per_unit: 600}}\n"
    "- {key: told, rate_limit: {unit: minute, requests_per_unit: 600, scope: global}}\n"
    "- {key: home, rate_limit: {unit: minute, requests_per_unit: 9, "
    "global: {mode: home, home: eu}}}\n"
    "- key: quick\n  rate_limit:\n    period: 5s\n    requests_per_unit: 9\n    scope: global\n"
    "- {key: free, rate_limit: {unlimited: true, scope: global}}\n"
)


def test_a_row_shows_scope_and_cross_dc_bounds():
    rows = {row.label: row for row in describe(load_text(GLOBAL).rules, (), THREE_DATACENTERS)}
    reported = rows["told"]

    assert (reported.scope, reported.flags) == ("global", ("on_failure allow", "global"))
    assert reported.cross_dc == cross_dc_bounds(
        Limit.of_ns(600, MINUTE), "global", 3, 80_000_000, 2.0
    )
    assert rows["home"].flags == ("on_failure allow", "home eu")
    assert (rows["here"].scope, rows["here"].cross_dc) == ("datacenter", None)
    assert rows["free"].cross_dc is None


def test_rows_have_no_cross_dc_bounds_without_data_centers():
    assert all(row.cross_dc is None for row in describe(load_text(GLOBAL).rules))


def test_periods_too_short_for_the_delay_are_reported():
    loaded = load_text(GLOBAL, "rules.yaml")

    assert too_short(loaded, Datacenters(1, 80_000_000)) == []
    assert [str(problem) for problem in too_short(loaded, THREE_DATACENTERS)] == [
        "rules.yaml:10: d > quick > rate_limit: with a round trip of 80 ms, counts of other data "
        "centers arrive too late for 9/5 seconds; use a period of at least 5.6 s, "
        "`scope: datacenter`, `global: {mode: split}` or `global: {mode: home, home: NAME}`"
    ]
