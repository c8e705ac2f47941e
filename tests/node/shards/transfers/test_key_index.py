"""The index of keys by shard, which a node needs while it sends shards."""

import pytest
import trio

from hashring import SHARDS, Ring, shard_of
from ringfence.wire import Pull
from tests.node.shards.transfer_peers import RULE, A, B, Peer, keys_of_shards, ring

RING = ring(A, B)
BY_SHARD = {shard_of(keys[0]): keys for keys in keys_of_shards(20, 3)}
OURS = [shard for shard in BY_SHARD if RING.owner(shard) == A]
"""Shards that the ring assigns to this node."""
THEIRS = [shard for shard in BY_SHARD if RING.owner(shard) == B]


def peer_with_counters() -> Peer:
    """Return `a`, which has counters of its own shards and of shards of `b`."""
    peer = Peer(A)
    for keys in BY_SHARD.values():
        peer.fill(*keys, hits=1)
    peer.handoff.on_ring_change(Ring.of(()), RING, RING)
    return peer


async def pulled(peer: Peer, *shards: int) -> set[bytes]:
    """Return the keys in the answer to `b`."""
    reply = await peer.handoff.answer(B, Pull(1, [*shards], 0))
    return {*reply.counts.unpack().keys}


async def test_the_first_index_has_only_the_shards_of_other_members() -> None:
    peer = peer_with_counters()

    assert await pulled(peer, THEIRS[0]) == {*BY_SHARD[THEIRS[0]]}

    assert peer.sender.index.has(THEIRS)
    assert not any(peer.sender.index.has([shard]) for shard in OURS)


@pytest.mark.parametrize("are_together", [False, True])
async def test_shards_of_this_node_are_sent_with_all_keys_to_a_member_with_another_ring(
    *, are_together: bool
) -> None:
    peer = peer_with_counters()
    asked = [[THEIRS[0]], [OURS[0]], [OURS[1], THEIRS[1]]]
    answers: dict[int, set[bytes]] = {}

    async def pull(at: int) -> None:
        answers[at] = await pulled(peer, *asked[at])

    async with trio.open_nursery() as nursery:
        for at in range(len(asked)):
            nursery.start_soon(pull, at)
            if not are_together:
                await trio.testing.wait_all_tasks_blocked()

    for at, shards in enumerate(asked):
        assert answers[at] == {key for shard in shards for key in BY_SHARD[shard]}
    assert peer.sender.index.has(range(SHARDS))  # The next such request needs no search.


async def test_an_index_that_is_being_built_is_not_dropped() -> None:
    """Building an index may take longer than an index is kept."""
    peer = Peer(A)
    keys = [RULE.to_bytes(8, "big") + b"%d" % number for number in range(2500)]
    peer.fill(*keys, hits=1)
    index, ours = peer.sender.index, bytes(SHARDS)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(index.prepare, [0], ours)
        while not index.has([0]):
            await trio.lowlevel.checkpoint()
        index.drop()
        assert index.has([0])

    assert sorted(key for shard in range(SHARDS) for key in index.take(shard)) == sorted(keys)
    index.drop()
    assert not index.is_used


async def test_shards_that_arrive_while_a_request_waits_for_its_turn_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = peer_with_counters()
    shards = sorted({*range(SHARDS)}.difference(BY_SHARD))[:1000]

    async def turn() -> None:
        peer.ownership.start(shards[:1])
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(peer.ownership.steps, "turn", turn)
    reply = await peer.handoff.answer(B, Pull(1, shards, 0))

    assert [group.shards for group in reply.groups if group.transfer_id] == [shards[:1]]
