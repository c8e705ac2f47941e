from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from functools import cache
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.replay.oracle import Recorded, of_living_owners, over_admitted
from ringfence.limiter.limit import Algorithm, Calendar, Limit

LOG = Limit.of_ns(3, 10, Algorithm.SLIDING_WINDOW_LOG)
FIXED = Limit.of_ns(3, 10, Algorithm.FIXED_WINDOW)
BUCKET = Limit.of_ns(5, 10, Algorithm.TOKEN_BUCKET, burst=3)
SLIDING = Limit.of_ns(3, 10, Algorithm.SLIDING_WINDOW)
SLOTTED = Limit.of_ns(3, 12, Algorithm.SLIDING_WINDOW, slots=4)


def at(*instants: int, cost: int = 1, key: bytes = b"k", owner: str = "a") -> list[Recorded]:
    """Return admissions that were answered in the instant of their request."""
    return [Recorded(key, cost, instant, instant, True, owner) for instant in instants]


def admissions_between(*spans: tuple[int, int]) -> list[Recorded]:
    return [Recorded(b"k", 1, sent, received, True, "a") for sent, received in spans]


# All algorithms


@pytest.mark.parametrize("limit", [LOG, FIXED, BUCKET, SLIDING, SLOTTED])
def test_records_without_admitted_units_have_no_excess(limit: Limit) -> None:
    denied = [msgspec.structs.replace(record, admitted=False) for record in at(*[5] * 50)]

    assert over_admitted([], limit) == 0
    assert over_admitted(denied, limit) == 0
    assert over_admitted(at(*[5] * 50, cost=0), limit) == 0


@pytest.mark.parametrize("limit", [LOG, FIXED, BUCKET])
def test_every_unit_beyond_the_limit_at_one_instant_is_counted(limit: Limit) -> None:
    assert over_admitted(at(5, 5, 5), limit) == 0
    assert over_admitted(at(5, 5, 5, 5), limit) == 1
    assert over_admitted(at(5, 5, cost=4), limit) == 5


@pytest.mark.parametrize("limit", [LOG, FIXED, BUCKET])
def test_units_within_the_soft_margin_are_no_excess(limit: Limit) -> None:
    soft = replace(limit, amount=100, burst=None, soft=0.1)

    assert over_admitted(at(5, cost=110), soft) == 0
    assert over_admitted(at(5, cost=111), soft) == 1


def test_each_key_has_its_own_budget_and_the_result_is_the_sum_of_all_keys() -> None:
    records = at(1, 1, 1, key=b"a") + at(1, 1, 1, 1, key=b"b") + at(1, 1, 1, 1, 1, key=b"c")

    assert over_admitted(records, LOG) == 0 + 1 + 2


def test_with_a_limit_of_zero_every_admission_is_excess() -> None:
    assert over_admitted(at(1, 2, 3), replace(LOG, amount=0)) == 3


def test_clock_slack_reduces_the_proven_excess() -> None:
    records = at(0, 0, 0, 9)

    assert over_admitted(records, LOG) == 1
    assert over_admitted(records, LOG, slack_ns=1) == 0


def test_concurrency_limits_are_rejected() -> None:
    with pytest.raises(ValueError, match="number of held slots"):
        over_admitted([], Limit.of_ns(3, 10, Algorithm.CONCURRENCY))


def test_all_records_of_a_key_are_omitted_if_a_dead_owner_decided_one_of_them() -> None:
    records = at(1, key=b"a", owner="x") + at(2, key=b"a", owner="y") + at(3, key=b"b", owner="y")

    assert of_living_owners(records, dead={"x"}) == at(3, key=b"b", owner="y")


# Sliding-window log


def test_admissions_one_period_apart_are_never_in_one_window_of_the_log() -> None:
    assert over_admitted(at(0, 0, 0, 10, 10, 10), LOG) == 0
    assert over_admitted(at(0, 0, 0, 9), LOG) == 1


def test_a_window_across_a_boundary_counts_for_the_log_but_not_for_a_fixed_window() -> None:
    admissions = at(8, 8, 9, 10, 11, 12)

    assert over_admitted(admissions, LOG) == 3
    assert over_admitted(admissions, FIXED) == 0


def test_admissions_that_may_be_one_period_apart_are_no_proven_excess() -> None:
    assert over_admitted(admissions_between((0, 1), (0, 1), (0, 1), (8, 9)), LOG) == 1
    assert over_admitted(admissions_between((0, 1), (0, 1), (0, 1), (8, 10)), LOG) == 0


def test_excess_in_separate_windows_adds_up() -> None:
    assert over_admitted(at(*[0] * 5, *[100] * 4), LOG) == 2 + 1


# Fixed windows


def test_an_admission_that_spans_a_boundary_counts_in_no_fixed_window() -> None:
    assert over_admitted(admissions_between((0, 1), (2, 3), (4, 5), (6, 9)), FIXED) == 1
    assert over_admitted(admissions_between((0, 1), (2, 3), (4, 5), (6, 10)), FIXED) == 0


@pytest.mark.parametrize(
    ("calendar", "same_window", "next_window"),
    [
        (Calendar.DAY, (2024, 3, 1, 23), (2024, 3, 2, 0)),
        (Calendar.WEEK, (2024, 3, 3, 23), (2024, 3, 4, 0)),  # a Sunday, a Monday
        (Calendar.MONTH, (2024, 3, 31, 23), (2024, 4, 1, 0)),
        (Calendar.YEAR, (2024, 12, 29, 23), (2025, 1, 1, 0)),
    ],
)
def test_calendar_windows_end_at_midnight_of_their_time_zone(
    calendar: Calendar, same_window: tuple[int, ...], next_window: tuple[int, ...]
) -> None:
    def instant(year: int, month: int, day: int, hour: int) -> int:
        when = datetime(year, month, day, hour, tzinfo=ZoneInfo("Europe/Zurich"))
        return int(when.timestamp()) * 1_000_000_000

    limit = replace(FIXED, calendar=calendar, timezone="Europe/Zurich")
    first = instant(2024, 3, 1, 12)

    assert over_admitted(at(first, first, first, instant(*same_window)), limit) == 1
    assert over_admitted(at(first, first, first, instant(*next_window)), limit) == 0


# Token and leaky buckets


def test_a_bucket_admits_its_size_immediately_and_then_the_rate() -> None:
    assert over_admitted(at(0, 0, 0, 2, 4, 6, 8), BUCKET) == 0
    assert over_admitted(at(0, 0, 0, 2, 4, 5, 6, 8), BUCKET) == 1
    assert over_admitted(at(0, 0, 0, 1), BUCKET) == 1


def test_an_idle_bucket_never_holds_more_than_its_size() -> None:
    assert over_admitted(at(0, *[1000] * 4), BUCKET) == 1


def test_the_excess_of_a_leaky_bucket_is_that_of_a_token_bucket() -> None:
    leaky = replace(BUCKET, algorithm=Algorithm.LEAKY_BUCKET)

    assert over_admitted(at(0, 0, 0, 1), leaky) == 1
    assert over_admitted(at(0, 0, 0, 2), leaky) == 0


# Sliding-window estimate


def test_an_estimate_may_exceed_the_limit_across_a_boundary_but_not_twice_the_limit() -> None:
    assert over_admitted(at(9, 9, 9, 10, 10, 10), SLIDING) == 0
    assert (
        over_admitted(
            admissions_between((5, 9), (5, 9), (5, 9), (8, 12), (10, 12), (10, 12)), SLIDING
        )
        == 0
    )
    assert over_admitted(admissions_between(*[(8, 12)] * 7), SLIDING) == 1


def test_one_counter_of_the_estimate_admits_at_most_the_limit() -> None:
    assert over_admitted(at(0, 5, 9, 9), SLIDING) == 1


def test_finer_counters_admit_at_most_the_limit_in_any_period_of_whole_counters() -> None:
    assert over_admitted(at(3, 5, 8, 14), SLOTTED) == 1  # four counters in a row, from 3 to 15
    assert over_admitted(at(3, 5, 8, 14), replace(SLOTTED, slots=1)) == 0
    assert over_admitted(at(2, 5, 8, 13), SLOTTED) == 0


# Properties


def admission_of(start: int, length: int, cost: int) -> Recorded:
    return Recorded(b"k", cost, start, start + length, True, "a")


histories = st.lists(
    st.builds(admission_of, st.integers(0, 40), st.integers(0, 6), st.integers(1, 3)), max_size=12
)


@given(histories)
def test_the_excess_of_a_log_equals_its_definition(records: list[Recorded]) -> None:
    def excess(start: int) -> int:
        inside = [r.cost for r in records if r.sent_ns >= start and r.received_ns < start + 10]
        return max(0, sum(inside) - 3)

    def max_excess_from(instant: int) -> int:
        starts = {r.sent_ns for r in records if r.sent_ns >= instant}
        return max((excess(start) + max_excess_from(start + 10) for start in starts), default=0)

    assert over_admitted(records, LOG) == max_excess_from(0)


@given(histories)
def test_the_excess_of_a_bucket_equals_its_definition(records: list[Recorded]) -> None:
    ends = {r.received_ns for r in records}

    def excess(start: int, end: int) -> int:
        inside = [r.cost for r in records if r.sent_ns >= start and r.received_ns <= end]
        return sum(inside) - 3 - (end - start) * 5 // 10

    @cache
    def max_excess_from(instant: int) -> int:
        intervals = [
            (start, end)
            for start in {r.sent_ns for r in records if r.sent_ns >= instant}
            for end in ends
            if end >= start and excess(start, end) > 0
        ]
        return max(
            (excess(*interval) + max_excess_from(interval[1] + 1) for interval in intervals),
            default=0,
        )

    assert over_admitted(records, BUCKET) == max_excess_from(0)


def admits_log(spent: list[tuple[int, int]], cost: int, now: int) -> bool:
    return sum(c for at_, c in spent if at_ > now - 10) + cost <= 3


def admits_fixed(spent: list[tuple[int, int]], cost: int, now: int) -> bool:
    return sum(c for at_, c in spent if at_ // 10 == now // 10) + cost <= 3


def admits_bucket(spent: list[tuple[int, int]], cost: int, now: int) -> bool:
    level, last = Fraction(3), 0
    for at_, c in spent:
        level, last = min(Fraction(3), level + Fraction(at_ - last, 2)) - c, at_
    return min(Fraction(3), level + Fraction(now - last, 2)) >= cost


def admits_estimate(slots: int) -> Callable[[list[tuple[int, int]], int, int], bool]:
    def admits(spent: list[tuple[int, int]], cost: int, now: int) -> bool:
        length = 12 // slots
        slot = now // length
        newer = sum(c for at_, c in spent if slot - slots < at_ // length <= slot)
        oldest = sum(c for at_, c in spent if at_ // length == slot - slots)
        return oldest * (length - now % length) // length + newer + cost <= 3

    return admits


@pytest.mark.parametrize(
    ("limit", "admits"),
    [
        (LOG, admits_log),
        (FIXED, admits_fixed),
        (BUCKET, admits_bucket),
        (replace(SLIDING, period=12e-9), admits_estimate(1)),
        (SLOTTED, admits_estimate(4)),
    ],
)
@given(requests=st.lists(st.tuples(*[st.integers(0, 3)] * 3, st.integers(1, 3)), max_size=40))
def test_the_history_of_a_correct_limiter_has_no_excess(
    limit: Limit,
    admits: Callable[[list[tuple[int, int]], int, int], bool],
    requests: list[tuple[int, int, int, int]],
) -> None:
    spent: list[tuple[int, int]] = []
    records, now = [], 0
    for pause, request_ns, response_ns, cost in requests:
        now += pause
        admitted = admits(spent, cost, now)
        if admitted:
            spent.append((now, cost))
        records.append(Recorded(b"k", cost, now - request_ns, now + response_ns, admitted, "a"))

    assert over_admitted(records, limit) == 0


@pytest.mark.parametrize("limit", [LOG, FIXED, BUCKET])
@given(records=histories, instant=st.integers(0, 40), extra=st.integers(1, 9))
def test_an_inserted_violation_is_found_in_any_history(
    limit: Limit, records: list[Recorded], instant: int, extra: int
) -> None:
    assert over_admitted(records + at(instant, cost=3 + extra), limit) >= extra


def test_a_long_history_of_one_key_is_processed_in_one_pass() -> None:
    limit = Limit.of_ns(100, 1_000, Algorithm.SLIDING_WINDOW_LOG)
    records = [Recorded(b"k", 1, 10 * step, 10 * step + 7, True, "a") for step in range(50_000)]

    assert over_admitted(records, limit) == 0
    assert over_admitted(records, replace(limit, algorithm=Algorithm.TOKEN_BUCKET)) == 0
