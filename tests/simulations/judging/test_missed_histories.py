"""Histories that real bugs would leave. An earlier checker excused them, mostly for whole runs."""

from dataclasses import replace

import pytest

from hashring import Member, Ring, shard_of
from ringfence.rules import adhoc_rule, parse_limit
from ringfence.rules.keys import encode_key
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import Source
from simulations.judging.disturbance import Disturbances
from simulations.judging.excuses import Holders
from simulations.judging.invariants import Final, Invariants
from simulations.judging.ledger import Answered, Ledger
from simulations.scenarios.scenario import Fault, Scenario

RULES = """
domain: sim
descriptors:
  - key: log
    rate_limit: {unit: minute, requests_per_unit: 100, algorithm: sliding_window_log}
  - key: daily
    rate_limit: {unit: day, requests_per_unit: 100, algorithm: sliding_window_log}
  - key: everywhere
    rate_limit: {unit: day, requests_per_unit: 400, algorithm: fixed_window, scope: global}
  - key: single
    rate_limit: {period: 30s, requests_per_unit: 5, algorithm: token_bucket, burst: 1}
  - key: bucket
    rate_limit: {period: 3s, requests_per_unit: 3, algorithm: token_bucket}
  - key: slow
    rate_limit: {unit: day, requests_per_unit: 5, algorithm: token_bucket}
  - key: home
    rate_limit: {unit: day, requests_per_unit: 400, global: {mode: home, home: dc1}}
  - key: split
    rate_limit: {period: 5s, requests_per_unit: 6, algorithm: token_bucket, global: {mode: split}}
  - key: home_log
    rate_limit:
      period: 5s
      requests_per_unit: 5
      algorithm: sliding_window_log
      global: {mode: home, home: dc1}
"""
KNOWN = {rule.path[-1][0]: rule for rule in load_text(RULES).rules.rules()}
KNOWN["opened"] = adhoc_rule(parse_limit("10/5s first_hit"))  # No rule file has such limits.


def order_of(name, datacenter="dc1", *, datacenters=1):
    """Return the nodes of a key: its owner, its standby and so on."""
    members = [
        Member(f"n{number}", datacenter, "z1")
        for number in range(1, 7)
        if f"dc{(number - 1) % datacenters + 1}" == datacenter
    ]
    return Ring.of(members).owners(shard_of(encode_key(KNOWN[name].id, ["k"])), len(members))


OWNER, STANDBY, *OTHERS = order_of("log")


def rows(count, begin, end, datacenter="dc1", **fields):
    """Return answers in even intervals."""
    first = {"allowed": True, "source": Source.OWNER} | fields
    times = [begin + (end - begin) * number / count for number in range(count)]
    return [Answered(at, at + 0.001, datacenter, "k", 1, **first) for at in times]


def judged(
    name, answers, faults=(), *, used=None, datacenters=1, end=60.0, disturbances=None, holders=None
):
    """Return the checker with the violated laws."""
    ledger = Ledger()
    for answer in answers:
        ledger.add(name, answer)
    scenario = Scenario("judged", "", nodes=6, datacenters=datacenters, faults=tuple(faults))
    invariants = Invariants({name: KNOWN[name]}, scenario, 0.2, 0.0)
    final = Final() if used is None else Final({(dc, name, "k"): n for dc, n in used.items()})
    if disturbances is not None:
        final.disturbances = disturbances
    if holders is not None:
        final.holders = holders
    return invariants, {each.property for each in invariants.violations(ledger, final, end)}


def violated(name, answers, faults=(), **more):
    return judged(name, answers, faults, **more)[1]


@pytest.mark.parametrize(
    ("begin", "used", "expected"),
    [(3.0, 3, set()), (3.0, 4, {"invented_hits"}), (20.0, 3, {"invented_hits"})],
)
def test_a_merge_of_two_buckets_may_add_one_unit(begin, used, expected) -> None:
    """It rounds a level up. No merge follows a check after the cut."""
    [owner, *_] = order_of("slow")
    shard = shard_of(encode_key(KNOWN["slow"].id, ["k"]))
    cut = Fault(2.0, "cut", 4.0, {"node": owner})
    moved = Disturbances(samples={"dc1": [(0.0, 0), (2.0, 255 << 8 * shard), (5.0, 0)]})
    found = violated(
        "slow", rows(2, begin, begin + 0.1), [cut], used={"dc1": used}, disturbances=moved
    )

    assert found == expected


def test_a_crash_elsewhere_and_later_excuses_no_denials() -> None:
    denials = rows(20, 2, 3, allowed=False)
    [away, *_] = order_of("log", "dc2", datacenters=2)
    crash = Fault(25, "crash", 30, {"node": away})

    assert "wrong_denial" in violated("log", denials, [crash], datacenters=2)


@pytest.mark.parametrize("crashed", [OWNER, OTHERS[0]])
def test_a_crash_excuses_no_decisions_by_policy_at_other_times(crashed) -> None:
    by_policy = rows(300, 1, 25, source=Source.POLICY)

    assert "outage" in violated("log", by_policy, [Fault(20, "crash", 22, {"node": crashed})])


def test_a_crash_of_a_node_that_does_not_decide_excuses_no_decisions_by_policy() -> None:
    by_policy = rows(300, 1, 25, source=Source.POLICY)
    crash = [Fault(0.5, "crash", 22, {"node": OTHERS[0]})]

    assert "outage" in violated("log", by_policy, crash)


def test_a_standby_must_not_deny_checks_that_fit() -> None:
    denials = rows(50, 11, 14, allowed=False, source=Source.STANDBY)

    assert "wrong_denial" in violated("log", denials, [Fault(10, "crash", 20, {"node": OWNER})])


def test_a_new_owner_after_a_crash_counts_what_was_replicated() -> None:
    answers = [*rows(100, 1, 5), *rows(100, 12, 15, source=Source.STANDBY)]

    assert "over_admission" in violated("log", answers, [Fault(10, "crash", 20, {"node": OWNER})])


def test_a_crash_excuses_only_units_that_were_not_replicated_yet() -> None:
    crash = [Fault(10, "crash", 20, {"node": OWNER})]
    answers = [*rows(80, 1, 5), *rows(20, 9.7, 10), *rows(20, 12, 13, source=Source.STANDBY)]

    assert violated("log", answers, crash, used={"dc1": 100}) == set()
    more = rows(1, 14, 15, source=Source.STANDBY)
    assert "over_admission" in violated("log", [*answers, *more], crash, used={"dc1": 100})


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(35, "slow", 38, {"node": OWNER, "from": STANDBY, "extra_ms": 20})],
        [Fault(at, "reset", None, {"node": OWNER}) for at in (35, 36, 37)],
    ],
)
@pytest.mark.parametrize("count", [300, 500])
def test_later_faults_excuse_no_over_admission(faults, count) -> None:
    assert "over_admission" in violated("log", rows(count, 1, 30), faults)


def test_a_cut_excuses_one_more_limit_for_each_side_and_no_more() -> None:
    cut = [Fault(1, "cut", 30, {"node": OWNER})]

    assert "over_admission" not in violated("log", rows(200, 2, 25), cut)
    assert "over_admission" in violated("log", rows(201, 2, 25), cut)


def test_decisions_are_counted_as_exact_or_excused() -> None:
    by_standby = rows(10, 11, 12, source=Source.STANDBY)
    by_policy = rows(10, 12, 13, source=Source.POLICY)
    answers = [*rows(30, 1, 5), *by_standby, *by_policy]

    invariants, found = judged(
        "log", answers, [Fault(10, "crash", 20, {"node": OWNER})], used={"dc1": 40}
    )

    assert found == set()
    assert (invariants.judged.decisions, invariants.judged.exactly) == (50, 40)
    assert invariants.judged.excuses == {"owner_away": 10}
    assert invariants.judged.exact_by_law == {"outage": 40, "over_admission": 40}
    assert invariants.judged.excused_by_law == {"outage": 10}
    exact, _ = judged("log", [replace(a, source=Source.OWNER) for a in answers], used={"dc1": 40})
    assert exact.judged.share == 1.0


@pytest.mark.parametrize("times", [2, 3])
def test_a_short_cut_excuses_no_units_that_are_counted_again(times) -> None:
    answers = [*rows(10, 1, 9), *rows(10, 15, 25)]
    cut = [Fault(10, "cut", 12, {"node": OWNER})]

    assert violated("daily", answers, cut, used={"dc1": 20}) == set()
    assert violated("daily", answers, cut, used={"dc1": 20 * times}) == {"invented_hits"}


def test_a_cut_between_data_centers_excuses_no_units_that_are_counted_again() -> None:
    answers = [*rows(10, 1, 20), *rows(10, 1, 20, "dc2")]
    cut = [Fault(5, "cut", 10, {"datacenter": "dc2"})]

    for used, found in ((20, set()), (60, {"invented_hits"}), (10, {"lost_hits"})):
        counted = {"dc1": used, "dc2": used}
        assert violated("everywhere", answers, cut, used=counted, datacenters=2) == found


def test_a_crash_after_two_disturbances_elsewhere_loses_no_units() -> None:
    order = order_of("daily")
    faults = [
        Fault(2, "slow", 3, {"node": order[-1], "from": order[-2], "extra_ms": 20}),
        Fault(4, "busy", 5, {"node": order[-2], "cost_ms": 1}),
        Fault(25, "crash", 30, {"node": order[0]}),
    ]
    answers = rows(50, 6, 20)

    assert violated("daily", answers, faults, used={"dc1": 50}) == set()
    assert violated("daily", answers, faults, used={"dc1": 0}) == {"lost_hits"}


@pytest.mark.parametrize(("part", "found"), [(0.2, set()), (None, {"retry_after"})])
def test_a_bucket_drains_more_slowly_while_a_fault_lowers_its_limit(part, found) -> None:
    faults = [Fault(0.5, "limits", 20, {"node": order_of("single")[0], "part": part or 1.0})]
    admitted, denied = rows(1, 2, 3), rows(1, 2.1, 3, allowed=False, retry_after=29.9)

    answers = [*admitted, *denied]
    assert violated("single", answers, faults if part else []) == found


@pytest.mark.parametrize(("crash_at", "found"), [(2.9, set()), (None, {"retry_after"})])
def test_a_replica_drains_by_the_old_limit_although_the_owner_denied_a_check(
    crash_at, found
) -> None:
    lower = Fault(1.0, "rules", 3.2, {"part": 0.5})
    crash = Fault(crash_at or 0.0, "crash", 3.1, {"node": order_of("single")[0]})
    settled = Disturbances(samples={"dc1": [(0.0, 0)]})
    denied = [
        Answered(at, at + 0.001, "dc1", "k", 1, False, Source.OWNER, wait)
        for at, wait in [(1.1, 12.25), (4.0, 2.0)]
    ]

    answers = [*rows(1, 0, 1), *denied]
    faults = [lower, crash] if crash_at else [lower]
    moved = None if crash_at else settled
    assert violated("single", answers, faults, disturbances=moved) == found


@pytest.mark.parametrize(("at", "found"), [(9.5, set()), (11.0, {"wrong_denial"})])
def test_a_clock_that_was_set_back_stops_a_bucket_at_its_higher_rate(at, found) -> None:
    owner, *_ = order_of("bucket")
    back = Fault(2.0, "clock_step", 30, {"node": owner, "by_s": -1.0})
    lower = Fault(3.5, "rules", 30, {"part": 0.34})
    denied = Answered(at, at + 0.001, "dc1", "k", 1, False, Source.OWNER, 0.5)

    found_laws = violated("bucket", [*rows(3, 1.9, 1.91), denied], [back, lower])
    assert found_laws - {"retry_after"} == found


@pytest.mark.parametrize(
    ("first_at", "allowed", "found"), [(6.5, False, set()), (1.0, True, {"over_admission"})]
)
def test_a_replica_drains_by_the_limit_before_until_a_check_adds_units(
    first_at, allowed, found
) -> None:
    owner = order_of("single")[0]
    faults = [Fault(8, "rules", 60, {"part": 0.2}), Fault(15, "crash", 40, {"node": owner})]
    first = Answered(first_at, first_at + 0.001, "dc1", "k", 1, True, Source.OWNER)
    second = Answered(9.0, 9.001, "dc1", "k", 1, allowed, Source.OWNER, 17.5)
    third = Answered(16.0, 16.001, "dc1", "k", 1, True, Source.STANDBY)

    assert violated("single", [first, second, third], faults) == found


@pytest.mark.parametrize(("by_s", "found"), [(-3600, set()), (None, {"wrong_denial"})])
def test_a_window_lasts_while_the_clock_of_its_owner_stands_still(by_s, found) -> None:
    host = order_of("opened")[0]
    step = [] if by_s is None else [Fault(2, "clock_step", None, {"node": host, "by_s": by_s})]
    denied = Answered(9.0, 9.001, "dc1", "k", 1, False, Source.OWNER, 4.0)

    settled = Disturbances(samples={"dc1": [(0.0, 0)]})

    answers = [*rows(9, 1, 2), *rows(1, 8, 9), denied]
    assert violated("opened", answers, step, disturbances=settled) == found


@pytest.mark.parametrize(
    ("remaining", "allowed", "found"),
    [
        (49, True, set()),
        (49, False, {"wrong_denial"}),
        (9, False, set()),
        (9, True, {"over_admission"}),
        (None, True, set()),
        (None, False, set()),
    ],
)
def test_an_answer_after_a_crash_shows_which_units_were_lost(remaining, allowed, found) -> None:
    crash = [Fault(10, "crash", 12, {"node": order_of("daily")[0]})]
    before = [*rows(50, 1, 5), *rows(40, 9.7, 10)]
    reading = Answered(55.0, 55.001, "dc1", "k", 1, True, Source.OWNER, remaining=remaining)
    last = Answered(56.0, 56.001, "dc1", "k", 20, allowed, Source.OWNER, 86_345.0)

    invariants, violations = judged("daily", [*before, reading, last], crash)
    assert violations - {"retry_after"} == found
    is_exact = remaining is not None
    assert invariants.judged.exactly == invariants.judged.decisions - (not is_exact)


@pytest.mark.parametrize(("verb", "host"), [("limits", 0), ("rules", 1)])
@pytest.mark.parametrize(
    ("count", "at", "found"),
    [
        (50, 4.0, set()),
        (49, 4.0, {"wrong_denial"}),
        (50, 12.5, {"wrong_denial"}),
    ],
)
def test_a_lower_limit_denies_only_what_does_not_fit_it_and_only_while_it_applies(
    verb, host, count, at, found
) -> None:
    lower = [Fault(1, verb, 12, {"node": order_of("daily")[host], "part": 0.5})]
    denied = Answered(at, at + 0.001, "dc1", "k", 1, False, Source.OWNER, 86_402 - at)

    assert violated("daily", [*rows(count, 2, 3), denied], lower) == found


@pytest.mark.parametrize(
    ("count", "source", "found"),
    [
        (50, Source.STANDBY, set()),
        (40, Source.STANDBY, {"wrong_denial"}),
        (50, Source.OWNER, {"wrong_denial"}),
    ],
)
def test_a_standby_with_a_lower_limit_decides_by_it(count, source, found) -> None:
    owner, standby, *_ = order_of("daily")
    lower = Fault(1, "limits", 12, {"node": standby, "part": 0.5})
    cut = Fault(3.5, "cut", 6, {"node": owner})
    denied = Answered(4.0, 4.001, "dc1", "k", 1, False, source, 86_398.0)
    settled = Disturbances(samples={"dc1": [(0.0, 0)]})

    answers = [*rows(count, 2, 3), denied]
    assert violated("daily", answers, [lower, cut], disturbances=settled) == found


def test_a_lower_limit_admits_no_more_than_it_has() -> None:
    lower = [Fault(1, "rules", 12, {"part": 0.5})]

    assert violated("daily", rows(50, 2, 3), lower, used={"dc1": 50}) == set()
    assert violated("daily", rows(51, 2, 3), lower, used={"dc1": 51}) == {"over_admission"}


def test_lower_limits_of_another_node_do_not_change_the_decisions_of_the_owner() -> None:
    lower = [Fault(1, "limits", 12, {"node": order_of("daily")[1], "part": 0.5})]
    denied = Answered(4.0, 4.001, "dc1", "k", 1, False, Source.OWNER, 86_398.0)
    settled = Disturbances(samples={"dc1": [(0.0, 0)]})

    answers = [*rows(50, 2, 3), denied]
    assert violated("daily", answers, lower, disturbances=settled) == {"wrong_denial"}
    invariants, found = judged("daily", answers, lower)
    assert found == set()
    assert invariants.judged.excuses == {"limits": 1}


@pytest.mark.parametrize(("retry_after", "found"), [(86_398.0, 0), (1e-9, 1), (47 * 3600.0, 1)])
def test_a_retry_time_is_the_time_until_a_unit_is_free(retry_after, found) -> None:
    denied = Answered(5.0, 5.001, "dc1", "k", 1, False, Source.OWNER, retry_after)
    full = [Answered(3.0, 3.001, "dc1", "k", 1, True, Source.OWNER), *rows(99, 3.1, 4)]

    assert violated("daily", [*full, denied]) == ({"retry_after"} if found else set())


@pytest.mark.parametrize(
    ("verb", "retry_after", "found"),
    [
        ("clog", 86_346.0, set()),
        ("clog", 86_349.0, {"retry_after"}),
        ("cut", 86_346.0, set()),
        ("cut", 86_349.0, {"retry_after"}),
        (None, 86_346.0, {"retry_after"}),
    ],
)
def test_hits_in_a_held_message_seem_younger_by_that_time(verb, retry_after, found) -> None:
    host = order_of("daily")[0]
    faults = [Fault(2, "crash", 12, {"node": host}), Fault(3, verb, 10, {"node": host})]
    full = rows(100, 0.5, 1)
    denied = Answered(60.0, 60.001, "dc1", "k", 1, False, Source.OWNER, retry_after)

    assert violated("daily", [*full, denied], faults if verb else faults[:1]) == found


@pytest.mark.parametrize(
    ("retry_after", "found"), [(86_391.12, set()), (86_391.2, {"retry_after"})]
)
def test_clocks_follow_a_stepped_clock_of_another_data_center_slowly(retry_after, found) -> None:
    step = [
        Fault(
            5, "clock_step", None, {"node": order_of("daily", "dc2", datacenters=2)[0], "by_s": 5}
        )
    ]
    denied = Answered(10.0, 10.001, "dc1", "k", 1, False, Source.OWNER, retry_after)
    settled = Disturbances(samples={"dc1": [(0.0, 0)]})

    answers = [*rows(100, 1.1, 2), denied]
    assert violated("daily", answers, step, datacenters=2, disturbances=settled) == found


def test_a_standby_decides_exactly_only_while_the_owner_is_away() -> None:
    crash = [Fault(10, "crash", 12, {"node": OWNER})]
    while_away = rows(10, 11, 12, source=Source.STANDBY)
    afterwards = rows(10, 14, 15, source=Source.STANDBY)
    long_after = rows(10, 50, 51, source=Source.STANDBY)

    invariants, found = judged("log", [*while_away, *afterwards], crash, used={"dc1": 20})
    assert found == set()
    assert (invariants.judged.exactly, invariants.judged.excuses) == (10, {"owner_away": 10})
    assert violated("log", [*while_away, *long_after], crash, used={"dc1": 20}) == {"outage"}


def test_a_cached_denial_ends_with_the_denial_that_it_repeats() -> None:
    full = rows(100, 3, 4)
    denied = Answered(5.0, 5.001, "dc1", "k", 1, False, Source.OWNER, 86_398.0)
    cached = [
        Answered(at, at, "dc1", "k", 1, False, Source.CACHE, retry_after)
        for at, retry_after in ((7.0, 86_396.0), (7.0, 86_390.0))
    ]

    assert violated("daily", [*full, denied, cached[0]]) == set()
    assert violated("daily", [*full, denied, cached[1]]) == {"retry_after"}


@pytest.mark.parametrize(("retry_after", "found"), [(86_395.7, set()), (86_395.3, {"retry_after"})])
def test_a_cached_denial_counts_from_the_time_at_which_it_was_asked(retry_after, found) -> None:
    full = rows(100, 3, 4)
    denied = Answered(5.0, 5.3, "dc1", "k", 1, False, Source.OWNER, 86_398.0)
    cached = Answered(7.3, 7.3, "dc1", "k", 1, False, Source.CACHE, retry_after)

    assert violated("daily", [*full, denied, cached]) == found


def test_clients_elsewhere_may_check_a_home_rule() -> None:
    answers = rows(30, 1, 20, "dc2")

    assert violated("home", answers, used={"dc2": 30}, datacenters=2) == set()
    assert violated("home", answers, used={"dc2": 20}, datacenters=2) == {"lost_hits"}


def test_data_centers_with_their_own_limits_give_each_other_no_tolerance() -> None:
    elsewhere = rows(5, 1, 2, "dc2")
    cut = [Fault(1, "cut", 30, {"node": order_of("log", datacenters=2)[0]})]

    assert violated("log", [*rows(200, 2, 25), *elsewhere], cut, datacenters=2) == set()
    found = violated("log", [*rows(201, 2, 25), *elsewhere], cut, datacenters=2)
    assert found == {"over_admission"}


def test_a_slow_node_that_forwards_to_the_home_of_a_rule_explains_decisions_by_policy() -> None:
    forwarder, _, other = order_of("home", "dc2", datacenters=2)
    by_policy = rows(3, 11, 12, "dc2", source=Source.POLICY)

    for node, found in ((forwarder, set()), (other, {"outage"})):
        busy = [Fault(10, "busy", 20, {"node": node, "cost_ms": 20})]
        assert violated("home", by_policy, busy, datacenters=2) == found


@pytest.mark.parametrize(("source", "found"), [(Source.POLICY, set()), (None, {"wrong_denial"})])
def test_the_home_may_count_a_check_that_the_policy_decided_while_nodes_connect(
    source, found
) -> None:
    first = rows(1, 0.1, 0.2, "dc2", source=source) if source else []
    denied = Answered(5.0, 5.001, "dc1", "k", 1, False, Source.OWNER, 86_400.0 - 5)

    answers = [*first, *rows(399, 1, 2), denied]
    assert violated("home", answers, datacenters=2) - {"retry_after", "outage"} == found


@pytest.mark.parametrize(("counted_at", "found"), [(1.9, set()), (2.2, {"retry_after"})])
def test_a_check_that_the_policy_decided_may_count_until_its_deadline(counted_at, found) -> None:
    by_policy = rows(1, 0.1, 0.2, "dc2", source=Source.POLICY)
    denied = Answered(4.0, 4.001, "dc1", "k", 1, False, Source.OWNER, counted_at + 5.0 - 4.0)

    answers = [*by_policy, *rows(4, 3, 4), denied]
    assert violated("home_log", answers, datacenters=2) - {"outage"} == found


CUT = Fault(1.0, "cut", 20.0, {"node": "n1"})


def held_from(instant):
    """Return the observation that the owner alone holds all shards from an instant on."""
    holders = Holders(samples={OWNER: [(instant, bytes([1]) * 16384)]})
    return {"holders": holders, "disturbances": Disturbances()}


def under_the_cut(remaining, allowed):
    """Return checks during a cut; the last but one states the remaining units."""
    before = rows(100, 2, 3)  # The cut leaves it uncertain which member has counted them.
    stated = replace(before[0], asked_at=4.0, answered_at=4.001, remaining=remaining)
    if not remaining:
        stated = replace(stated, allowed=False, retry_after=58.0)
    last = replace(stated, asked_at=5.0, answered_at=5.001, remaining=0, allowed=allowed)
    return [*before, stated, last if allowed else replace(last, retry_after=57.0)]


@pytest.mark.parametrize(
    ("remaining", "allowed", "expected"),
    [(0, True, {"over_admission"}), (0, False, set()), (5, True, set()), (5, False, set())],
)
def test_a_decision_under_an_excuse_follows_from_the_last_one_of_the_same_holder(
    remaining, allowed, expected
):
    answers = under_the_cut(remaining, allowed)

    checker, found = judged("log", answers, [CUT], **held_from(3.5))
    changed, without = judged("log", answers, [CUT], **held_from(4.5))

    assert (found, without) == (expected, set())
    assert checker.judged.exactly - changed.judged.exactly == (not remaining)


@pytest.mark.parametrize(("cost", "expected"), [(1, set()), (3, {"over_admission"})])
def test_a_node_that_restarted_alone_drains_a_split_bucket_by_the_whole_limit(
    cost, expected
) -> None:
    [owner, *_] = order_of("split", "dc2", datacenters=2)
    crash = Fault(1, "crash", 1.5, {"node": owner, "seedless": 1})
    shard = shard_of(encode_key(KNOWN["split"].id, ["k"]))
    moved = Disturbances(samples={"dc2": [(0.0, 0), (1.0, 255 << 8 * shard), (7.4, 0)]})
    # The node admits six units by the whole limit. The denial converts the bucket to its part.
    decided = [(6.0, 3, True), (6.6, 3, True), (9.2, 3, False), (11.0, cost, True)]
    answers = [
        replace(each, cost=units)
        for at, units, allowed in decided
        for each in rows(1, at, at, "dc2", allowed=allowed)
    ]

    found = violated("split", answers, [crash], datacenters=2, disturbances=moved)
    assert found == expected
