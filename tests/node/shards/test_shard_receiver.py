"""Assembly of the parts of a shard, in order and only from one transfer."""

import pytest
from msgspec.structs import replace

from node.shards.transfers.shard_receiver import IncomingTransfer, transfers_of
from ringfence.limiter import Limit
from ringfence.wire import Counts, Holding, Pulled, ShardGroup

ONE, OTHER = Limit.of_ns(1, 10), Limit.of_ns(2, 10)
ABOUT = ShardGroup([3], [1], Holding.HELD, 3, "", "", "n2", 12)


def part(
    key: bytes,
    limit: Limit = ONE,
    *,
    about: ShardGroup = ABOUT,
    remote_counts: dict[str, list[int]] | None = None,
    tally: list[int] | None = None,
) -> Pulled:
    remote = [] if remote_counts is None else [remote_counts]
    counts = Counts([key], [[len(key)]], [limit], [0], remote)
    return Pulled(1, [about], counts, [] if tally is None else [tally])


def started(reply: Pulled) -> IncomingTransfer:
    [transfer] = transfers_of(reply)
    return transfer


def test_a_shard_is_complete_with_its_last_part() -> None:
    transfer = started(part(b"a", tally=[7, 1]))

    assert transfer.add(part(b"bb", OTHER, remote_counts={"eu": [1, 2]}))
    assert not transfer.is_whole
    assert transfer.add(part(b"ccc", remote_counts={"us": [3, 4]}, tally=[8, 2]))

    assert transfer.is_whole
    counts = transfer.counts
    assert counts.keys == [b"a", b"bb", b"ccc"]
    assert counts.states == [[1], [2], [3]]
    assert [counts.limits[which] for which in counts.which] == [ONE, OTHER, ONE]
    assert counts.remote_counts == [{}, {"eu": [1, 2]}, {"us": [3, 4]}]
    assert transfer.fallback_counts == [[7, 1], [], [8, 2]]


@pytest.mark.parametrize(
    "other",
    [
        replace(ABOUT, transfer_id=13),
        replace(ABOUT, shards=[4]),
        replace(ABOUT, parts=4),
        replace(ABOUT, hold=Holding.COPY),
        replace(ABOUT, hold=Holding.NOTHING, transfer_id=0, parts=1),
    ],
)
def test_a_part_of_another_transfer_is_rejected(other: ShardGroup) -> None:
    transfer = started(part(b"a"))

    assert not transfer.add(part(b"b", about=other))
    assert not transfer.add(Pulled(1, [], Counts([], [], [], [], []), []))

    assert transfer.next_part == 1
    assert transfer.counts.keys == [b"a"]


def test_shards_of_one_reply_are_independent() -> None:
    about = ShardGroup([3, 5, 6], [1, 0, 1], Holding.HELD, 2, "", "", "", 12)
    reply = Pulled(1, [about], Counts([b"a", b"b"], [[1], [2]], [ONE], [0, 0], []), [])
    first, empty, second = transfers_of(reply)

    assert first.add(part(b"c", OTHER, about=replace(about, shards=[3], sizes=[1])))
    assert second.add(part(b"d", OTHER, about=replace(about, shards=[6], sizes=[1])))

    assert (first.counts.keys, first.counts.which) == ([b"a", b"c"], [0, 1])
    assert (second.counts.keys, second.counts.limits) == ([b"b", b"d"], [ONE, OTHER])
    assert empty.counts.keys == []


def test_shards_that_were_not_requested_are_skipped() -> None:
    about = ShardGroup([3, 5, 6], [1, 0, 1], Holding.HELD, 1, "", "", "", 12)
    reply = Pulled(1, [about], Counts([b"a", b"b"], [[1], [2]], [ONE], [0, 0], []), [])

    [transfer] = transfers_of(reply, {6})

    assert (transfer.shard, transfer.counts.keys, transfer.counts.states) == (6, [b"b"], [[2]])
