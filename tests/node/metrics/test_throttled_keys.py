"""The keys denied most, against an exact count."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from node.metrics.throttled_keys import ThrottledKeys

KEPT = 256
few_often = st.integers(0, 5).map(lambda number: b"often%d" % number)
many_rarely = st.integers(0, 2000).map(lambda number: b"rare%d" % number)
frames = st.lists(st.lists(st.one_of(few_often, many_rarely), max_size=400), max_size=12)


@given(frames)
def test_no_count_is_too_low_nor_too_high_by_more_than_its_error(frames: list[list[bytes]]) -> None:
    throttled = ThrottledKeys()
    exact: Counter[bytes] = Counter()
    for keys in frames:
        throttled.denied(keys)
        exact.update(keys)

    rows = throttled.most(10_000)

    assert throttled.total == exact.total()
    assert all(0 <= row.denied - exact[row.key] <= row.error for row in rows)
    assert [row.denied for row in rows] == sorted([row.denied for row in rows], reverse=True)


@given(frames)
def test_a_key_with_a_large_part_of_all_denials_is_reported(frames: list[list[bytes]]) -> None:
    throttled = ThrottledKeys()
    for keys in frames:
        throttled.denied(keys)
    exact = Counter(key for keys in frames for key in keys)

    reported = {row.key for row in throttled.most(10_000)}

    assert {key for key, count in exact.items() if count > exact.total() / KEPT} <= reported


def test_memory_is_bounded_for_any_denied_keys() -> None:
    throttled = ThrottledKeys()
    for number in range(20_000):
        throttled.denied([b"key%d" % number])

    assert len(throttled.most(100_000)) <= KEPT


def test_denials_are_reported_for_two_periods() -> None:
    throttled = ThrottledKeys()
    throttled.denied([b"x"] * 3)

    throttled.turn()
    throttled.denied([b"x", b"y"])
    reported = [(row.key, row.denied, row.error) for row in throttled.most(5)]
    throttled.turn()

    assert reported == [(b"x", 4, 0), (b"y", 1, 0)]
    assert [(row.key, row.denied) for row in throttled.most(5)] == [(b"x", 1), (b"y", 1)]
    throttled.turn()
    assert throttled.most(5) == []


def test_the_total_includes_two_periods_and_denials_of_unknown_keys() -> None:
    throttled = ThrottledKeys()
    throttled.denied([b"x"] * 3)
    throttled.turn()
    throttled.denied([b"x"] * 2000)
    throttled.reported(Counter({b"x": 5, b"y": 2}), 10)
    throttled.reported(Counter(), 7)

    assert throttled.total == 3 + 2000 + 7 + 10 + 7
    assert [(row.key, row.denied, row.error) for row in throttled.most(2)] == [
        (b"x", 2008, 0),
        (b"y", 2, 0),
    ]
    throttled.turn()
    assert throttled.total == 2024
    throttled.turn()
    assert throttled.total == 0


def test_256_keys_are_kept_exactly_and_the_rarest_one_beyond_is_dropped() -> None:
    throttled = ThrottledKeys()
    for number in range(1, 257):
        throttled.reported(Counter({b"key%d" % number: number + 1}), 0)
    rows = throttled.most(1000)
    assert (len(rows), rows[-1].denied, {row.error for row in rows}) == (256, 2, {0})

    throttled.reported(Counter({b"new": 1}), 0)

    # The count of the new key may be too high by the count of the rarest key.
    [new] = [row for row in throttled.most(1000) if row.key == b"new"]
    assert (new.denied, new.error) == (3, 2)
    assert b"key1" not in {row.key for row in throttled.most(1000)}


def test_the_errors_of_two_periods_are_added() -> None:
    throttled = ThrottledKeys()
    for period in range(2):
        throttled.reported(Counter({b"key%d" % number: 9 for number in range(256)}), 0)
        throttled.reported(Counter({b"new": 1}), 0)
        if period == 0:
            throttled.turn()

    [new] = [row for row in throttled.most(1000) if row.key == b"new"]
    assert (new.denied, new.error) == (20, 18)
