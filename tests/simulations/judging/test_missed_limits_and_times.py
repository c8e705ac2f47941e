"""Histories with wrong limits, clocks and retry times, which an earlier checker excused."""

from dataclasses import replace

import pytest

from hashring import shard_of
from ringfence.rules.keys import encode_key
from ringfence.wire import Source
from simulations.judging.disturbance import Disturbances
from simulations.judging.ledger import Answered
from simulations.scenarios.scenario import Fault
from tests.simulations.judging.histories import (
    KNOWN,
    OWNER,
    judged,
    order_of,
    rows,
    violated,
)


@pytest.mark.parametrize(
    ("rule", "delays", "found"),
    [
        ("queued", [0.0, 10.0, 20.0], set()),
        ("queued", [0.0, 0.0, 0.0], {"delay"}),
        ("queued", [10.0, 20.0, 30.0], {"delay"}),
        ("queued", [0.0, 10.0, 31.0], {"delay"}),
        ("bucket", [0.0, 0.0, 0.0], set()),
        ("bucket", [0.0, 0.0, 1.0], {"delay"}),
    ],
)
def test_a_check_is_delayed_by_the_units_before_it_and_only_in_queue_mode(
    rule, delays, found
) -> None:
    answers = [
        Answered(at, at + 0.001, "dc1", "k", 1, True, Source.OWNER, delay=delay)
        for at, delay in zip((1.0, 1.01, 1.02), delays, strict=True)
    ]

    assert violated(rule, answers) == found


@pytest.mark.parametrize(("crash_at", "found"), [(2.0, set()), (None, {"delay"})])
def test_a_standby_delays_checks_by_the_units_that_a_crash_may_have_lost(crash_at, found) -> None:
    later = Answered(2.2, 2.201, "dc1", "k", 1, True, Source.STANDBY)
    crash = [Fault(crash_at, "crash", 20, {"node": order_of("queued")[0]})] if crash_at else []

    assert violated("queued", [*rows(2, 1.8, 1.95), later], crash) - {"outage"} == found


@pytest.mark.parametrize(
    ("last", "found"),
    [
        ({"remaining": 1, "over_soft": True}, set()),
        ({"remaining": 0, "over_soft": True}, {"remaining"}),
        ({"remaining": 2, "over_soft": True}, {"remaining"}),
        ({"remaining": 1}, {"remaining"}),
        ({"remaining": 2, "is_uncounted": True}, set()),
        ({"remaining": 1, "is_uncounted": True}, {"remaining"}),
        ({"remaining": 0, "source": Source.CACHE}, set()),
    ],
)
def test_an_answer_states_the_units_left_and_whether_it_used_the_soft_margin(last, found) -> None:
    """The limit is four, with a soft margin of two."""
    used = [
        replace(each, remaining=left)
        for each, left in zip(rows(4, 1, 2), (5, 4, 3, 2), strict=True)
    ]
    answers = [*used, replace(*rows(1, 3, 3), **last)]

    assert violated("soft", answers) - {"over_admission"} == found


@pytest.mark.parametrize(
    ("left", "is_split", "found"),
    [(3, False, set()), (5, False, {"remaining"}), (5, True, set()), (6, True, {"remaining"})],
)
def test_a_standby_behind_a_cut_may_lack_the_units_of_the_owner(left, is_split, found) -> None:
    """The owner has counted two of at most six units; the standby counts one."""
    cut = [Fault(2.5, "cut", 10, {"node": order_of("soft")[0]})] if is_split else []
    used = [replace(each, remaining=left) for each, left in zip(rows(2, 1, 2), (5, 4), strict=True)]
    answer = replace(rows(1, 3, 3)[0], remaining=left, source=Source.STANDBY)

    assert violated("soft", [*used, answer], cut) - {"outage"} == found


@pytest.mark.parametrize(
    ("lasts", "later", "left", "used", "found"),
    [
        (0.04, 4.0, 98, 2, set()),
        (0.04, 4.0, 97, 2, set()),
        (0.04, 4.0, 96, 2, {"remaining"}),  # The standby counts the check once.
        (0.009, 4.0, 97, 2, {"remaining"}),  # The standby was not asked.
        (0.04, 9.0, 97, 2, {"remaining"}),  # Owner and standby have merged their counters.
        (0.04, 4.0, 97, 3, {"invented_hits"}),
    ],
)
def test_a_standby_may_count_a_check_that_its_owner_answers_unusually_late(
    lasts, later, left, used, found
) -> None:
    """The client asks the standby from 0.01 s on. Then the owner answers."""
    owner, *_ = order_of("daily")
    shard = shard_of(encode_key(KNOWN["daily"].id, ["k"]))
    cut = Fault(2.5, "cut", 5.5, {"node": owner})
    away = Disturbances(samples={"dc1": [(0.0, 0), (3.0, 255 << 8 * shard), (6.0, 0)]})
    first = Answered(2.6, 2.6 + lasts, "dc1", "k", 1, True, Source.OWNER, remaining=99)
    second = Answered(later, later + 0.001, "dc1", "k", 1, True, Source.OWNER, remaining=left)

    answers = [first, second]
    assert violated("daily", answers, [cut], used={"dc1": used}, disturbances=away) == found


def test_without_a_fault_a_check_counts_once_although_its_owner_answers_late() -> None:
    first = Answered(2.6, 2.64, "dc1", "k", 1, True, Source.OWNER, remaining=99)
    second = replace(first, asked_at=4.0, answered_at=4.001, remaining=97)

    assert violated("daily", [first, second]) == {"remaining"}


@pytest.mark.parametrize(("part", "found"), [(0.2, set()), (None, {"retry_after"})])
def test_a_bucket_drains_more_slowly_while_a_fault_lowers_its_limit(part, found) -> None:
    faults = [Fault(0.5, "limits", 20, {"node": order_of("single")[0], "part": part or 1.0})]
    admitted, denied = rows(1, 2, 3), rows(1, 2.1, 3, allowed=False, retry_after=29.9)

    answers = [*admitted, *denied]
    assert violated("single", answers, faults if part else []) == found


@pytest.mark.parametrize(("at", "found"), [(9.5, set()), (11.0, {"wrong_denial"})])
def test_a_clock_that_was_set_back_stops_a_bucket_at_its_higher_rate(at, found) -> None:
    owner, *_ = order_of("bucket")
    back = Fault(2.0, "clock_step", 30, {"node": owner, "by_s": -1.0})
    lower = Fault(3.5, "rules", 30, {"part": 0.34})
    denied = Answered(at, at + 0.001, "dc1", "k", 1, False, Source.OWNER, 0.5)

    found_laws = violated("bucket", [*rows(3, 1.9, 1.91), denied], [back, lower])
    assert found_laws - {"retry_after"} == found


@pytest.mark.parametrize(
    ("first_at", "allowed", "found"),
    [(6.5, None, set()), (6.5, False, {"over_admission"}), (1.0, True, {"over_admission"})],
)
def test_a_replica_drains_by_the_limit_of_the_last_check_that_its_owner_decided(
    first_at, allowed, found
) -> None:
    owner = order_of("single")[0]
    faults = [Fault(8, "rules", 60, {"part": 0.2}), Fault(15, "crash", 40, {"node": owner})]
    first = Answered(first_at, first_at + 0.001, "dc1", "k", 1, True, Source.OWNER)
    second = Answered(9.0, 9.001, "dc1", "k", 1, bool(allowed), Source.OWNER, 17.5)
    third = Answered(16.0, 16.001, "dc1", "k", 1, True, Source.STANDBY)

    answers = [first, third] if allowed is None else [first, second, third]
    assert violated("single", answers, faults) == found


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
    ("verb", "at", "found"),
    [
        ("cut", 66.0, set()),
        ("cut", 69.5, {"wrong_denial"}),
        (None, 66.0, {"wrong_denial"}),
    ],
)
def test_hits_that_a_cut_held_expire_later_by_that_time(verb, at, found) -> None:
    """The connection sent their ages again after the cut."""
    host = order_of("log")[0]
    faults = [Fault(2, "crash", 12, {"node": host}), Fault(3, verb, 10, {"node": host})]
    denied = Answered(at, at + 0.001, "dc1", "k", 1, False, Source.OWNER, 0.5)

    full = rows(100, 0.5, 1)
    assert violated("log", [*full, denied], faults if verb else faults[:1], end=80.0) == found


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


@pytest.mark.parametrize("by_s", [0.2, None])
@pytest.mark.parametrize(("left", "is_wrong"), [(4, False), (3, True), (5, True), (6, True)])
def test_a_clock_that_follows_another_one_drains_a_bucket_a_little_early_or_late(
    by_s, left, is_wrong
) -> None:
    step = Fault(2, "clock_step", 3, {"node": "n1", "by_s": by_s})
    owner_elsewhere = order_of("slow", "dc2", datacenters=2)[0]
    assert owner_elsewhere != "n1"
    last = Answered(50.0, 50.001, "dc2", "k", 0, True, Source.OWNER, remaining=left)

    found = violated("slow", [*rows(1, 10, 11, "dc2"), last], [step] if by_s else [], datacenters=2)

    assert (found == {"remaining"}) == (is_wrong and not (by_s and left in (3, 5)))


@pytest.mark.parametrize(
    ("late", "until", "is_wrong"), [(3.0, 8.0, False), (3.0, 4.5, True), (9.0, 8.0, True)]
)
def test_a_hit_expires_late_by_at_most_the_time_for_which_another_member_decided(
    late, until, is_wrong
) -> None:
    mark = 255 << 8 * shard_of(encode_key(KNOWN["daily"].id, ["k"]))
    away = Disturbances(samples={"dc1": [(0.0, 0), (0.6, mark), (1.0, 0), (3.4, mark), (until, 0)]})
    crash = Fault(0.5, "crash", 0.9, {"node": order_of("daily")[0]})
    denied = Answered(40.0, 40.001, "dc1", "k", 1, False, Source.OWNER, 86_363.5 + late)

    found = violated("daily", [*rows(100, 3.5, 4), denied], [crash], disturbances=away)

    assert ("retry_after" in found) == is_wrong


@pytest.mark.parametrize(("until", "left"), [(52.0, {8, 9}), (None, {8})])
def test_a_merge_may_drop_the_rest_of_a_unit_of_the_window_before(until, left) -> None:
    mark = 255 << 8 * shard_of(encode_key(KNOWN["sliding"].id, ["k"]))
    moved = [(49.0, mark), (until, 0)] if until else []
    seen = Disturbances(samples={"dc1": [(0.0, 0), *moved]})
    crash = Fault(0.5, "crash", 0.9, {"node": order_of("sliding")[0]})
    hits = rows(2, 50, 51)  # In the next window, each of them is less than a unit.

    accepted = {
        remaining
        for remaining in (7, 8, 9, 10)
        if not violated(
            "sliding",
            [*hits, Answered(65.0, 65.001, "dc1", "k", 1, True, Source.OWNER, remaining=remaining)],
            [crash],
            disturbances=seen,
            end=200.0,
        )
    }

    assert accepted == left


@pytest.mark.parametrize(
    ("cost", "allowed", "found"),
    [
        (2, True, set()),
        (3, True, {"over_admission"}),
        (2, False, {"wrong_denial"}),
        (3, False, set()),
    ],
)
def test_a_part_that_admits_nothing_drains_by_one_unit_a_period(cost, allowed, found) -> None:
    """The first denial converts a level of 2.34 units, of which 0.26 are left at the end."""
    lower = Fault(2.0, "rules", 12.0, {"part": 0.17})  # The limit is one unit, the part of dc1.
    decided = [(1.0, 3, True), (2.1, 1, False), (12.5, cost, allowed)]
    answers = [
        replace(each, cost=units)
        for at, units, is_allowed in decided
        for each in rows(1, at, at, "dc2", allowed=is_allowed)
    ]

    settled = Disturbances(samples={"dc2": [(0.0, 0)]})

    assert violated("split", answers, [lower], datacenters=2, disturbances=settled) == found
