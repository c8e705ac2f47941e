"""Selection of the counts that are sent to another data center next."""

from collections.abc import Sequence

import pytest

from gossip.cross_dc.count_dissemination import CountDissemination, KeyCounts
from hashring import shard_of

MS = 1_000_000


class Counts:
    """Counts of a data center, with the same limit for all keys."""

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


def due(spread: CountDissemination, counts: Counts, most: int, now: int) -> list[bytes]:
    return [row.key for row in spread.take_due(counts.read, most, now)]


def rows(
    spread: CountDissemination, counts: Counts, now: int
) -> list[tuple[bytes, list[int], int]]:
    return [(row.key, row.cells, row.since) for row in spread.take_due(counts.read, 10, now)]


def test_a_key_near_its_limit_is_sent_at_once_and_first() -> None:
    counts, spread = Counts(), CountDissemination(shard_of)
    for key, count in ((b"far", 5), (b"near", 900), (b"half", 500)):
        counts.counts[key] = count
        spread.mark_changed(key, 0)

    assert due(spread, counts, 10, 0) == [b"near", b"half"]


def test_a_small_change_is_sent_after_a_second() -> None:
    counts, spread = Counts(), CountDissemination(shard_of)
    counts.counts[b"k"] = 5
    spread.mark_changed(b"k", 0)

    assert spread.take_due(counts.read, 10, 999 * MS) == []
    assert rows(spread, counts, 1000 * MS) == [(b"k", [7, 5], 0)]
    assert len(spread) == 0


def test_a_change_is_sent_at_once_from_a_hundredth_of_the_limit_or_above_four_fifths() -> None:
    def is_sent_at_once(count: int, acknowledged: int) -> bool:
        counts, spread = Counts(1000), CountDissemination(shard_of)
        counts.counts[b"k"] = count
        spread.on_acknowledged(b"k", [7, acknowledged])
        spread.mark_changed(b"k", 0)
        return spread.take_due(counts.read, 10, 0) != []

    assert [is_sent_at_once(count, 500) for count in (509, 510)] == [False, True]
    assert [is_sent_at_once(count, count - 1) for count in (799, 800)] == [False, True]


def test_acknowledged_units_of_several_windows_count() -> None:
    spread = CountDissemination(shard_of)
    spread.on_acknowledged(b"k", [5, 30, 6, 40, 7, 20])

    for last, is_sent in ((29, False), (30, True)):
        spread.mark_changed(b"k", 0)
        counts = [KeyCounts([6, 40, 7, last], 40 + last, 1000)]
        sent = spread.take_due(lambda keys, counts=counts: counts, 10, 0)
        assert [row.cells for row in sent] == ([[6, 40, 7, last]] if is_sent else [])


def test_only_unacknowledged_units_count() -> None:
    counts, spread = Counts(), CountDissemination(shard_of)
    counts.counts[b"k"] = 500
    spread.on_acknowledged(b"k", [7, 495])
    spread.mark_changed(b"k", 0)

    assert spread.take_due(counts.read, 10, 0) == []
    counts.counts[b"k"] = 505
    spread.mark_changed(b"k", 0)
    assert rows(spread, counts, 0) == [(b"k", [7, 505], 0)]


def test_a_round_is_bounded_and_the_rest_waits() -> None:
    counts, spread = Counts(), CountDissemination(shard_of)
    for number in range(10):
        counts.counts[b"%d" % number] = 900 + number
        spread.mark_changed(b"%d" % number, 0)

    assert due(spread, counts, 4, 0) == [b"9", b"8", b"7", b"6"]
    assert len(spread) == 6


def test_a_round_examines_the_10000_keys_that_have_waited_longest_200_at_a_step() -> None:
    spread, examined = CountDissemination(shard_of), list[Sequence[bytes]]()
    keys = [b"key%05d" % number for number in range(10_500)]
    for number, key in enumerate(keys):
        spread.mark_changed(key, number)

    def read(some: Sequence[bytes]) -> list[KeyCounts]:
        examined.append(some)
        return [KeyCounts([7, 900], 900, 1000)] * len(some)

    found = [row.key for some in spread.find_due(read, 0) for row in some]

    assert found == keys[:10_000]
    assert {len(some) for some in examined} == {200}
    assert len(spread) == 500


def test_a_key_near_its_limit_does_not_wait_for_others() -> None:
    spread = CountDissemination(shard_of)
    for number in range(9_999):
        spread.mark_changed(b"old%d" % number, 0)
    for number in range(10_001):
        spread.mark_changed(b"new%d" % number, 900 * MS)
    spread.mark_changed(b"near", 900 * MS, is_near=True)

    def read(some: Sequence[bytes]) -> list[KeyCounts]:
        return [KeyCounts([7, 1], 900 if key == b"near" else 1, 1000) for key in some]

    for now in (900 * MS, 1000 * MS):
        found = {row.key for row in spread.take_due(read, 20_000, now)}
        assert (b"near" in found) == (now == 900 * MS)
    assert len(found) == 5_000
    assert all(key.startswith(b"old") for key in found)


def test_a_lost_key_is_examined_after_waiting_keys() -> None:
    spread, examined = CountDissemination(shard_of), list[bytes]()

    def read(some: Sequence[bytes]) -> list[KeyCounts]:
        examined.extend(some)
        return [KeyCounts([7, 100], 100, 1000)] * len(some)

    spread.mark_changed(b"lost", 0)
    for row in spread.take_due(read, 10, 0):
        spread.mark_changed(b"waits", 1)
        spread.on_lost(row.key, row.since)
    spread.take_due(read, 10, 2)

    assert examined == [b"lost", b"waits", b"lost"]


@pytest.mark.parametrize(("used", "first"), [(799, b"other"), (800, b"key")])
def test_a_key_that_did_not_fit_into_a_round_is_first_if_it_is_near(
    used: int, first: bytes
) -> None:
    spread, examined = CountDissemination(shard_of), list[bytes]()

    def read(some: Sequence[bytes]) -> list[KeyCounts]:
        examined.extend(some)
        return [KeyCounts([7, used], used, 1000)] * len(some)

    spread.mark_changed(b"key", 0)
    found = [due for some in spread.find_due(read, 0) for due in some]
    spread.mark_changed(b"other", 0)
    assert spread.nearest(found, 0) == []
    spread.take_due(read, 10, 0)

    assert examined[1] == first


def test_keys_beyond_a_bound_are_examined_after_a_second() -> None:
    spread, examined = CountDissemination(shard_of), list[bytes]()
    for number in range(100_001):
        spread.mark_changed(b"%06d" % number, 0)

    def read(some: Sequence[bytes]) -> list[KeyCounts]:
        examined.extend(some)
        return [KeyCounts([7, 1], 1, 1000)] * len(some)

    for _ in range(11):
        assert spread.take_due(read, 10, 0) == []
    assert len(examined) == 100_000
    for _ in range(21):
        spread.take_due(read, 20_000, 1000 * MS)
    assert len(spread) == 0


def test_a_waiting_key_is_read_again_after_a_change_or_a_second() -> None:
    spread, reads = CountDissemination(shard_of), list[int]()

    def read(some: Sequence[bytes]) -> list[KeyCounts]:
        reads.append(now)
        return [KeyCounts([7, 1], 1, 1000)] * len(some)

    spread.mark_changed(b"key", 0)
    for now in range(0, 1100, 100):
        if now == 300:
            spread.mark_changed(b"key", now * MS)
        if now == 500:
            spread.on_received(b"key")
            spread.on_received(b"other")
        spread.take_due(read, 10, now * MS)

    assert reads == [0, 300, 500, 1000]


def test_a_change_between_two_steps_of_a_round_is_sent_later() -> None:
    counts, spread = Counts(), CountDissemination(shard_of)
    for number in range(300):
        counts.counts[b"%d" % number] = 900
        spread.mark_changed(b"%d" % number, 0)

    steps = spread.find_due(counts.read, 0)
    first = next(steps)
    counts.counts[b"0"] = 901
    spread.mark_changed(b"0", 5)
    sent = spread.nearest([*first, *(row for some in steps for row in some)], 400)

    assert [row.cells for row in sent if row.key == b"0"] == [[7, 900]]
    assert rows(spread, counts, 6) == [(b"0", [7, 901], 5)]


def test_unsent_keys_are_dropped_when_their_windows_expire() -> None:
    """limitador#295: the queue for an unreachable peer grew without bound."""
    spread, active = CountDissemination(shard_of), {b"9999"}

    for number in range(10_000):
        spread.mark_changed(b"%04d" % number, number)
    for _ in range(51):
        spread.drop_expired(lambda keys: [[7, 5] if key in active else [] for key in keys])

    counts = Counts()
    counts.counts[b"9999"] = 5
    assert rows(spread, counts, 10**10) == [(b"9999", [7, 5], 9999)]
    assert len(spread) == 0


def test_unsent_keys_are_examined_in_steps_of_200() -> None:
    spread = CountDissemination(shard_of)
    for number in range(201):
        spread.mark_changed(b"key%d" % number, number)
    examined: list[bytes] = []

    def read(keys: Sequence[bytes]) -> list[list[int]]:
        examined.extend(keys)
        return [[7, 1]] * len(keys)

    spread.drop_expired(read)
    assert examined == [b"key%d" % number for number in range(200)]
    examined.clear()
    spread.drop_expired(read)

    assert examined[:2] == [b"key200", b"key0"]


def test_waiting_keys_are_bounded_and_the_oldest_is_dropped() -> None:
    spread, counts = CountDissemination(shard_of, most_keys=2), Counts()
    for number, key in enumerate((b"a", b"b", b"c")):
        counts.counts[key] = 900
        spread.mark_changed(key, number)

    assert due(spread, counts, 10, 0) == [b"b", b"c"]


def test_lost_counts_are_resent_with_their_original_age() -> None:
    counts, spread = Counts(), CountDissemination(shard_of)
    counts.counts[b"k"] = 1
    spread.mark_changed(b"k", 0)
    [(key, _, since)] = rows(spread, counts, 1000 * MS)
    spread.on_lost(key, since)

    assert rows(spread, counts, 1001 * MS) == [(b"k", [7, 1], 0)]


def test_keys_with_differing_digests_are_resent() -> None:
    counts, spread = Counts(), CountDissemination(shard_of)
    counts.counts.update({b"a": 900, b"b": 900})
    for key in (b"a", b"b"):
        spread.on_acknowledged(key, [7, 900])
    spread.resend([shard_of(b"a"), shard_of(b"unknown")], 0)
    assert len(spread) == 1

    assert due(spread, counts, 10, 0) == [b"a"]
    spread.resend(None, 0)
    assert due(spread, counts, 10, 0) == [b"b"]


def test_lost_keys_wait_while_many_keys_have_changed() -> None:
    counts, spread = Counts(), CountDissemination(shard_of)
    for number in range(300):
        spread.on_acknowledged(b"lost%d" % number, [7, 900])
        counts.counts[b"lost%d" % number] = 900
    for number in range(10_000):
        counts.counts[b"%d" % number] = 900
        spread.mark_changed(b"%d" % number, 0)
    spread.resend(None, 0)
    assert len(spread) == 10_300

    for some in (due(spread, counts, 20_000, 0) for _ in range(2)):
        assert some
    assert len(spread) == 0


@pytest.mark.parametrize(
    ("acknowledged", "cells", "is_due"),
    [
        ((), [7, 10], True),
        ((), [7, 9], False),
        ((7, 5), [7, 15], True),
        ((7, 5), [7, 14], False),
        ((6, 5), [6, 5, 7, 10], True),  # The other side does not have this window yet.
        ((6, 5), [6, 5, 7, 9], False),
        ((6, 5), [6, 9, 7, 6], True),
        ((6, 5, 7, 1), [7, 11], True),  # The first window has ended.
        ((6, 5, 7, 1), [7, 10], False),
    ],
)
def test_a_hundredth_of_the_limit_that_is_not_acknowledged_is_sent_at_once(
    acknowledged: tuple[int, ...], cells: list[int], *, is_due: bool
) -> None:
    spread = CountDissemination(shard_of)
    spread.on_acknowledged(b"key", acknowledged)
    spread.mark_changed(b"key", 0)

    sent = spread.take_due(lambda keys: [KeyCounts(cells, 20, 1000)] * len(keys), 9, 1)

    assert [(row.key, row.cells, row.since) for row in sent] == [(b"key", cells, 0)] * is_due


def test_the_counts_that_were_acknowledged_last_are_remembered() -> None:
    spread = CountDissemination(shard_of, most_keys=2)
    for key in (b"a", b"b", b"a", b"c"):
        spread.on_acknowledged(key, [7, 1])

    assert [spread.acknowledged.get(key) for key in (b"a", b"b", b"c")] == [(7, 1), (), (7, 1)]
    assert len(spread.acknowledged) == 2
