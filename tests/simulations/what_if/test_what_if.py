"""Command `ringfence simulate what-if`: clients of a log under rules with several data centers."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.replay.log_formats import Entry
from node.replay.logs import read_log, sorted_by_time
from node.replay.offline import replay_offline
from node.replay.tally import Shape, Tally
from ringfence.errors import ConfigError
from ringfence.rules import RuleSet
from ringfence.rules.loading.yaml_files import load_text
from simulations.what_if.data_centers import DataCenters, Timing
from simulations.what_if.what_if import WhatIf, Worst, spread_ties, what_if

ROOT = Path(__file__).parents[3]
LOGS = {
    "demo": ROOT / "node" / "demo" / "semicomplete-2015-05.log.gz",
    "epa": ROOT / "tests" / "traces" / "epa-1995-08-30.tsv.gz",
}
CLIENT = Shape.parse(["client"])
START = 1_700_000_000
MS = 10**6
WINDOWS = ["fixed_window", "sliding_window"]
BOUNDED = [*WINDOWS, "token_bucket", "leaky_bucket"]


def rules_of(rate: str, algorithm: str, rest: str = "") -> RuleSet:
    amount, unit = rate.split("/")
    return load_text(
        "domain: log\ndescriptors:\n  - key: client\n    rate_limit:\n"
        f"      requests_per_unit: {amount}\n      unit: {unit}\n"
        f"      algorithm: {algorithm}\n{rest}"
    ).rules


def entry(second: float, client: str = "x", path: str = "/") -> Entry:
    return Entry(START * 10**9 + round(second * 1e9), client, "GET", path, "200")


@cache
def entries_of(log: str, lines: int | None = None) -> list[Entry]:
    """Return a log in order of time, or its first lines."""
    return sorted_by_time(read_log(LOGS[log])) if lines is None else entries_of(log)[:lines]


@cache
def denied_offline(log: str, lines: int, rate: str, algorithm: str) -> Tally:
    """Return the decisions of an offline replay, which has no data centers."""
    return replayed(rules_of(rate, algorithm), entries_of(log, lines))


def replayed(rules: RuleSet, entries: Iterable[Entry], shape: Shape = CLIENT) -> Tally:
    return replay_offline(
        [list(entries)], shape, rules, clock=None, max_keys=10**6, on_progress=lambda done: None
    )


ask: Callable[..., WhatIf] = partial(
    what_if, shape=CLIENT, datacenters=3, delay_ms=40, interval_ms=200, seed=1
)


def denied_by_client(reported: WhatIf) -> dict[str, int]:
    return {row.client: row.denied for row in reported.throttled}


# Without count delay


@pytest.mark.parametrize("placed", [{"datacenters": 1}, {"exact": True}])
@pytest.mark.parametrize(
    ("log", "lines", "rate", "algorithm"),
    [("demo", 2000, "10/minute", algorithm) for algorithm in [*BOUNDED, "sliding_window_log"]]
    + [("epa", 5000, "100/hour", "sliding_window")],
)
def test_one_data_center_or_one_engine_decides_as_an_offline_replay_does(
    log: str, lines: int, rate: str, algorithm: str, placed: dict[str, int]
) -> None:
    expected = denied_offline(log, lines, rate, algorithm)

    reported = ask(rules_of(rate, algorithm), entries_of(log, lines), top=10**6, **placed)

    assert expected.denied > 0
    assert (reported.requests, reported.denied) == (expected.checks, expected.denied)
    assert reported.denied_exact == expected.denied
    assert denied_by_client(reported) == dict(expected.denied_by_client)
    (figures,) = reported.rules
    assert (figures.wrongly_allowed, figures.wrongly_denied, figures.worst) == (0, 0, None)
    assert reported.errors[0].max_difference == 0
    assert reported.staleness_ms == 0


def test_requests_with_several_rules_are_decided_as_in_a_replay() -> None:
    rules = load_text(
        """
domain: log
descriptors:
  - key: client
    rate_limit: {requests_per_unit: 20, unit: minute, name: per-client}
  - key: path
    shadow_mode: true
    rate_limit: {requests_per_unit: 5, unit: minute}
  - key: method
    value: POST
    rate_limit: {unlimited: true}
  - key: status
    value: "404"
    rate_limit: {requests_per_unit: 3, unit: hour, algorithm: token_bucket}
"""
    ).rules
    shape = Shape.parse(["client", "path", "method", "status"])
    entries = entries_of("demo", 3000)
    expected = replayed(rules, entries, shape)

    reported = ask(rules, entries, shape=shape, exact=True, top=10**6)

    assert (reported.denied, reported.no_rule) == (expected.denied, expected.no_rule)
    assert denied_by_client(reported) == dict(expected.denied_by_client)


def test_with_several_data_centers_exact_counting_stays_that_of_a_replay() -> None:
    rules, entries = rules_of("10/minute", "sliding_window"), entries_of("demo", 4000)

    reported = ask(rules, entries)

    assert reported.denied_exact == replayed(rules, entries).denied
    assert reported.denied < reported.denied_exact
    assert reported.rules[0].beyond_bound == 0


@pytest.mark.parametrize("algorithm", BOUNDED)
def test_clients_that_stay_with_one_data_center_are_counted_exactly(algorithm: str) -> None:
    reported = ask(rules_of("10/minute", algorithm), entries_of("demo", 2000), spread="sticky")

    assert reported.rules[0].wrongly_allowed == reported.rules[0].wrongly_denied == 0
    assert reported.denied == reported.denied_exact > 0


# With count delay


@pytest.mark.parametrize("algorithm", BOUNDED)
def test_at_one_instant_every_data_center_admits_the_whole_limit(algorithm: str) -> None:
    reported = ask(rules_of("5/minute", algorithm), [entry(0)] * 100)

    (figures,) = reported.rules
    assert (reported.denied_exact, reported.denied) == (95, 85)
    assert (figures.allowed, figures.over_admitted, figures.wrongly_allowed) == (15, 10, 10)
    assert figures.worst == Worst("x", START * 10**9, excess=10, bound=10)
    assert reported.errors[0].over == 1
    assert reported.errors[0].max_over == 2.0
    assert reported.errors[0].wrong_share == 0.1
    assert reported.same_instant == 99


@pytest.mark.parametrize("algorithm", BOUNDED)
def test_requests_further_apart_than_the_count_delay_are_decided_exactly(algorithm: str) -> None:
    entries = [entry(0.241 * number) for number in range(400)]

    reported = ask(rules_of("20/minute", algorithm), entries)

    assert reported.staleness_ms == 240
    assert reported.denied == reported.denied_exact > 0
    assert reported.rules[0].over_admitted == 0


def test_no_counts_are_sent_until_earlier_counts_are_acknowledged() -> None:
    rules = rules_of("10/minute", "fixed_window")
    (met,) = rules.match("log", CLIENT.of(entry(0)))
    assert met is not None
    timing = Timing(delay_ns=150 * MS, interval_ns=200 * MS)
    centers = DataCenters(rules.rules(), 2, timing, Random(1), exact=False)
    (_, here), (_, there) = (centers.decider(at, [met.rule]) for at in (0, 1))

    def admit(now: int) -> None:
        codes = here.decide([met.key], [1], [], [], [], now).codes
        centers.admitted(0, [met.key], codes, now)

    def received(now: int) -> int:
        centers.advance(now)
        return there.used(met.key, now)

    start = START * 10**9
    admit(start)
    first = next(now for now in range(start, start + 400 * MS, MS) if received(now))
    admit(first)

    # The acknowledgement arrives 300 ms after its round, so the round after 200 ms sends nothing.
    assert received(first + 399 * MS) == 1
    assert received(first + 400 * MS) == 2
    assert timing.late_ns == 400 * MS + timing.delay_ns


def test_the_bound_includes_all_requests_during_the_count_delay() -> None:
    bursts = [entry(0)] * 600 + [entry(0.23)] * 600

    (figures,) = ask(rules_of("1000/minute", "fixed_window"), bursts).rules

    assert figures.worst is not None
    assert figures.worst.excess == 200
    assert figures.worst.bound >= 2 * (1200 // 3 + 1000 // 100)


def test_excess_admissions_cause_later_wrong_denials() -> None:
    # All clients spend twice the limit at once. As the bucket drains, exact counting admits again.
    entries = [entry(0)] * 100 + [entry(10 + second) for second in range(60)]

    (figures,) = ask(rules_of("10/minute", "token_bucket"), entries).rules

    assert figures.wrongly_allowed == figures.over_admitted == 20
    assert figures.wrongly_denied > 0


@settings(max_examples=60, deadline=None)
@given(
    algorithm=st.sampled_from(BOUNDED),
    amount=st.integers(1, 250),
    gaps_ms=st.lists(st.sampled_from([0, 1, 7, 30, 150, 400, 2500]), min_size=40, max_size=400),
    datacenters=st.integers(2, 5),
    delay_ms=st.sampled_from([0, 1, 40, 150, 400]),
    interval_ms=st.sampled_from([50, 200, 1000]),
    seed=st.integers(0, 1000),
)
def test_no_counter_exceeds_its_limit_by_more_than_the_bound(
    algorithm: str,
    amount: int,
    gaps_ms: Sequence[int],
    datacenters: int,
    delay_ms: int,
    interval_ms: int,
    seed: int,
) -> None:
    entries, at = [], 0
    for number, gap in enumerate(gaps_ms):
        at += gap
        entries.append(entry(at / 1000, client="xy"[number % 7 == 0]))

    reported = what_if(
        rules_of(f"{amount}/minute", algorithm),
        entries,
        CLIENT,
        datacenters=datacenters,
        delay_ms=delay_ms,
        interval_ms=interval_ms,
        seed=seed,
    )

    (figures,) = reported.rules
    assert figures.beyond_bound == 0
    assert figures.worst is None or figures.worst.excess <= figures.worst.bound
    assert (
        figures.wrongly_allowed - figures.wrongly_denied == reported.denied_exact - reported.denied
    )


def test_equal_seeds_give_equal_results_and_other_seeds_differ() -> None:
    rules = rules_of("10/minute", "sliding_window")
    entries = entries_of("demo", 1500)
    first, again, other = (ask(rules, entries, seed=seed) for seed in (1, 1, 2))

    assert first == again
    assert first.errors != other.errors


# Scopes of rules


def scoped(how: str, algorithm: str = "fixed_window") -> RuleSet:
    return rules_of("9/minute", algorithm, f"      scope: global\n      global: {how}\n")


def test_a_limit_that_is_split_or_has_a_home_is_never_exceeded() -> None:
    split = ask(scoped("{mode: split}"), [entry(0)] * 100)
    home = ask(scoped("{mode: home, home: fra}"), [entry(0)] * 100)

    assert [reported.rules[0].counted for reported in (split, home)] == ["split", "home"]
    assert split.denied == home.denied == 91
    assert split.rules[0].worst is home.rules[0].worst is None


def test_an_algorithm_without_shared_counts_counts_per_data_center() -> None:
    entries = [entry(second / 2) for second in range(100)]

    reported = ask(rules_of("5/minute", "sliding_window_log"), entries)

    (figures,) = reported.rules
    assert figures.counted == "alone"
    assert figures.allowed == 15
    assert figures.worst is not None
    assert (figures.worst.excess, figures.worst.bound) == (10, 10)
    assert len(reported.errors) == 1


def test_a_request_for_two_home_data_centers_is_rejected() -> None:
    rules = load_text(
        "domain: log\ndescriptors:\n"
        "  - key: client\n    rate_limit:\n      requests_per_unit: 5\n      unit: minute\n"
        "      global: {mode: home, home: fra}\n"
        "  - key: path\n    rate_limit: {requests_per_unit: 5, unit: minute}\n"
    ).rules

    with pytest.raises(ConfigError, match="fewer --descriptor"):
        ask(rules, [entry(0)], shape=Shape.parse(["client", "path"]))


# Output


def test_a_throttled_client_is_listed_with_first_time_last_time_and_rule() -> None:
    rules = rules_of("2/minute", "fixed_window", "      name: per-client\n")
    busy = [entry(second) for second in range(20, 30)]

    reported = ask(rules, [*busy[:5], entry(24.5, "y"), *busy[5:]], top=1)

    (client,) = reported.throttled
    assert (client.client, client.checks, client.denied, client.rule) == ("x", 10, 8, "per-client")
    assert client.first_ns == entry(22).time_ns
    assert client.last_ns == entry(29).time_ns


def test_windows_are_also_compared_with_a_log_of_every_hit() -> None:
    # Twice the limit around a window's end: the window admits all units, a log only half.
    edge = 60 - START % 60
    entries = [entry(edge - 1)] * 5 + [entry(edge + 1)] * 5

    by_window, by_log = ask(rules_of("5/minute", "fixed_window"), entries, datacenters=1).errors

    assert (by_window.wrongly_allowed, by_window.over) == (0, 0)
    assert (by_log.wrongly_allowed, by_log.over, by_log.max_over) == (5, 1, 1.0)


def test_json_output_contains_all_values() -> None:
    reported = ask(rules_of("5/minute", "sliding_window"), [entry(0)] * 100).to_json()

    read = json.loads(json.dumps(reported))

    assert read == reported
    assert (read["allowed"], read["denied"]) == (15, 85)
    (rule,) = read["rules"]
    assert (rule["allowed"], rule["period_s"]) == (15, 60)
    assert rule["worst"] == {
        "client": "x",
        "at": "2023-11-14T22:13:20.000Z",
        "excess": 10,
        "bound": 10,
    }
    assert read["throttled"][0]["first"] == "2023-11-14T22:13:20.000Z"
    assert read["errors"][0]["wrong_share"] == 0.1


def test_requests_of_one_second_are_spread_unless_timestamps_are_finer() -> None:
    coarse = [entry(0, "a"), entry(0, "b"), entry(1), entry(3, "a"), entry(3), entry(3)]
    fine = [entry(0), entry(0), entry(0.5)]

    laid_out = spread_ties(coarse)

    stamps = [round((each.time_ns / 1e9 - START) * 100) / 100 for each in laid_out]
    assert stamps == [0, 0.5, 1, 3, 3.33, 3.67]
    assert [each.client for each in laid_out] == [each.client for each in coarse]
    assert spread_ties(fine) == fine


@pytest.mark.parametrize("wrong", [{"datacenters": 0}, {"delay_ms": -1}, {"interval_ms": 0}])
def test_invalid_numbers_are_rejected(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="give at least one"):
        ask(rules_of("5/minute", "fixed_window"), [entry(0)], **wrong)


def test_progress_is_reported_every_thousand_lines_and_at_the_end() -> None:
    reported: list[int] = []

    ask(rules_of("5/minute", "fixed_window"), [entry(0)] * 2500, on_progress=reported.append)

    assert reported == [1000, 2000, 2500]
