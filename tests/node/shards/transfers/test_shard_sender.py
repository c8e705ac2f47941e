"""Answers of a node that is asked for its shards: transfers, repeats, and other receivers."""

from collections.abc import Callable
from typing import cast

import pytest

from hashring import NodeId, shard_of
from node.requests.sessions.caller import Caller
from ringfence.wire import Holding, LeaseRequest, Pull, Pulled, ReplicaRequest, ShardGroup
from tests.node.shards.transfer_peers import (
    KEYS,
    NOW,
    OTHER_KEYS,
    SHARD,
    A,
    B,
    C,
    Peer,
    keys_of_shards,
)

S = 10**9
OTHER = shard_of(OTHER_KEYS[0])


def asked(
    peer: Peer,
    requester: NodeId,
    *shards: int,
    now: int = NOW,
    part: int = 0,
    transfer_id: int = 0,
    replicas: ReplicaRequest = ReplicaRequest.NONE,
    is_standby_for: Callable[[int], bool] = lambda shard: False,
) -> Pulled:
    pull = Pull(1, [*shards], part, transfer_id, replicas)
    return peer.sender.answer(requester, pull, now, is_standby_for)


def summary(reply: Pulled) -> list[tuple[list[int], Holding, str]]:
    return [(group.shards, group.hold, group.moved_to) for group in reply.groups]


def number_of(reply: Pulled) -> int:
    [group] = reply.groups
    return group.transfer_id


def owner(*shards: int) -> Peer:
    """Return a node that holds shards without counters, and has an index of its keys."""
    peer = Peer(A)
    peer.ownership.start(shards)
    peer.sender.index.start()
    return peer


def test_shards_without_counters_are_sent_as_one_group_and_again_to_the_same_receiver() -> None:
    peer = owner(1, 2, 3)

    first = asked(peer, B, 1, 2)
    second = asked(peer, B, 2, 1, 3)

    assert summary(first) == [([1, 2], Holding.HELD, "")]
    assert [(group.shards, group.hold) for group in second.groups] == [
        ([1, 2], Holding.HELD),
        ([3], Holding.HELD),
    ]
    repeated, new = second.groups
    assert repeated.transfer_id == number_of(first)
    assert new.transfer_id != number_of(first)
    assert peer.ownership.count == 0


@pytest.mark.parametrize("is_lent_there", [False, True])
def test_shards_without_counters_are_one_group_beside_a_key_of_which_units_are_lent(
    *, is_lent_there: bool
) -> None:
    peer = owner(1, 2, SHARD, OTHER)
    lent = KEYS[0] if is_lent_there else OTHER_KEYS[0]
    client = cast(Caller, "client")
    assert peer.lender.lend(client, LeaseRequest(1, lent, 100, [], []), NOW).units == 100

    reply = asked(peer, B, 1, SHARD, 2)

    groups = [group.shards for group in reply.groups]
    assert groups == ([[1, 2], [SHARD]] if is_lent_there else [[1, 2, SHARD]])
    assert reply.counts.unpack().keys == ([lent] if is_lent_there else [])
    assert peer.lender.lent_units(lent) == (0 if is_lent_there else 100)


@pytest.mark.parametrize("has_counters", [False, True])
@pytest.mark.parametrize(("later_ns", "is_sent"), [(S - 1, False), (S, True)])
def test_a_second_receiver_waits_for_a_second_after_the_last_request_of_the_first(
    *, has_counters: bool, later_ns: int, is_sent: bool
) -> None:
    peer = owner(SHARD)
    if has_counters:
        peer.spend(KEYS[0])
        peer.sender.index.start()
        peer.sender.index.add(KEYS[:1])
    first = asked(peer, B, SHARD)
    again = asked(peer, B, SHARD, now=NOW + S)

    reply = asked(peer, C, SHARD, now=NOW + S + later_ns)

    assert number_of(again) == number_of(first)
    if is_sent:
        assert summary(reply) == [([SHARD], Holding.HELD, "")]
        assert number_of(reply) == number_of(first)
    else:
        assert summary(reply) == [([SHARD], Holding.NOTHING, "b")]


def test_an_acknowledged_transfer_is_not_sent_again() -> None:
    peer = owner(1, 2)
    number = number_of(asked(peer, B, 1, 2))
    peer.ownership.acknowledge(B, [1], number, NOW)

    assert summary(asked(peer, C, 1, now=NOW + S)) == [([1], Holding.NOTHING, "b")]
    assert summary(asked(peer, B, 1, now=NOW + S)) == [([1], Holding.NOTHING, "")]
    assert summary(asked(peer, B, 2, now=NOW + S)) == [([2], Holding.HELD, "")]


def test_transferred_counters_are_forgotten_and_not_replicated_any_more() -> None:
    peer = owner(SHARD, OTHER)
    for key in (*KEYS[:2], OTHER_KEYS[0]):
        peer.spend(key)

    reply = asked(peer, B, SHARD)

    assert sorted(reply.counts.unpack().keys) == sorted(KEYS[:2])
    assert peer.used(*KEYS[:2], OTHER_KEYS[0]) == [0, 0, 1]
    # An empty state would replace the replica at the standby.
    assert [*peer.ownership.changed.keys] == [OTHER_KEYS[0]]


def test_keys_that_were_counted_after_the_index_are_transferred() -> None:
    peer = owner(SHARD, OTHER)
    peer.sender.index.start()
    peer.sender.index.add(KEYS[:1])
    for key in (*KEYS[:3], OTHER_KEYS[0]):
        peer.spend(key)
    peer.sender.index.add(KEYS[1:2])
    peer.ownership.changed.keys.pop(KEYS[1])

    reply = asked(peer, B, SHARD)

    assert sorted(reply.counts.unpack().keys) == sorted(KEYS[:3])
    assert asked(peer, B, OTHER).counts.unpack().keys == [OTHER_KEYS[0]]


def test_the_sender_keeps_a_replica_of_a_shard_whose_standby_it_is() -> None:
    peer = owner(SHARD, OTHER)
    for key in (KEYS[0], OTHER_KEYS[0]):
        peer.spend(key)

    asked(peer, B, SHARD, OTHER, is_standby_for=lambda shard: shard == OTHER)

    assert peer.ownership.replicas.shards() == [OTHER]
    assert peer.ownership.replicas.sender_of(OTHER) == B


def test_a_node_serves_while_it_has_an_index_or_sends_a_replica_in_parts() -> None:
    peer = Peer(A, least_parts=2)
    assert (peer.sender.index.is_used, peer.sender.is_serving) == (False, False)
    peer.sender.index.start()
    assert (peer.sender.index.is_used, peer.sender.is_serving) == (True, True)
    peer.sender.index.drop()
    assert (peer.sender.index.is_used, peer.sender.is_serving) == (False, False)

    replica_from_b(peer)
    asked(peer, C, SHARD, replicas=ReplicaRequest.IF_NOT_HELD)
    assert (peer.sender.index.is_used, peer.sender.is_serving) == (False, True)


def replica_from_b(peer: Peer) -> None:
    """Store a replica of two keys that `b` has sent."""
    there = Peer(B)
    there.ownership.start([SHARD])
    for key in KEYS[:2]:
        there.spend(key)
    peer.ownership.keep_replica(B, there.ownership.snapshot(KEYS[:2], NOW), NOW)


@pytest.mark.parametrize(
    ("requester", "replicas", "hold"),
    [
        (B, ReplicaRequest.NONE, Holding.NOTHING),
        (B, ReplicaRequest.ONLY, Holding.COPY),
        (C, ReplicaRequest.ONLY, Holding.NOTHING),
        (B, ReplicaRequest.IF_NOT_HELD, Holding.COPY),
        (C, ReplicaRequest.IF_NOT_HELD, Holding.COPY),
    ],
)
def test_a_replica_is_sent_to_members_that_request_it(
    requester: NodeId, replicas: ReplicaRequest, hold: Holding
) -> None:
    peer = owner()
    replica_from_b(peer)

    reply = asked(peer, requester, SHARD, 5, replicas=replicas)

    found = {shard: group for group in reply.groups for shard in group.shards}
    assert (found[SHARD].hold, found[5].hold) == (hold, Holding.NOTHING)
    assert found[SHARD].taken_from == ("b" if hold is Holding.COPY else "")
    assert len(reply.counts.unpack().keys) == (2 if hold is Holding.COPY else 0)


def test_held_shards_are_kept_when_only_replicas_are_requested() -> None:
    peer = owner(SHARD)
    peer.spend(KEYS[0])

    assert asked(peer, B, SHARD, replicas=ReplicaRequest.ONLY).groups in (
        [],
        [ShardGroup([SHARD], [0], Holding.NOTHING, 1, "", "", "", 0)],
    )

    assert peer.ownership.count == 1


def test_a_later_part_needs_the_number_and_the_receiver_of_the_first() -> None:
    peer = Peer(A, least_parts=2)
    peer.ownership.start([SHARD])
    for key in KEYS[:2]:
        peer.spend(key)
    peer.sender.index.start()
    peer.sender.index.add(KEYS[:2])
    first = asked(peer, B, SHARD)
    [group] = first.groups
    assert group.parts == 2

    def second(requester: NodeId, number: int, part: int = 1) -> int:
        reply = asked(peer, requester, SHARD, part=part, transfer_id=number)
        return len(reply.counts.unpack().keys)

    assert second(B, group.transfer_id) == 1
    assert second(C, group.transfer_id) == 0
    assert second(B, group.transfer_id + 1) == 0
    assert second(B, group.transfer_id, part=2) == 0


@pytest.mark.parametrize(("keys_of_10th", "keys"), [(70, 700), (69, 699 + 70)])
def test_an_answer_gets_no_more_shards_from_700_keys_on(keys_of_10th: int, keys: int) -> None:
    peer = owner()
    groups = [some[:70] for some in keys_of_shards(12, 70)]
    groups[9] = groups[9][:keys_of_10th]
    all_keys = [key for some in groups for key in some]
    peer.ownership.start(dict.fromkeys(map(shard_of, all_keys)))
    peer.engine.charge(all_keys, [1] * len(all_keys), [0] * len(all_keys), NOW)
    peer.sender.index.start()
    peer.sender.index.add(all_keys)

    reply = asked(peer, B, *[shard_of(some[0]) for some in groups])

    assert reply.counts.count == keys
