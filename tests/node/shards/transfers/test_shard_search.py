"""Search of a node for shards that it lacks: which members it asks, and when it starts them."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pytest

from hashring import Member, NodeId, Ring, shard_of
from node.metrics.counters import Counters
from node.shards.transfers.shard_receiver import ShardReceiver
from node.shards.transfers.shard_search import ShardSearch
from node.shards.transfers.shard_sources import ShardSources
from ringfence.limiter import Algorithm, Limit, PackedSnapshot
from ringfence.wire import Holding, Pulled, ReplicaRequest, ShardGroup
from tests.node.shards.ownership.ownership_host import KEY, NOW, Host

SHARD = shard_of(KEY)
SECOND = 1_000_000_000
_Answer: TypeAlias = Callable[[NodeId], ShardGroup | Pulled | None]


class _SlowReceiver(ShardReceiver):
    """Requests to a member that applies a transfer just after it has answered that it has
    nothing."""

    def __init__(self, host: Host, other: Host, transfer: Pulled) -> None:
        super().__init__(Counters(), lambda name: None, host.ownership.steps)
        self._host = host
        self._other = other
        self._transfer = transfer
        self.pulls = 0

    async def pull(
        self,
        name: NodeId,
        shards: Sequence[int],
        part: int = 0,
        transfer_id: int = 0,
        *,
        replicas: ReplicaRequest,
    ) -> Pulled | None:
        assert (name, [*shards]) == (self._other.name, [SHARD])
        self.pulls += 1
        answer = self._host.ask(self._other)
        if self.pulls == 1:
            self._other.take(self._host, self._transfer)
            number = self._transfer.groups[0].transfer_id
            self._host.ownership.acknowledge(name, [SHARD], number, NOW)
        return answer


@pytest.mark.trio
async def test_a_receiver_that_acknowledges_during_a_search_is_asked_again() -> None:
    """The node started the shard without counters, and counted those of its transfer twice."""
    host, other = Host("a"), Host("b")
    host.start(3)
    receiver = _SlowReceiver(host, other, other.ask(host))
    sources, ring = ShardSources(host.name), Ring.of([Member(host.name)])
    sources.on_ring_change(Ring.of([Member(other.name)]), ring, ring, host.ownership.held)

    await ShardSearch(
        *(host.name, host.ownership, sources, receiver, lambda: NOW),
        *(lambda shards: None, [SHARD], None),
    ).run()

    assert receiver.pulls == 2
    assert host.used == 3
    assert host.started == [SHARD]


class _AnsweringReceiver(ShardReceiver):
    """Requests that members answer by a function of their name; None is silence. A group alone is
    an answer without counters."""

    def __init__(self, host: Host, answer: _Answer) -> None:
        super().__init__(Counters(), lambda name: None, host.ownership.steps)
        self.asked: list[NodeId] = []
        self._answer = answer

    async def pull(
        self,
        name: NodeId,
        shards: Sequence[int],
        part: int = 0,
        transfer_id: int = 0,
        *,
        replicas: ReplicaRequest,
    ) -> Pulled | None:
        self.asked.append(name)
        found = self._answer(name)
        if isinstance(found, ShardGroup):
            return Pulled(1, [found], PackedSnapshot(b"", 0, [], []), [])
        return found


@pytest.mark.trio
@pytest.mark.parametrize(
    ("first", "has_sent", "sources", "asked"),
    [
        (None, False, "", ""),
        (None, False, "cd", "cd"),
        (None, True, "cd", "bcd"),
        (None, True, "cb", "bc"),
        ("d", False, "cd", "dc"),
        ("d", True, "c", "dbc"),
        ("b", True, "", "b"),
    ],
)
async def test_a_search_asks_each_member_once_the_likeliest_holder_first(
    first: str | None, sources: str, asked: str, *, has_sent: bool
) -> None:
    """The likeliest is a given member, then the receiver of this node's own transfer."""
    host, other = Host("a"), Host("b")
    host.start(3)
    if has_sent:
        other.ask(host)
    known, receiver = ShardSources(host.name), _AnsweringReceiver(host, lambda _: None)
    known.by_shard[SHARD] = tuple(map(NodeId, sources))

    await ShardSearch(
        *(host.name, host.ownership, known, receiver, lambda: NOW),
        *(lambda shards: None, [SHARD], None if first is None else NodeId(first)),
    ).run()

    assert receiver.asked == [*asked]


async def search(host: Host, names: str, answer: _Answer) -> list[NodeId]:
    """Search for a shard that this node owns; return the members that were asked."""
    sources, ring = ShardSources(host.name), Ring.of([Member(host.name)])
    sources.on_ring_change(Ring.of([Member(NodeId("z"))]), ring, ring, host.ownership.held)
    sources.by_shard[SHARD] = tuple(map(NodeId, names))
    receiver, found = _AnsweringReceiver(host, answer), list[int]()
    await ShardSearch(
        *(host.name, host.ownership, sources, receiver, lambda: host.now),
        *(found.extend, [SHARD], None),
    ).run()
    assert found == [SHARD]
    return receiver.asked


@pytest.mark.trio
@pytest.mark.parametrize(
    ("moves", "asked"),
    [
        ({}, "bc"),
        ({"b": "d"}, "bdc"),
        ({"b": "d", "d": "e"}, "bdec"),
        ({"b": "a"}, "bc"),  # This node itself.
        ({"b": "d", "d": "b"}, "bdbdc"),  # The search follows three transfers.
    ],
)
async def test_a_search_follows_a_shard_that_was_transferred_on(
    moves: dict[str, str], asked: str
) -> None:
    host = Host("a")

    def answer(name: NodeId) -> ShardGroup:
        return ShardGroup([SHARD], [0], Holding.NOTHING, 1, moves.get(name, ""), "", "", 0)

    names = await search(host, "bc", answer)

    assert "".join(names) == asked
    assert host.started == [SHARD]


@pytest.mark.trio
@pytest.mark.parametrize(("taken_from", "covered"), [("", None), ("x", "x")])
async def test_a_shard_without_counters_is_accepted_from_its_owner(
    taken_from: str, covered: str | None
) -> None:
    host = Host("a")

    def answer(name: NodeId) -> ShardGroup:
        return ShardGroup([SHARD], [0], Holding.HELD, 1, "", "", taken_from, 9)

    assert await search(host, "bc", answer) == ["b"]

    assert host.holds
    assert host.covered_owner == covered
    assert host.started == []
    assert host.counters.as_dict()["shards_pulled"] == 1


@pytest.mark.trio
async def test_a_bucket_regains_units_while_the_search_goes_on() -> None:
    """The node denied checks for as long as its search had waited for a silent member."""
    limit = Limit.of_ns(10, 10 * SECOND, Algorithm.TOKEN_BUCKET)
    owner, standby, host = Host("c", limit), Host("b", limit), Host("a", limit)
    owner.start(5)
    owner.copy_to(standby)

    def answer(name: NodeId) -> Pulled | None:
        if name == standby.name:
            return host.ask(standby)
        host.now += 3 * SECOND
        return None

    assert await search(host, "bc", answer) == ["b", "c"]

    assert (host.covered_owner, host.used) == ("c", 2)
