"""Histories that real bugs would leave. An earlier checker excused them, mostly for whole runs."""

from dataclasses import replace

import pytest

from hashring import shard_of
from ringfence.rules.keys import encode_key
from ringfence.wire import Source
from simulations.judging.disturbance import Disturbances
from simulations.judging.excuses import Holders
from simulations.judging.ledger import Answered
from simulations.scenarios.scenario import Fault
from tests.simulations.judging.histories import (
    KNOWN,
    OTHERS,
    OWNER,
    STANDBY,
    judged,
    order_of,
    rows,
    violated,
)


@pytest.mark.parametrize(
    ("begin", "used", "expected"),
    [(3.0, 3, set()), (3.0, 4, {"invented_hits"}), (20.0, 3, {"invented_hits"})],
)
def test_a_merge_of_two_buckets_may_add_one_unit(begin, used, expected) -> None:
    """A merge rounds a level up. No merge follows a check after the cut."""
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
    assert invariants.judged.exact_by_law == {"outage": 40, "over_admission": 40, "delay": 40}
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


def held_from(instant, owner=OWNER):
    """Return the observation that the owner alone holds all shards from an instant on."""
    holders = Holders(samples={owner: [(instant, bytes([1]) * 16384)]})
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


@pytest.mark.parametrize(
    ("at", "retry_after", "expected"),
    [
        (6.5, None, {"over_admission"}),
        (7.1, None, set()),
        (7.5, 4.5, set()),  # The standby has counted the denied check.
        (23.0, 4.9, {"wrong_denial"}),
    ],
)
def test_a_denied_check_that_may_be_repeated_states_the_level_of_its_bucket(
    at, retry_after, expected
) -> None:
    [owner, *_] = order_of("pair")
    crash = Fault(2.2, "crash", 2.4, {"node": owner})  # The crash may have lost the first units.
    # Half of the bucket is free 3.9 s after the denial, at 7.0 s.
    denied = Answered(3.0, 3.2, "dc1", "k", 1, False, Source.OWNER, 3.9, remaining=0)
    [last] = rows(1, at, at, allowed=retry_after is None, retry_after=retry_after, remaining=0)
    answers = [*rows(2, 2.0, 2.2), denied, last]
    observed = held_from(2.5, owner) | {"disturbances": Disturbances(samples={"dc1": [(0.0, 0)]})}

    assert violated("pair", answers, [crash], **observed) == expected


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


@pytest.mark.parametrize(
    ("until", "at", "allowed", "found"),
    [
        (None, 55.0, True, {"over_admission"}),
        (40.0, 55.0, True, {"over_admission"}),  # The units arrived in the next period, until 60 s.
        (50.0, 70.0, True, set()),
        (50.0, 70.0, False, set()),
        (50.0, 239.5, False, set()),
        (50.0, 241.5, False, {"wrong_denial"}),  # The units arrived before 60 s, or never.
    ],
)
def test_a_bucket_may_ignore_units_of_another_data_center_that_a_cut_delays_for_two_periods(
    until, at, allowed, found
) -> None:
    cut = [] if until is None else [Fault(2.0, "cut", until, {"datacenter": "dc2"})]
    charge = replace(rows(1, 5, 5, "dc2")[0], cost=20, is_charge=True)
    check = replace(rows(1, at, at)[0], allowed=allowed, retry_after=None if allowed else 1.0)

    laws = violated("queue_of_all", [charge, check], cut, datacenters=2, end=300.0)
    assert laws - {"retry_after"} == found


@pytest.mark.parametrize(
    ("at", "crashed", "cut", "expected"),
    [
        # The other data center cannot send its counts again.
        (14.0, ("owner", "standby"), (9.5, 40.0), False),
        (9.0, ("owner", "standby"), (9.5, 40.0), True),  # Before the crash.
        (58.0, ("owner", "standby"), (9.5, 40.0), True),
        (30.0, ("owner", "standby"), (9.5, 11.0), True),
        (20.0, ("owner", "standby"), (19.0, 40.0), True),
        (14.0, ("owner",), (9.5, 40.0), True),  # A replica remains.
        (14.0, ("owner", "third"), (9.5, 40.0), False),
        (14.0, ("standby", "third"), (9.5, 40.0), True),  # The owner has all counts.
    ],
)
def test_counts_of_another_data_center_are_missing_until_it_sends_them_again_after_a_crash(
    at, crashed, cut, expected
) -> None:
    order = order_of("everywhere", datacenters=2)
    hosts = dict(zip(("owner", "standby", "third"), order, strict=True))
    faults = [
        *(Fault(10, "crash", 11, {"node": hosts[each]}) for each in crashed),
        Fault(cut[0], "cut", cut[1], {"datacenter": "dc2"}),
    ]
    settled = Disturbances(samples={"dc1": [(0.0, 0), (9.5, 1), (12.0, 0)], "dc2": [(0.0, 0)]})
    answers = [*rows(400, 1, 3, "dc2"), *rows(1, at, at + 1)]

    found = violated("everywhere", answers, faults, datacenters=2, disturbances=settled)

    assert ("over_admission" in found) == expected
