"""Fallback log: hits that a node admitted for an unreachable owner."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.shards.fallback_log import FallbackLog
from node.shards.log_rows import (
    LiftedUnits,
    add_logs,
    log_rows,
    without_checks,
    without_logged_checks,
    without_refunds,
    without_units,
)
from node.shards.transfers.unacknowledged_transfers import add_unused
from ringfence.limiter import Algorithm, Limit, Snapshot
from ringfence.limiter.serialization import MAX_UNITS
from ringfence.wire import DecidedCheck
from tests.node.shards.ownership.ownership_host import DAY, NOW

S = 10**9
MINUTE = 60 * S
MAX = 4000
"""Most slots of one key."""


def units(row: list[int]) -> int:
    return sum(row[1::2])


def test_units_come_back_with_their_age() -> None:
    tally = FallbackLog()
    tally.add(b"k", 3, MINUTE, 100 * S)
    tally.add(b"k", 2, MINUTE, 130 * S)

    ages_and_units = tally.row(b"k", 130 * S)

    assert ages_and_units[1::2] == [3, 2]
    assert ages_and_units[2] == 0
    assert 29 * S < ages_and_units[0] <= 30 * S


def test_refunds_remove_the_newest_units_first() -> None:
    tally = FallbackLog()
    tally.add(b"k", 3, MINUTE, 100 * S)
    tally.add(b"k", 2, MINUTE, 130 * S)
    tally.take_back(b"k", 4)

    assert tally.row(b"k", 130 * S)[1::2] == [1]
    tally.take_back(b"k", 4)
    assert tally.row(b"k", 130 * S) == []


def test_a_key_that_was_reset_or_never_seen_has_nothing() -> None:
    tally = FallbackLog()
    tally.add(b"k", 3, MINUTE, 100 * S)
    tally.grant(b"k", 7, 1, MINUTE, 100 * S)
    tally.forget(b"k")

    assert tally.row(b"k", 100 * S) == tally.row(b"other", 100 * S) == []
    assert tally.keys == tally.unused_keys == []


def test_more_than_a_period_is_not_kept() -> None:
    tally = FallbackLog()
    for second in range(1000):
        tally.add(b"k", 1, MINUTE, second * S)

    assert 60 <= units(tally.row(b"k", 999 * S)) <= 130


def test_the_log_has_the_present_part_of_the_period_and_128_before_it() -> None:
    log = FallbackLog()
    period = 128 * S  # A part has a second.
    for second in range(1000):
        log.add(b"k", 1 + second % 2, period, second * S)
        log.add(b"k", 1, period, second * S + S // 2)

    row = log.row(b"k", 1000 * S - 1)

    assert row[::2] == [(999 - second) * S for second in range(871, 1000)]
    assert row[1::2] == [2 + second % 2 for second in range(871, 1000)]


@given(
    period=st.integers(128, 10**15),
    events=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 100)), max_size=20),
)
def test_a_transfer_keeps_each_unit_in_its_window(
    period: int, events: list[tuple[int, int]]
) -> None:
    tally, copy = FallbackLog(), FallbackLog()
    now = 50 * period
    by_window: dict[int, int] = {}
    for passed, cost in events:
        now += passed * period // 10**7
        tally.add(b"k", cost, period, now)
        by_window[now // period] = by_window.get(now // period, 0) + cost

    copy.restore(b"k", tally.row(b"k", now), period, now)

    row = copy.row(b"k", now)
    found: dict[int, int] = {}
    for age, cost in zip(row[::2], row[1::2], strict=True):
        found[(now - age) // period] = found.get((now - age) // period, 0) + cost
    assert found == by_window


def test_a_slot_that_only_this_log_knows_is_forgotten_at_its_release() -> None:
    log = FallbackLog()
    log.grant(b"k", 7, 1, MINUTE, 100 * S)
    log.grant(b"k", 8, 1, MINUTE, 100 * S)
    assert log.add_slot(b"k", 9)
    assert list(log.slots(b"k")) == [7, 8, 9]

    log.release(b"k", 7, 1)
    log.release(b"k", 9, 1)
    log.release(b"k", 10, 1)

    assert list(log.slots(b"k")) == [8, 9, 10]
    assert log.row(b"k", 100 * S) == []
    assert log.keys == log.unused_keys == [b"k"]
    log.remove_slots(b"k", [8, 9, 10, 11])
    log.remove_slots(b"other", [8])
    assert log.keys == log.unused_keys == []
    assert list(log.slots(b"k")) == []


def test_slots_of_a_key_that_do_not_fit_are_logged_as_units() -> None:
    log = FallbackLog()
    for slot in range(MAX):
        log.grant(b"k", slot, 2, MINUTE, 100 * S)
    assert log.row(b"k", 100 * S) == []

    log.grant(b"k", MAX, 2, MINUTE, 100 * S)
    log.grant(b"k", 0, 2, MINUTE, 100 * S)

    assert len(log.slots(b"k")) == MAX
    assert not log.add_slot(b"k", MAX)
    assert units(log.row(b"k", 100 * S)) == 2
    log.release(b"k", MAX, 1)
    assert units(log.row(b"k", 100 * S)) == 1


def test_units_and_slots_of_another_log_are_subtracted_in_each_part_of_the_period() -> None:
    log, other = FallbackLog(), FallbackLog()
    for each, cost in ((log, 5), (other, 3)):
        each.add(b"k", cost, MINUTE, 100 * S)
    log.add(b"k", 2, MINUTE, 130 * S)
    other.add(b"k", 9, MINUTE, 150 * S)
    for key in (b"gone", b"kept"):
        log.add(key, 2, MINUTE, 100 * S)
    other.add(b"gone", 4, MINUTE, 100 * S)
    other.add(b"unknown", 4, MINUTE, 100 * S)
    log.add_slot(b"s", 1)
    log.add_slot(b"s", 2)
    other.add_slot(b"s", 1)

    log.subtract(other)

    assert log.row(b"k", 150 * S)[1::2] == [2, 2]
    assert log.row(b"gone", 150 * S) == []
    assert log.keys == [b"k", b"kept", b"s"]
    assert list(log.slots(b"s")) == [2]
    assert units(other.row(b"k", 150 * S)) == 12


def test_units_have_the_age_of_the_end_of_their_part_of_the_period() -> None:
    log = FallbackLog()
    log.add(b"k", 1, 128 * S, 256 * S)
    first = log.row(b"k", 300 * S)
    log.restore(b"k", [44 * S, 2], 128 * S, 300 * S)

    assert first == [43 * S + 1, 1]
    assert log.row(b"k", 300 * S) == [first[0], 3]
    assert log.row(b"k", 256 * S) == [0, 3]


def test_units_that_the_receiver_has_are_subtracted_from_a_row_the_oldest_first() -> None:
    keys, rows = [b"k", b"s"], [[30, 3, 20, 2, 10, 4], [7, 0, 5, 1]]

    assert without_units(keys, rows, {b"x": 1}) is rows
    assert without_units(keys, rows, {b"k": 4}) == [[20, 1, 10, 4], [5, 1, 7, 0]]
    assert without_units(keys, rows, {b"k": 99, b"s": 1}) == [[], [7, 0]]


def test_units_that_were_charged_nearest_to_the_refunded_charge_are_taken_back_first() -> None:
    log = FallbackLog()
    for at in (NOW, NOW + 10 * S, NOW + 20 * S):
        log.add(b"k", 5, MINUTE, at)

    assert log.take_back(b"k", 7, NOW + 9 * S) == 7

    assert log.row(b"k", NOW + 20 * S)[1::2] == [3, 5]
    assert log.take_back(b"k", 4) == 4
    assert log.row(b"k", NOW + 20 * S)[1::2] == [3, 1]


NOTHING = LiftedUnits([], {})
OUTCOME = (0, 0, 0, 0, 0, 0, 0, 0)


def decided(key: bytes, cost: int, age_ns: int, slot: int = 0) -> DecidedCheck:
    return DecidedCheck((1, 1, 0), key, cost, age_ns, (0, 0, 0, 0, 0, 0, slot, 0))


def test_checks_that_both_members_admitted_are_subtracted_from_a_row() -> None:
    keys, rows = [b"k", b"s"], [[30, 3, 20, 2, 10, 4], [7, 0, 8, 0]]
    checks = [decided(b"k", 3, 21), decided(b"s", 1, 5, slot=8), decided(b"unknown", 1, 5)]

    assert without_checks(keys, rows, checks, NOTHING) == ([[30, 2, 10, 4], [7, 0]], [])
    assert without_checks(keys, rows, [], NOTHING) == ([[30, 3, 20, 2, 10, 4], [7, 0, 8, 0]], [])


def test_units_of_checks_that_refunds_removed_from_a_row_are_returned() -> None:
    keys, rows = [b"k"], [[20, 2]]
    checks = [decided(b"k", 5, 21), decided(b"k", 4, 9), decided(b"e", 7, 9), decided(b"n", 1, 9)]

    refund = DecidedCheck((1, 2, 0), b"k", 5, 3, OUTCOME, is_refund=True)
    reset = DecidedCheck((1, 3, 0), b"e", 0, 3, OUTCOME, is_reset=True)

    rest, unlogged = without_checks(keys, rows, checks, LiftedUnits([refund, reset], {}))

    assert rest == [[]]
    assert [(each.key, each.cost) for each in unlogged] == [(b"k", 3), (b"k", 2), (b"e", 7)]


def test_a_row_without_refunds_keeps_its_units_and_slots() -> None:
    row = [30, 3, 7, 0, 0, 0, 9, 0, 2, 0]

    assert without_refunds([b"k", b"other"], [row, row], [b"k"]) == [[30, 3, 7, 0], row]


def test_a_check_whose_units_a_log_does_not_have_takes_no_units_of_another_time() -> None:
    plain, slotted = Limit.of_ns(9, MINUTE), Limit.of_ns(9, MINUTE, algorithm=Algorithm.CONCURRENCY)
    counts = Snapshot([b"k", b"s", b"e"], [[], [], []], [plain, slotted], [0, 1, 0], [])
    rows = [[30 * S, 3, 20 * S, 2], [7 * S, 1, 8, 0], []]
    checks = [
        decided(b"k", 1, 31 * S),
        decided(b"k", 4, 21 * S),
        decided(b"k", 1, 4 * S),
        decided(b"s", 1, 0, slot=8),  # The age counts from the grant, not from the last renewal.
        *(decided(b"e", 1, 5), decided(b"unknown", 1, 5)),
    ]

    rest, unlogged = without_logged_checks(counts, rows, checks, NOTHING)

    assert rest == [[30 * S, 2], [], []]
    assert [(each.key, each.cost, each.age_ns) for each in unlogged] == [
        (b"k", 2, 21 * S),
        (b"k", 1, 4 * S),
    ]


@pytest.mark.parametrize("periods", [(MINUTE, 60 * MINUTE), (60 * MINUTE, MINUTE)])
def test_units_keep_their_ages_when_the_period_changes(periods: tuple[int, int]) -> None:
    before, after = periods
    now, log = 1_800_000_000 * S, FallbackLog()
    log.add(b"k", 3, before, now)
    log.add(b"k", 2, after, now + 2 * MINUTE)

    row = log.row(b"k", now + 3 * MINUTE)

    assert row[1::2] == [3, 2]
    assert row[::2] == [pytest.approx(age, abs=MINUTE / 2) for age in (3 * MINUTE, MINUTE)]


@pytest.mark.parametrize("longer", [0, 1])
def test_units_of_a_log_with_another_period_are_subtracted(longer: int) -> None:
    now, logs = 1_800_000_000 * S, (FallbackLog(), FallbackLog())
    for log in logs:
        log.add(b"k", 3, MINUTE, now)
    logs[longer].add(b"k", 2, 60 * MINUTE, now + 2 * MINUTE)

    logs[0].subtract(logs[1])

    assert logs[0].units_of(b"k") == (0 if longer else 2)


def test_units_in_one_part_of_a_longer_period_are_bounded() -> None:
    log = FallbackLog()
    for second in range(2):
        log.add(b"k", MAX_UNITS, MINUTE, second * S)

    log.add(b"k", 1, 60 * MINUTE, 2 * S)

    assert log.units_of(b"k") == MAX_UNITS


def test_a_copy_without_the_oldest_units_leaves_the_log_unchanged() -> None:
    tally = FallbackLog()
    tally.add(b"k", 3, MINUTE, 100 * S)
    tally.add(b"k", 2, MINUTE, 130 * S)
    tally.add(b"other", 1, MINUTE, 130 * S)
    tally.add_slot(b"s", 7)

    left = tally.without_oldest({b"k": 4, b"s": 1})

    assert left.row(b"k", 130 * S) == [0, 1]
    assert units(left.row(b"other", 130 * S)) == 1
    assert [*left.slots(b"s")] == [7]
    assert units(tally.without_oldest({b"k": 1}).row(b"k", 130 * S)) == 4
    assert tally.without_oldest({b"k": 3}).row(b"k", 130 * S) == [0, 2]
    assert tally.without_oldest({b"k": 6}).row(b"k", 130 * S) == []
    left.remove_slots(b"s", [7])
    assert units(tally.row(b"k", 130 * S)) == 5
    assert [*tally.slots(b"s")] == [7]


def test_refunds_of_an_unused_key_are_kept_for_a_minute() -> None:
    log, received = FallbackLog(), FallbackLog()
    log.add_refunded(b"k", 60, DAY, NOW)
    counts = Snapshot([], [], [], [], [])
    add_unused(counts, [b"k"])

    add_logs(received, counts, log_rows(log, counts, NOW), NOW)

    assert received.refunded(b"k", NOW + 50 * S)[1::2] == [60]


def test_refunds_are_forgotten_after_a_period() -> None:
    log = FallbackLog()
    for number in range(40):
        log.add_refunded(b"%d" % number, 1, 60 * S, NOW + number * S)

    log.prune(lambda key: False, NOW + 80 * S)

    assert log.unused_keys == [b"%d" % number for number in range(20, 40)]
    assert log.refunded(b"19", NOW + 80 * S) == []


def test_a_row_has_slots_before_refunds_and_every_reader_keeps_both() -> None:
    limits = [Limit.of_ns(9, DAY), Limit.of_ns(9, DAY, Algorithm.CONCURRENCY)]
    counts = Snapshot([b"k", b"s"], [[NOW // DAY, 3, 0], [7, DAY - S, 2]], limits, [0, 1], [])
    log = FallbackLog()
    log.add(b"k", 3, DAY, NOW)
    log.add_refunded(b"k", 60, DAY, NOW)
    log.grant(b"s", 7, 2, DAY, NOW)

    rows = log_rows(log, counts, NOW)
    received = FallbackLog()
    add_logs(received, counts, rows, NOW)

    assert rows == [[0, 3, 0, 0, 1, 0, 60, 0], [S, 2, 7, 0]]
    assert received.row(b"k", NOW)[1::2] == [3]
    assert received.refunded(b"k", NOW)[1::2] == [60]
    assert [*received.slots(b"s")] == [7]


def test_slots_above_the_bound_are_logged_as_units() -> None:
    log = FallbackLog()
    for slot in range(1, 5001):
        log.grant(b"k", slot, 1, MINUTE, NOW)

    assert len(log.slots(b"k")) + sum(log.row(b"k", NOW)[1::2]) == 5000
    assert log.row(b"k", NOW)
    for slot in range(5000, 0, -1):
        log.release(b"k", slot, 1)
    assert not log.slots(b"k")
    assert log.row(b"k", NOW) == []


def test_a_log_of_released_slots_is_bounded() -> None:
    log = FallbackLog()
    for slot in range(1, 10_000):
        log.release(b"k", slot, 1)

    assert len(log.slots(b"k")) < 5000


def test_expired_slots_that_no_other_member_has_are_forgotten() -> None:
    log = FallbackLog()
    log.add_slot(b"held by the owner", 1)
    for number in range(40):
        log.grant(b"%d" % number, number + 2, 1, MINUTE, NOW)
        log.prune(lambda key: key == b"0", NOW)

    assert b"0" in log.unused_keys
    assert b"held by the owner" in log.unused_keys
    assert len(log.unused_keys) < 10
