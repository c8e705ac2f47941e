"""Decisions that a client made itself: none is lost, and the rows of a report are bounded."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.client.local_cache.decision_counts import MAX_DENIED, DecisionCounts
from ringfence.limiter import Code
from ringfence.rules import Rule
from ringfence.wire import (
    MAX_REPORT_DECISIONS,
    MAX_REPORT_KEYS,
    MAX_REPORT_NAMED,
    Report,
    Source,
    decode,
    encode,
)

ALLOWED, DENIED = Code.ALLOWED.value, Code.DENIED.value
CACHE, LEASE = Source.CACHE.value, Source.LEASE.value
SHOWN = Rule(7, "api", (("client", None),), None, details=("value",))


def key_of(rule: int, value: int | None = None) -> bytes:
    return rule.to_bytes(8, "big") + (b"" if value is None else b"\x04%04d" % value)


def rule_of(number: int) -> Rule | None:
    return SHOWN if number == SHOWN.id else None


decisions = st.tuples(
    st.integers(1, 900),
    st.integers(0, 40),
    st.sampled_from([(ALLOWED, LEASE), (DENIED, CACHE)]),
    st.integers(1, 1000) | st.just(MAX_REPORT_DECISIONS // 3),
)


@given(st.lists(decisions, max_size=300))
@settings(max_examples=50)
def test_no_decision_is_lost_and_every_report_can_be_sent(
    rows: list[tuple[int, int, tuple[int, int], int]],
) -> None:
    tally = DecisionCounts(rule_of)
    for rule, value, (code, source), count in rows:
        tally.add(key_of(rule, value), code, source, count)

    found: Counter[tuple[int, int]] = Counter()
    while (counted := tally.take()) is not None:
        keys = [key for (key, _, _), _ in counted.rows]
        columns = [list(each) for each in zip(*[row[1:] for row, _ in counted.rows], strict=True)]
        counts = [count for _, count in counted.rows]
        report = Report(1, 1, 1, counted.named, keys, *columns, counts)
        assert decode(encode(report)) == report
        for (_, code, source), count in counted.rows:
            found[code, source] += count

    exact: Counter[tuple[int, int]] = Counter()
    for _, _, kind, count in rows:
        exact[kind] += count
    assert found == exact
    assert not tally


def test_the_most_denied_keys_are_named_and_others_counted_by_rule() -> None:
    tally = DecisionCounts(rule_of)
    for value in range(100):
        tally.add(key_of(1, value), DENIED, CACHE, 100 + value)

    counted = tally.take()

    assert counted is not None
    named, rest = counted.rows[: counted.named], counted.rows[counted.named :]
    assert [row[0] for row, _ in named] == [key_of(1, 99 - at) for at in range(MAX_DENIED)]
    assert rest == [((key_of(1), DENIED, CACHE), sum(range(100, 168)))]


def test_only_rules_whose_metric_shows_values_name_what_was_allowed() -> None:
    tally = DecisionCounts(rule_of)
    tally.add(key_of(SHOWN.id, 1), ALLOWED, LEASE, 5)
    tally.add(key_of(1, 1), ALLOWED, LEASE, 5)

    counted = tally.take()

    assert counted is not None
    assert counted.named == 1
    assert [row[0] for row, _ in counted.rows] == [key_of(SHOWN.id, 1), key_of(1)]


def test_rows_are_bounded_for_any_number_of_keys_and_rules() -> None:
    tally = DecisionCounts(lambda number: SHOWN)
    for number in range(20_000):
        tally.add(key_of(number, number % 7), DENIED if number % 2 else ALLOWED, CACHE)

    assert len(tally._by_key) + len(tally._by_rule) < 5000
    counted = tally.take()
    assert counted is not None
    assert counted.named <= MAX_REPORT_NAMED
    assert len(counted.rows) <= MAX_REPORT_KEYS
    assert sum(count for _, count in counted.rows) == 20_000


def test_more_decisions_than_a_report_may_hold_wait_for_the_next_one() -> None:
    tally = DecisionCounts(rule_of)
    tally.add(key_of(1), ALLOWED, LEASE, MAX_REPORT_DECISIONS + 5)

    sums = [
        sum(count for _, count in taken.rows) for taken in (tally.take(), tally.take()) if taken
    ]

    assert sums == [MAX_REPORT_DECISIONS, 5]
