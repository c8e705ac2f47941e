"""Fallback log: hits that a node admitted for an unreachable owner."""

from hypothesis import given
from hypothesis import strategies as st

from node.shards.fallback_log import FallbackLog

S = 10**9
MINUTE = 60 * S


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
    assert tally.keys == tally.slot_keys == []


def test_more_than_a_period_is_not_kept() -> None:
    tally = FallbackLog()
    for second in range(1000):
        tally.add(b"k", 1, MINUTE, second * S)

    assert 60 <= units(tally.row(b"k", 999 * S)) <= 130


@given(
    period=st.integers(128, 10**15),
    events=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 100)), max_size=20),
)
def test_a_transfer_changes_no_units_window(period: int, events: list[tuple[int, int]]) -> None:
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
