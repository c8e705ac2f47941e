"""Transfers and replicas in parts that a member stores until they are acknowledged or too old."""

import pytest
from msgspec.structs import replace

from hashring import NodeId
from node.shards.transfers.unacknowledged_transfers import (
    NOTHING,
    OutgoingTransfer,
    OutgoingTransfers,
    Part,
    Reply,
    SentCopies,
    SentCopy,
    add_decided,
    add_unused,
    cut,
    size_of,
)
from ringfence.limiter import NS_PER_SECOND, Limit, PackedSnapshot, Snapshot
from ringfence.wire import DecidedCheck, Holding

B, C = NodeId("b"), NodeId("c")
T = 100 * NS_PER_SECOND
COUNTS = PackedSnapshot.of(
    Snapshot([b"12345678k"], [[1, 2, 3]], [Limit.of_ns(1, 1)], [0], [{"eu": [1, 2]}])
)
PART = Part(COUNTS, [[7, 1]])
TO_B = OutgoingTransfer(B, T, 5, [PART], "")
CHECK = DecidedCheck((1, 2, 0), b"12345678k", 1, 4 * NS_PER_SECOND, (0,) * 8)


def stored(transfer: OutgoingTransfer = TO_B, *shards: int) -> OutgoingTransfers:
    transfers = OutgoingTransfers()
    transfers.add(shards or [1, 2], transfer)
    return transfers


def test_the_receiver_acknowledges_a_transfer_by_its_number() -> None:
    transfers = stored()

    assert transfers.confirm([1], C, 5) == transfers.confirm([1], B, 6) == []
    assert transfers.unconfirmed() == [(1, B), (2, B)]
    assert transfers.confirm([1, 3], B, 5) == [1]

    assert [transfers.is_unconfirmed(shard) for shard in (1, 2, 3)] == [False, True, False]
    assert transfers.unconfirmed_among([2, 1]) == [2]
    assert not transfers.are_confirmed
    assert transfers.receivers_of([1, 2, 3]) == {1: B, 2: B}
    acknowledged = transfers.get(1)
    assert acknowledged is not None
    assert (acknowledged.parts, acknowledged.at, acknowledged.number) == ([], T, 5)
    transfers.confirm([2], B, 5)
    assert transfers.are_confirmed
    assert transfers.unconfirmed_among([1, 2]) == []


def test_an_unacknowledged_transfer_is_kept_for_90_seconds_after_the_last_request() -> None:
    transfers = stored()
    transfers.set_receiver([2], TO_B, C, T + NS_PER_SECOND)
    end = T + 90 * NS_PER_SECOND

    assert transfers.expire(end) == []
    assert transfers.expire(end + 1) == [1]
    assert transfers.unconfirmed() == [(2, C)]
    assert transfers.next_expiry == end + NS_PER_SECOND
    assert transfers.expire(end + NS_PER_SECOND) == []
    assert transfers.expire(end + NS_PER_SECOND + 1) == [2]
    assert transfers.are_confirmed


def test_the_receiver_of_an_acknowledged_transfer_is_known_for_15_seconds() -> None:
    transfers = stored()
    transfers.confirm([1, 2], B, 5)
    end = T + 15 * NS_PER_SECOND

    assert transfers.expire(end) == []
    assert transfers.receivers_of([1, 2]) == {1: B, 2: B}
    assert transfers.expire(end + 1) == [1, 2]
    assert transfers.receivers_of([1, 2]) == {}
    assert transfers.get(1) is None


def test_checks_go_to_the_receiver_for_three_seconds() -> None:
    transfers = stored()

    assert transfers.moved_to(1, T + 3 * NS_PER_SECOND - 1) == B
    assert transfers.moved_to(1, T + 3 * NS_PER_SECOND) is None
    assert transfers.moved_to(9, T) is None


def test_a_transfer_of_a_shard_that_is_held_again_is_forgotten() -> None:
    transfers = stored()

    transfers.drop([1, 9])

    assert transfers.unconfirmed() == [(2, B)]


def test_the_log_of_a_covered_shard_is_complete_since_its_oldest_check() -> None:
    covering = replace(TO_B, taken_from="a", parts=[replace(PART, decided=[CHECK])])

    assert TO_B.logged_since == T
    assert covering.logged_since == T - 4 * NS_PER_SECOND
    assert replace(covering, parts=[PART]).logged_since == T
    assert replace(TO_B, asked_at=T + 1).last_request_at == T + 1
    assert replace(TO_B, asked_at=T - 1).last_request_at == T


def test_a_reply_groups_shards_that_differ_only_in_their_counters() -> None:
    reply = Reply()
    empty = replace(TO_B, parts=[NOTHING], number=6)
    reply.add_transfer([4], TO_B, 0)
    reply.add_transfer([2], TO_B, 0)
    reply.add_transfer([9], empty, 0)
    reply.add_nothing([3], "c")
    reply.add_nothing([], "c")
    reply.add_copy(7, SentCopy(8, [PART, PART], "", "a", T, (11,)), 1)

    pulled = reply.pulled(1)

    assert [
        (group.shards, group.sizes, group.hold, group.parts, group.transfer_id, group.moved_to)
        for group in pulled.groups
    ] == [
        ([2, 4], [1, 1], Holding.HELD, 1, 5, ""),
        ([9], [0], Holding.HELD, 1, 6, ""),
        ([3], [0], Holding.NOTHING, 1, 0, "c"),
        ([7], [1], Holding.COPY, 2, 8, ""),
    ]
    assert (pulled.groups[3].taken_from, pulled.groups[3].origins) == ("a", (11,))
    assert pulled.counts.unpack().keys == [b"12345678k"] * 3
    assert pulled.fallback_counts == [[7, 1]] * 3
    assert (reply.keys, reply.shards) == (3, 3)


def test_the_size_of_a_reply_includes_keys_numbers_logs_and_checks() -> None:
    plain, logged, decided = (
        Part(PART.counts),
        PART,
        Part(PART.counts, decided=[CHECK]),
    )
    sizes = []
    for part in (plain, logged, decided):
        reply = Reply()
        reply.add_transfer([1], replace(TO_B, parts=[part]), 0)
        sizes.append(reply.size)

    assert sizes == [
        size_of(PART.counts),
        size_of(PART.counts) + 2 * 9,
        size_of(PART.counts) + 120 + len(CHECK.key),
    ]
    assert size_of(COUNTS) == len(COUNTS.rows) + 64 + (64 + 4 * 2 + 2 * 9)


def test_a_replica_in_parts_is_kept_for_five_seconds_after_the_last_request() -> None:
    copies = SentCopies()
    copies.add(B, 1, SentCopy(7, [], "", "", asked_at=T))
    copies.add(B, 2, SentCopy(8, [], "", "", asked_at=T))
    later = T + 5 * NS_PER_SECOND

    copies.expire(later)
    assert copies.get(B, 1, 7, now=later) is not None
    assert copies.get(B, 1, 8, now=later) is None
    copies.expire(later + 1)

    assert copies.get(B, 2, 8, now=later) is None
    assert len(copies) == 1


def test_at_most_64_replicas_in_parts_are_kept() -> None:
    copies = SentCopies()
    for shard in range(65):
        copies.add(B, shard, SentCopy(1, [], "", "", asked_at=0))

    assert len(copies) == 64
    assert copies.get(B, 0, 1, now=0) is None


# Parts


def counters(keys: int, numbers: int = 3) -> PackedSnapshot:
    names = [b"12345678%05d" % number for number in range(keys)]
    states = [[2**63 + at for at in range(numbers)] for _ in names]
    return PackedSnapshot.of(Snapshot(names, states, [Limit.of_ns(1, 1)], [0] * keys, []))


@pytest.mark.parametrize(
    ("keys", "numbers", "least", "sizes"),
    [
        (0, 3, 1, [0]),
        (0, 3, 3, [0]),
        (1, 3, 1, [1]),
        (1, 3, 3, [0, 0, 1]),
        (1, 15_000, 1, [1]),  # One key is never divided.
        (2, 3, 1, [2]),
        (2, 3, 2, [1, 1]),
        (2, 3, 3, [0, 1, 1]),
        (2, 5000, 1, [1, 1]),
        (3, 3, 1, [3]),
        (3, 3, 2, [1, 2]),
        (5, 3, 4, [1, 1, 1, 2]),
        (2000, 1, 1, [2000]),
        (2001, 1, 1, [1000, 1001]),
    ],
)
def test_counters_are_divided_into_parts_that_fit_into_messages(
    keys: int, numbers: int, least: int, sizes: list[int]
) -> None:
    counts = counters(keys, numbers)
    rows = [[number, 1] if keys < 9 else [] for number in range(keys)]

    parts = cut(counts, rows, least)

    assert [part.counts.count for part in parts] == sizes
    assert [row for part in parts for row in part.fallback_counts] == rows
    assert [key for part in parts for key in part.counts.unpack().keys] == counts.unpack().keys


@pytest.mark.parametrize("rows", [6000, 7500])
def test_the_log_of_a_shard_fills_its_parts_too(rows: int) -> None:
    """A number takes at most 9 bytes, and a part has at most 64,000 bytes."""
    parts = cut(counters(2), [[1] * (rows // 2)] * 2)

    assert len(parts) == 1 + (rows > 7000)


@pytest.mark.parametrize(
    ("checks", "counts"),
    [(0, [0, 0]), (700, [700, 0]), (701, [700, 1]), (2101, [700, 700, 700, 1])],
)
def test_a_part_has_at_most_700_decided_checks(checks: int, counts: list[int]) -> None:
    parts = [Part(COUNTS), Part(COUNTS)]
    decided = [replace(CHECK, id=(1, number, 0)) for number in range(checks)]

    add_decided(parts, decided)

    assert [len(part.decided) for part in parts] == counts
    assert [check for part in parts for check in part.decided] == decided


def test_keys_without_a_counter_are_added_once_in_their_unused_state() -> None:
    counts = COUNTS.unpack()

    add_unused(counts, [b"12345678k", b"12345678x", b"12345678y"])

    assert counts.keys == [b"12345678k", b"12345678x", b"12345678y"]
    assert counts.states == [[1, 2, 3], [], []]
    assert counts.remote_counts == [{"eu": [1, 2]}, {}, {}]
    before = len(counts.limits)
    add_unused(counts, [b"12345678x"])
    assert (len(counts.keys), len(counts.limits)) == (3, before)
