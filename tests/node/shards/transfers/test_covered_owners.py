"""Answers of the owner of a covered shard, which a node asks when the ring assigns it the shard."""

import pytest
import trio
from trio.testing import MockClock

from hashring import NodeId
from ringfence.wire import Pull, TransferAck
from tests.node.shards.transfer_peers import KEYS, NOW, SHARD, A, B, C, Peer, Peers, ring

KEY = KEYS[0]


async def settle(peers: Peers, node: Peer) -> None:
    """Assign all shards to a node, and wait until it has asked the other members."""
    node.handoff.on_ring_change(ring(A, node.name), ring(node.name), ring(node.name))
    await trio.sleep(5)
    peers.nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("replica_of", "used", "asked"),
    [
        (None, 2, [A]),  # The owner has nothing.
        (B, 2 + 3, [A]),
        (C, 2 + 3, [A, C]),  # Member `c` may still hold the shard.
    ],
)
async def test_a_node_continues_from_a_replica_that_the_owner_has(
    autojump_clock: MockClock, replica_of: NodeId | None, used: int, asked: list[NodeId]
) -> None:
    async with trio.open_nursery() as nursery:
        peers = Peers(nursery)
        owner, node, third = peers.add(A), peers.add(B), peers.add(C)
        if replica_of is not None:
            former = Peer(replica_of)
            former.fill(KEY, hits=3)
            counts, origins = former.ownership.snapshot([KEY], NOW), former.ownership.origins
            owner.ownership.keep_replica(replica_of, counts, NOW, origins.of_keys([KEY]))
        node.ownership.take_over(SHARD, A, [], NOW)
        for _ in range(2):
            node.spend(KEY)
        await settle(peers, node)

    assert (node.used(KEY), third.used(KEY)) == ([used], [0])
    assert SHARD not in node.ownership.covers
    pulls = [to for to, message in peers.said if isinstance(message, Pull)]
    assert [to for to in dict.fromkeys(pulls) if to in asked] == asked


@pytest.mark.parametrize("holder", [A, C])
async def test_a_node_gets_the_counters_from_their_present_holder(
    autojump_clock: MockClock, holder: NodeId
) -> None:
    async with trio.open_nursery() as nursery:
        peers = Peers(nursery)
        owner, node, third = peers.add(A), peers.add(B), peers.add(C)
        owner.fill(KEY, hits=3)
        if holder == C:
            reply = owner.give(C)
            [group] = reply.groups
            third.ownership.accept(SHARD, group, A, reply.counts.unpack(), [], NOW)
            owner.handoff.on_acknowledged(C, [SHARD], group.transfer_id)
        node.ownership.take_over(SHARD, A, [], NOW)
        for _ in range(2):
            node.spend(KEY)
        await settle(peers, node)

    assert node.used(KEY) == [5]
    assert SHARD not in node.ownership.covers
    acknowledged = [to for to, message in peers.said if isinstance(message, TransferAck)]
    assert holder in acknowledged
    assert owner.used(KEY) == third.used(KEY) == [0]
