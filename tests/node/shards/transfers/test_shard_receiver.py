"""Assembly of the parts of a shard, in order and only from one transfer."""

from collections.abc import Callable
from typing import cast

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from hashring import NodeId
from node.metrics.counters import Counters
from node.shards.shard_steps import ShardSteps
from node.shards.transfers.shard_receiver import IncomingTransfer, ShardReceiver, transfers_of
from ringfence.limiter import Limit, PackedSnapshot, Snapshot
from ringfence.peering.link import Link
from ringfence.wire import Holding, Message, Ping, Pong, Pull, Pulled, ShardGroup, TransferAck

ONE, OTHER = Limit.of_ns(1, 10), Limit.of_ns(2, 10)
ABOUT = ShardGroup([3], [1], Holding.HELD, 3, "", "", "n2", 12)


def packed(
    keys: list[bytes],
    states: list[list[int]],
    limit: Limit = ONE,
    remote: list[dict[str, list[int]]] | None = None,
) -> PackedSnapshot:
    limits = [limit] if keys else []
    return PackedSnapshot.of(Snapshot(keys, states, limits, [0] * len(keys), remote or []))


def part(
    key: bytes,
    limit: Limit = ONE,
    *,
    about: ShardGroup = ABOUT,
    remote_counts: dict[str, list[int]] | None = None,
    tally: list[int] | None = None,
) -> Pulled:
    remote = [] if remote_counts is None else [remote_counts]
    counts = packed([key], [[len(key)]], limit, remote)
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
    assert not transfer.add(Pulled(1, [], packed([], []), []))

    assert transfer.next_part == 1
    assert transfer.counts.keys == [b"a"]


def test_shards_of_one_reply_are_independent() -> None:
    about = ShardGroup([3, 5, 6], [1, 0, 1], Holding.HELD, 2, "", "", "", 12)
    reply = Pulled(1, [about], packed([b"a", b"b"], [[1], [2]]), [])
    first, empty, second = transfers_of(reply)

    assert first.add(part(b"c", OTHER, about=replace(about, shards=[3], sizes=[1])))
    assert second.add(part(b"d", OTHER, about=replace(about, shards=[6], sizes=[1])))

    assert (first.counts.keys, first.counts.which) == ([b"a", b"c"], [0, 1])
    assert (second.counts.keys, second.counts.limits) == ([b"b", b"d"], [ONE, OTHER])
    assert empty.counts.keys == []


def test_shards_that_were_not_requested_are_skipped() -> None:
    about = ShardGroup([3, 5, 6], [1, 0, 1], Holding.HELD, 1, "", "", "", 12)
    reply = Pulled(1, [about], packed([b"a", b"b"], [[1], [2]]), [])

    [transfer] = transfers_of(reply, {6})

    assert (transfer.shard, transfer.counts.keys, transfer.counts.states) == (6, [b"b"], [[2]])


class Sender:
    """Link to a member that sends the missing parts of a transfer, unless one is lost."""

    def __init__(self, parts: dict[int, Pulled]) -> None:
        self.parts = parts
        self.acknowledged: list[tuple[int, list[int]]] = []

    def call(
        self,
        make: Callable[[int], Message],
        on_reply: Callable[[object], None],
        timeout: float | None = None,
    ) -> None:
        match make(1):
            case Pull(_, [shard], part):
                assert part == 1
                on_reply(self.parts.get(shard))
            case TransferAck(_, shards, transfer_id):
                self.acknowledged.append((transfer_id, [*shards]))


async def test_whole_shards_of_a_reply_are_taken_before_the_parts_of_others_are_requested(
    autojump_clock: MockClock,
) -> None:
    groups = [
        replace(ABOUT, shards=[shard], sizes=[1], parts=parts, transfer_id=shard)
        for shard, parts in ((1, 1), (2, 2), (3, 1), (4, 2), (5, 2))
    ]
    counts = packed([b"a", b"b", b"c", b"d", b"e"], [[1]] * 5)
    sender = Sender({shard: part(b"x", about=groups[shard - 1]) for shard in (2, 4)})
    taken: list[int] = []

    def take(name: NodeId, transfer: IncomingTransfer) -> bool:
        assert (name, transfer.is_whole) == ("b", True)
        taken.append(transfer.shard)
        return transfer.shard != 3

    counters = Counters()
    receiver = ShardReceiver(counters, lambda name: cast(Link, sender), ShardSteps())
    broken = await receiver.receive(
        NodeId("b"), Pulled(1, groups, counts, []), {1, 2, 3, 4, 5}, take
    )

    assert taken == [1, 3, 2, 4]
    assert sender.acknowledged == [(1, [1]), (2, [2]), (4, [4])]
    assert broken == [5]
    assert await receiver.receive(NodeId("b"), Pulled(1, groups, counts, []), set(), take) == []


async def test_shards_with_counters_are_taken_before_the_many_others_of_a_reply() -> None:
    shards = [*range(100)]
    group = replace(ABOUT, shards=shards, sizes=[0] * 99 + [1], parts=1)
    sender, taken = Sender({}), list[int]()

    def take(name: NodeId, transfer: IncomingTransfer) -> bool:
        taken.append(transfer.shard)
        return True

    receiver = ShardReceiver(Counters(), lambda name: cast(Link, sender), ShardSteps())
    reply = Pulled(1, [group], packed([b"a"], [[1]]), [])

    assert await receiver.receive(NodeId("b"), reply, {*shards}, take) == []
    assert taken == [99, *range(99)]
    assert sender.acknowledged == [(12, shards)]


class Slow:
    """Link to a member that answers pings for a time, and a request for shards later."""

    def __init__(self, nursery: trio.Nursery, alive_s: float, answers_after_s: float) -> None:
        self._nursery = nursery
        self._alive_until = trio.current_time() + alive_s
        self._answers_after_s = answers_after_s

    def call(
        self,
        make: Callable[[int], Message],
        on_reply: Callable[[object], None],
        timeout: float = 2.0,
    ) -> None:
        self._nursery.start_soon(self._answer, make(1), on_reply, timeout)

    async def _answer(
        self, message: Message, on_reply: Callable[[object], None], within: float
    ) -> None:
        if isinstance(message, Ping) and trio.current_time() < self._alive_until:
            on_reply(Pong(1))
        else:
            await trio.sleep(min(within, self._answers_after_s))
            is_answer = isinstance(message, Pull) and self._answers_after_s < within
            on_reply(part(b"a") if is_answer else None)


@pytest.mark.parametrize(
    ("alive_s", "answers_after_s", "waits_s", "is_answered"),
    [
        (0, 1.9, 1.9, True),
        (0, 2.1, 2, False),
        (100, 7.5, 7.5, True),
        (100, 30, 20, False),
        (5.5, 7.5, 7.5, True),
        (5.5, 8.5, 8, False),
    ],
)
async def test_a_member_that_answers_pings_has_more_time_for_a_request(
    autojump_clock: MockClock,
    alive_s: float,
    answers_after_s: float,
    waits_s: float,
    *,
    is_answered: bool,
) -> None:
    async with trio.open_nursery() as nursery:
        link = Slow(nursery, alive_s, answers_after_s)
        receiver = ShardReceiver(Counters(), lambda name: cast(Link, link), ShardSteps())
        reply = await receiver.pull(NodeId("b"), [3])
        waited_s = trio.current_time()
        nursery.cancel_scope.cancel()

    assert (reply is not None) is is_answered
    assert waited_s == pytest.approx(waits_s)
