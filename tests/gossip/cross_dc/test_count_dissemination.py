"""Which counts another data center should hear of next."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.cross_dc.count_dissemination import CountDissemination, KeyCounts, cells_sum

MS = 1_000_000


class Counts:
    """What a data center has counted, and the limit of every key."""

    def __init__(self, ceiling: int = 1000) -> None:
        self.ceiling = ceiling
        self.counts: dict[bytes, int] = {}

    def read(self, keys: Sequence[bytes]) -> list[KeyCounts]:
        return [
            KeyCounts(
                [7, self.counts[key]] if self.counts.get(key) else [],
                self.counts[key],
                self.ceiling,
            )
            for key in keys
        ]


def test_a_key_near_its_limit_is_sent_at_once_and_first() -> None:
    counts, spread = Counts(), CountDissemination()
    for key, count in ((b"far", 5), (b"near", 900), (b"half", 500)):
        counts.counts[key] = count
        spread.mark_changed(key, 0)

    assert [row[0] for row in spread.take_due(counts.read, 10, 0)] == [b"near", b"half"]


def test_a_small_change_is_sent_after_a_second() -> None:
    counts, spread = Counts(), CountDissemination()
    counts.counts[b"k"] = 5
    spread.mark_changed(b"k", 0)

    assert spread.take_due(counts.read, 10, 999 * MS) == []
    assert spread.take_due(counts.read, 10, 1000 * MS) == [(b"k", [7, 5], 0)]
    assert len(spread) == 0


def test_a_change_is_sent_at_once_from_a_hundredth_of_the_limit_or_above_four_fifths() -> None:
    def is_sent_at_once(count: int, acknowledged: int) -> bool:
        counts, spread = Counts(1000), CountDissemination()
        counts.counts[b"k"] = count
        spread.on_acknowledged(b"k", [7, acknowledged])
        spread.mark_changed(b"k", 0)
        return spread.take_due(counts.read, 10, 0) != []

    assert [is_sent_at_once(count, 500) for count in (509, 510)] == [False, True]
    assert [is_sent_at_once(count, count - 1) for count in (799, 800)] == [False, True]


def test_acknowledged_units_of_several_windows_count() -> None:
    spread = CountDissemination()
    spread.on_acknowledged(b"k", [5, 30, 6, 40, 7, 20])
    spread.mark_changed(b"k", 0)

    for last, is_sent in ((29, False), (30, True)):
        counts = [KeyCounts([6, 40, 7, last], 40 + last, 1000)]
        sent = spread.take_due(lambda keys, counts=counts: counts, 10, 0)
        assert sent == ([(b"k", [6, 40, 7, last], 0)] if is_sent else [])


def test_only_what_the_other_side_has_not_confirmed_weighs() -> None:
    counts, spread = Counts(), CountDissemination()
    counts.counts[b"k"] = 500
    spread.on_acknowledged(b"k", [7, 495])
    spread.mark_changed(b"k", 0)

    assert spread.take_due(counts.read, 10, 0) == []
    counts.counts[b"k"] = 505
    assert spread.take_due(counts.read, 10, 0) == [(b"k", [7, 505], 0)]


def test_a_round_is_bounded_and_the_rest_waits() -> None:
    counts, spread = Counts(), CountDissemination()
    for number in range(10):
        counts.counts[b"%d" % number] = 900 + number
        spread.mark_changed(b"%d" % number, 0)

    first = spread.take_due(counts.read, 4, 0)

    assert [row[0] for row in first] == [b"9", b"8", b"7", b"6"]
    assert len(spread) == 6


def test_unsent_keys_are_dropped_when_their_windows_expire() -> None:
    """limitador#295: what waited for the other side grew for as long as that was cut off."""
    spread, living = CountDissemination(), {b"9999"}

    for number in range(10_000):
        spread.mark_changed(b"%04d" % number, number)
    for _ in range(3):
        spread.drop_expired(lambda keys: [[7, 5] if key in living else [] for key in keys])

    counts = Counts()
    counts.counts[b"9999"] = 5
    assert spread.take_due(counts.read, 10, 10**10) == [(b"9999", [7, 5], 9999)]
    assert len(spread) == 0


def test_of_very_many_unsent_keys_4000_are_examined_at_a_time() -> None:
    spread = CountDissemination()
    for number in range(4001):
        spread.mark_changed(b"key%d" % number, number)
    examined: list[bytes] = []

    def read(keys: Sequence[bytes]) -> list[list[int]]:
        examined.extend(keys)
        return [[7, 1]] * len(keys)

    spread.drop_expired(read)
    assert examined == [b"key%d" % number for number in range(4000)]
    examined.clear()
    spread.drop_expired(read)

    assert examined[:2] == [b"key4000", b"key0"]


def test_what_waits_keeps_to_a_bound_and_the_oldest_goes() -> None:
    spread, counts = CountDissemination(most_keys=2), Counts()
    for number, key in enumerate((b"a", b"b", b"c")):
        counts.counts[key] = 900
        spread.mark_changed(key, number)

    assert [row[0] for row in spread.take_due(counts.read, 10, 0)] == [b"b", b"c"]


def test_lost_counts_are_resent_with_their_original_age() -> None:
    counts, spread = Counts(), CountDissemination()
    counts.counts[b"k"] = 1
    spread.mark_changed(b"k", 0)
    [(key, _, since)] = spread.take_due(counts.read, 10, 1000 * MS)
    spread.on_lost(key, since)

    assert spread.take_due(counts.read, 10, 1001 * MS) == [(b"k", [7, 1], 0)]


def test_keys_with_differing_digests_are_resent() -> None:
    counts, spread = Counts(), CountDissemination()
    counts.counts.update({b"a": 900, b"b": 900})
    for key in (b"a", b"b"):
        spread.on_acknowledged(key, [7, 900])
    spread.resend([b"a", b"unknown"], 0)

    assert [row[0] for row in spread.take_due(counts.read, 10, 0)] == [b"a"]
    spread.resend(None, 0)
    assert [row[0] for row in spread.take_due(counts.read, 10, 0)] == [b"b"]


def test_expired_windows_are_forgotten() -> None:
    spread = CountDissemination()
    spread.on_acknowledged(b"old", [6, 1])
    spread.on_acknowledged(b"new", [6, 1, 7, 1])
    spread.forget(lambda key, number: number < 7)

    assert list(spread.acknowledged()) == [b"new"]


def test_sums_are_the_same_in_every_release() -> None:
    """During an upgrade, data centers of two releases compare them."""
    assert f"{cells_sum(b'12345678k', [5, 20]):016x}" == "b3c46eead873d45d"


@given(st.dictionaries(st.binary(min_size=8, max_size=20), st.integers(0, 2**53), max_size=8))
def test_sums_do_not_depend_on_order_and_differ_for_different_counts(
    counts: dict[bytes, int],
) -> None:
    def total(items: list[tuple[bytes, int]]) -> int:
        return sum(cells_sum(key, [7, count]) for key, count in items) % 2**64

    items = list(counts.items())
    assert total(items) == total(items[::-1])
    if items:
        changed = [(items[0][0], items[0][1] + 1), *items[1:]]
        assert total(changed) != total(items)


@pytest.mark.parametrize(
    ("acknowledged", "cells", "is_due"),
    [
        ((), [7, 10], True),
        ((), [7, 9], False),
        ((7, 5), [7, 15], True),
        ((7, 5), [7, 14], False),
        ((6, 5), [6, 5, 7, 10], True),  # A window that the other side does not know yet.
        ((6, 5), [6, 5, 7, 9], False),
        ((6, 5), [6, 9, 7, 6], True),
        ((6, 5, 7, 1), [7, 11], True),  # The first window is over.
        ((6, 5, 7, 1), [7, 10], False),
    ],
)
def test_a_hundredth_of_the_limit_that_is_not_acknowledged_is_sent_at_once(
    acknowledged: tuple[int, ...], cells: list[int], *, is_due: bool
) -> None:
    spread = CountDissemination()
    spread.on_acknowledged(b"key", acknowledged)
    spread.mark_changed(b"key", 0)

    rows = spread.take_due(lambda keys: [KeyCounts(cells, 20, 1000)] * len(keys), 9, 1)

    assert rows == ([(b"key", cells, 0)] if is_due else [])


def test_the_counts_that_were_acknowledged_last_are_remembered() -> None:
    spread = CountDissemination(most_keys=2)
    for key in (b"a", b"b", b"a", b"c"):
        spread.on_acknowledged(key, [7, 1])

    assert spread.acknowledged() == {b"a": (7, 1), b"c": (7, 1)}
