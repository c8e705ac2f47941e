"""Decisions by rule, result and source, and what happens when there are too many rules."""

from collections.abc import Sequence

import pytest

from node.metrics.detailed import (
    MAX_LABELS,
    MAX_METRICS,
    NO_RULE,
    OTHER_RULES,
    OTHER_VALUES,
    Metrics,
    Span,
)
from ringfence.limiter import Code, Limit, Outcomes
from ringfence.rules import Rule, RuleSet
from ringfence.rules.keys import encode_key
from ringfence.wire import Batch, Op, Results, Source


def rule(number: int, key: str, *, shadow: bool = False, quota: bool = False) -> Rule:
    limit = Limit(5, 60)
    return Rule(number, "api", ((key, None),), limit, shadow=shadow, quota=quota)


def batch_of(*numbers: int, op: Op = Op.CHECK) -> Batch:
    keys = [number.to_bytes(8, "big") + b"\x01%d" % at for at, number in enumerate(numbers)]
    return Batch(op, keys, [1] * len(keys))


def verdicts_of(codes: Sequence[Code], source: Source = Source.OWNER) -> Results:
    return Results(Outcomes(list(codes)), [source] * len(codes))


@pytest.fixture
def rules() -> dict[int, Rule]:
    rules = rule(1, "client"), rule(2, "beta", shadow=True), rule(3, "monthly", quota=True)
    return {each.id: each for each in rules}


@pytest.fixture
def measures(rules: dict[int, Rule]) -> Metrics:
    return Metrics(rules.get)


def test_checks_are_counted_by_rule_and_result(measures: Metrics) -> None:
    measures.decided(batch_of(1), verdicts_of([Code.ALLOWED]), as_standby=False)
    measures.decided(batch_of(1), verdicts_of([Code.DENIED]), as_standby=False)
    codes = [Code.ALLOWED, Code.OVER_SOFT, Code.NEVER, Code.DENIED, Code.DENIED, Code.UNCHARGED]
    measures.decided(batch_of(1, 1, 1, 2, 3, 1), verdicts_of(codes), as_standby=False)
    measures.decided(batch_of(7), verdicts_of([Code.UNKNOWN_RULE]), as_standby=False)

    assert measures.decisions() == {
        ("api > client", "allowed", "owner"): 2,
        ("api > client", "over_soft", "owner"): 1,
        ("api > client", "denied", "owner"): 2,
        ("api > client", "uncharged", "owner"): 1,
        ("api > beta", "shadow_denied", "owner"): 1,
        ("api > monthly", "quota_denied", "owner"): 1,
        (NO_RULE, "unknown_rule", "owner"): 1,
    }


def test_decisions_are_counted_by_source(measures: Metrics) -> None:
    measures.decided(batch_of(1, 1), verdicts_of([Code.ALLOWED, Code.DENIED]), as_standby=True)
    answer = verdicts_of([Code.ALLOWED, Code.ALLOWED, Code.DENIED], Source.OWNER)
    answer.sources[1:] = [Source.POLICY, Source.LOCAL]
    measures.undecided(batch_of(1, 1, 1), answer)

    assert measures.decisions() == {
        ("api > client", "allowed", "standby"): 1,
        ("api > client", "denied", "standby"): 1,
        ("api > client", "allowed", "policy"): 1,
        ("api > client", "denied", "local"): 1,
    }


def test_refunds_and_resets_are_no_decisions(measures: Metrics) -> None:
    measures.decided(batch_of(1, op=Op.REFUND), verdicts_of([Code.ALLOWED]), as_standby=False)
    measures.undecided(batch_of(1, op=Op.RESET), verdicts_of([Code.ALLOWED], Source.POLICY))

    assert measures.decisions() == {}
    assert measures.frame_checks.sum == 0


def test_no_count_decreases_when_a_rule_is_removed(
    measures: Metrics, rules: dict[int, Rule]
) -> None:
    measures.decided(batch_of(1), verdicts_of([Code.ALLOWED]), as_standby=False)
    before = measures.decisions()
    del rules[1]
    measures.decided(batch_of(1), verdicts_of([Code.ALLOWED]), as_standby=False)

    assert before == {("api > client", "allowed", "owner"): 1}
    assert measures.decisions() == before | {(NO_RULE, "allowed", "owner"): 1}


def test_rules_above_the_maximum_of_labels_share_one_label(
    rules: dict[int, Rule], measures: Metrics
) -> None:
    rules.update({number: rule(number, f"key{number}") for number in range(10, 10 + MAX_LABELS)})
    numbers = [1, *range(10, 10 + MAX_LABELS)]
    measures.decided(
        batch_of(*numbers), verdicts_of([Code.ALLOWED] * len(numbers)), as_standby=False
    )

    found = measures.decisions()

    assert len(found) == MAX_LABELS + 1
    assert found[OTHER_RULES, "allowed", "owner"] == 1


def test_unknown_ids_of_rules_take_no_memory(measures: Metrics) -> None:
    for number in range(100, 10_100):
        measures.decided(batch_of(number), verdicts_of([Code.UNKNOWN_RULE]), as_standby=False)

    assert len(measures._asked) + len(measures._odd) < 5000
    assert measures.decisions() == {(NO_RULE, "unknown_rule", "owner"): 10_000}


def test_a_name_is_no_longer_than_a_label_may_be(rules: dict[int, Rule]) -> None:
    long = Metrics(rules.get).label_of(rule(3, "x" * 500))

    assert len(long) < 250
    assert long.endswith("0000000000000003")


SHOWN = Rule(9, "api", (("client", None),), Limit(5, 1), details=("value",))


@pytest.fixture
def shown() -> Metrics:
    rules = RuleSet.of(SHOWN)
    measures = Metrics(rules.by_id)
    measures.set_rules(rules)
    return measures


def asked(*values: str) -> Batch:
    keys = [encode_key(SHOWN.id, [value]) for value in values]
    return Batch(Op.CHECK, keys, [1] * len(keys))


def test_decisions_of_rules_with_details_are_counted_by_value(shown: Metrics) -> None:
    shown.decided(asked("x"), verdicts_of([Code.ALLOWED]), as_standby=False)
    shown.decided(asked("x", ""), verdicts_of([Code.DENIED] * 2), as_standby=True)
    shown.undecided(asked("x"), verdicts_of([Code.ALLOWED], Source.POLICY))
    row = encode_key(SHOWN.id, ["x"]), Code.DENIED.value, Source.CACHE.value, 5
    rest = SHOWN.id.to_bytes(8, "big"), Code.DENIED.value, Source.CACHE.value, 7
    shown.reported([row, rest], named=1)
    shown.decided(batch_of(3), verdicts_of([Code.ALLOWED]), as_standby=False)

    assert shown.detailed_decisions() == {
        ("api.client_x", "allowed"): 2,
        ("api.client_x", "denied"): 6,
        ("api.client", "denied"): 1,
        (OTHER_VALUES, "denied"): 7,
    }


def test_the_number_of_distinct_values_is_bounded(shown: Metrics) -> None:
    for number in range(20_000):
        shown.decided(asked(f"v{number}"), verdicts_of([Code.ALLOWED]), as_standby=False)
    assert len(shown._by_key) < 5000
    shown.decided(asked("long" * 50), verdicts_of([Code.ALLOWED]), as_standby=False)

    found = shown.detailed_decisions()

    assert len(found) == MAX_METRICS + 1
    assert found[OTHER_VALUES, "allowed"] == 20_001 - MAX_METRICS
    assert sum(found.values()) == 20_001


def test_a_rule_that_no_longer_has_details_keeps_its_counts(shown: Metrics) -> None:
    shown.decided(asked("x"), verdicts_of([Code.ALLOWED]), as_standby=False)
    shown.set_rules(RuleSet())
    shown.decided(asked("x"), verdicts_of([Code.ALLOWED]), as_standby=False)

    assert shown.detailed_decisions() == {("api.client_x", "allowed"): 1}


def test_denied_keys_are_remembered(measures: Metrics) -> None:
    batch = batch_of(1, 2)
    measures.decided(batch, verdicts_of([Code.ALLOWED, Code.DENIED]), as_standby=False)

    assert [row.key for row in measures.throttled.most(5)] == [batch.keys[1]]


def test_a_span_counts_values_by_their_binary_digits() -> None:
    span = Span(4)
    for value in (0, 1, 2, 3, 4, 7, 8, 1000):
        span.add(value)

    assert span.counts == [1, 1, 2, 4]
    assert span.sum == 1025
