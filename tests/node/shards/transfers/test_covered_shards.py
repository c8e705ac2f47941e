"""Answers of a node that covers shards: those that have nothing to send are in a few groups."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from hashring import NodeId, shard_of
from node.shards.transfers.shard_receiver import transfers_of
from ringfence.wire import Holding, Pull, Pulled, ReplicaRequest, ShardGroup
from tests.node.shards.ownership.ownership_host import KEY, Host
from tests.node.shards.transfer_peers import (
    DAY,
    KEYS,
    NOW,
    OTHER_KEYS,
    SHARD,
    A,
    B,
    C,
    Peer,
    Peers,
    ring,
)

S = 10**9
OTHER = shard_of(OTHER_KEYS[0])
MANY = range(128)
D = NodeId("d")


def asked(peer: Peer, requester: NodeId, *shards: int, now: int = NOW) -> Pulled:
    pull = Pull(1, sorted(shards), 0, 0, ReplicaRequest.IF_NOT_HELD)
    return peer.sender.answer(requester, pull, now, lambda shard: False)


def about(reply: Pulled) -> list[tuple[list[int], str, str]]:
    assert {(group.hold, group.parts) for group in reply.groups} <= {(Holding.HELD, 1)}
    return [(group.shards, group.taken_from, group.replica_at) for group in reply.groups]


def node() -> Peer:
    """Return a node that covers a shard of `d`, and has an index of its keys."""
    peer = Peer(B)
    peer.ownership.take_over_blind([16_000], D, NOW, [])
    peer.sender.index.start()
    return peer


def accept(peer: Peer, sender: NodeId, reply: Pulled) -> None:
    for each in transfers_of(reply):
        peer.ownership.accept(
            *(each.shard, each.about, sender, each.counts, each.fallback_counts, NOW, each.decided)
        )


def test_shards_without_counters_are_one_group_while_others_are_covered() -> None:
    peer = node()
    peer.ownership.start(MANY)

    reply = asked(peer, A, *MANY)

    assert about(reply) == [([*MANY], "", "")]
    [group] = reply.groups
    assert {*peer.ownership.origins.of(0), *group.marks} == {*group.origins}
    assert peer.ownership.count == 1
    assert [*peer.ownership.transfers.unconfirmed_among(MANY)] == [*MANY]


@pytest.mark.parametrize("requester", [A, C])
def test_covered_shards_without_counters_are_one_group(requester: NodeId) -> None:
    peer = node()
    peer.ownership.take_over_blind(MANY, A, NOW, [C])
    [cover_mark] = {peer.ownership.covers[shard].mark for shard in MANY}

    reply = asked(peer, requester, *MANY)

    assert about(reply) == [([*MANY], "a", "c")]
    [group] = reply.groups
    assert group.origins == (cover_mark, group.marks[0])
    assert group.marks[1:] == (cover_mark,)
    assert [*peer.ownership.covers] == [16_000]


def test_shards_whose_covers_differ_are_in_different_groups() -> None:
    peer = node()
    peer.ownership.start([0])
    peer.ownership.take_over_blind([1, 2], A, NOW, [C])
    peer.ownership.take_over_blind([3], A, NOW, [D])
    peer.ownership.take_over_blind([4], C, NOW, [])
    peer.ownership.take_over_blind([5, 6, 7], A, NOW, [C])
    peer.ownership.covers[5].is_owner_restarted = True
    peer.ownership.covers[6].copied_at = NOW
    peer.ownership.covers[7].marks = {71}

    reply = asked(peer, A, *range(8))

    groups = sorted((group.shards, group.taken_from, group.replica_at) for group in reply.groups)
    assert groups == [
        ([0], "", ""),
        ([1, 2, 6], "a", "c"),
        ([3], "a", "d"),
        ([4], "c", "c"),
        ([5], "a", "c"),
        ([7], "a", "c"),
    ]
    by_shard = {shard: group for group in reply.groups for shard in group.shards}
    assert [shard for shard, group in by_shard.items() if group.is_from_before] == [5]
    assert by_shard[7].marks == (*by_shard[1].marks, 71)
    copied = {shard: peer.ownership.transfers.get(shard) for shard in (1, 6)}
    assert {shard: each and each.copied_at for shard, each in copied.items()} == {1: None, 6: NOW}


def test_an_answer_has_at_most_16_groups_and_16_single_shards() -> None:
    peer = node()
    peer.ownership.take_over_blind(MANY, A, NOW, [])
    for shard in MANY:
        peer.ownership.covers[shard].marks = {2 * shard + 1}

    counts, left = [], {*MANY}
    while left:
        reply = asked(peer, A, *left)
        counts.append(len(reply.groups))
        left.difference_update(*[group.shards for group in reply.groups])

    assert counts == [16 + 16] * 4


def test_an_answer_has_at_most_128_grouped_shards() -> None:
    peer = node()
    peer.ownership.take_over_blind(range(300), A, NOW, [])

    counts, left = [], {*range(300)}
    while left:
        reply = asked(peer, A, *sorted(left))
        counts.append([len(group.shards) for group in reply.groups])
        left.difference_update(*[group.shards for group in reply.groups])

    assert counts == [[128], [128], [44]]


def log_refund(host: Host) -> None:
    host.ownership.covers[shard_of(KEY)].log.add_refunded(KEY, 3, DAY, host.now)


def log_released_slot(host: Host) -> None:
    host.ownership.covers[shard_of(KEY)].log.release(KEY, 7, 1)


def find_duplicate(host: Host) -> None:
    host.ownership.covers[shard_of(KEY)].duplicates = {KEY: 2}


def deny(host: Host) -> None:
    host.spend(2000, check_id=(9, 1, 0))


def recover(host: Host) -> None:
    host.ownership.regained[shard_of(KEY)] = {KEY: 5}


@pytest.mark.parametrize(
    ("give", "is_covered"),
    [
        (log_refund, True),
        (log_released_slot, True),
        (find_duplicate, True),
        (deny, True),
        (deny, False),
        (recover, False),
    ],
)
def test_a_shard_with_other_data_than_counters_is_sent_with_this_data(
    give: Callable[[Host], None], *, is_covered: bool
) -> None:
    shard, host = shard_of(KEY), Host("b")
    host.ownership.take_over_blind([1, 2], A, host.now, [])
    if is_covered:
        host.cover("a")
    else:
        host.start()
    give(host)
    host.sender.index.start()

    pull = Pull(1, [1, 2, shard], 0)
    reply = host.sender.answer(A, pull, host.now, lambda shard: False)

    [group] = [each for each in reply.groups if shard in each.shards]
    transfer = host.ownership.transfers.get(shard)
    assert sorted(shard for each in reply.groups for shard in each.shards) == [1, 2, shard]
    assert transfer is not None
    assert [row[::2] for row in reply.fallback_counts] == (
        [[0, 1, 3]] if give is log_refund else [[7]] if give is log_released_slot else []
    )
    assert transfer.duplicates == ({KEY: 2} if give is find_duplicate else None)
    assert [check.id for check in reply.decided] == ([(9, 1, 0)] if give is deny else [])
    # The receiver is the owner of recovered units: other members have them, too.
    assert (group.taken_from, len(group.marks)) == (
        (A, 2) if is_covered or give is recover else ("", 1)
    )


def test_shards_with_counters_of_a_covered_owner_are_sent_as_before() -> None:
    peer = node()
    peer.ownership.take_over_blind([1, 2, SHARD, OTHER], A, NOW, [C])
    peer.spend(KEYS[0], units=3)
    peer.spend(OTHER_KEYS[0], units=4)

    reply = asked(peer, A, 1, 2, SHARD, OTHER)
    owner = Peer(A)
    accept(owner, B, reply)

    assert sorted(shard for group in reply.groups for shard in group.shards) == sorted(
        [1, 2, SHARD, OTHER]
    )
    assert [row[1::2] for row in reply.fallback_counts] in ([[3], [4]], [[4], [3]])
    assert owner.used(KEYS[0], OTHER_KEYS[0]) == [3, 4]
    assert {cover.owner for cover in owner.ownership.covers.values()} == {A}


def test_groups_are_sent_again_with_the_data_of_each_until_they_are_acknowledged() -> None:
    peer = node()
    peer.ownership.start([0])
    peer.ownership.take_over_blind([1, 2], A, NOW, [C])
    peer.ownership.take_over_blind([3], C, NOW, [])
    first = asked(peer, A, 0, 1, 2, 3)
    [number] = {group.transfer_id for group in first.groups}

    assert sorted(asked(peer, A, 0, 1, 2, 3).groups, key=_first) == sorted(first.groups, key=_first)
    peer.ownership.acknowledge(A, [0, 1], number, NOW)
    again = asked(peer, A, 0, 1, 2, 3)
    other = asked(peer, D, 2, 3, now=NOW + 2 * S)

    held = [group for group in again.groups if group.hold is Holding.HELD]
    assert sorted((group.shards, group.taken_from) for group in held) == [([2], "a"), ([3], "c")]
    assert sorted((each.shards, each.taken_from) for each in other.groups) == [
        ([2], "a"),
        ([3], "c"),
    ]


def _first(group: ShardGroup) -> int:
    return group.shards[0]


def test_a_covered_shard_of_a_group_is_taken_back_with_its_owner_and_marks() -> None:
    peer = node()
    peer.ownership.take_over_blind([1, 2], A, NOW, [C])
    [group] = asked(peer, C, 1, 2).groups

    peer.ownership.take_over(1, A, [], NOW + S)

    cover = peer.ownership.covers[1]
    assert (cover.owner, cover.sent_to, cover.sent_at) == (A, (C, group.transfer_id), NOW)
    assert (cover.sent_mark, cover.marks) == (group.marks[0], {*group.marks[1:]})
    assert peer.ownership.is_blind(1)
    assert cover.to_ask == (C,)


def test_charges_of_earlier_checks_of_a_shard_are_recorded_as_transferred() -> None:
    host = Host("b")
    host.ownership.take_over_blind([1], A, host.now, [])
    host.start()
    host.spend(3, check_id=(9, 1, 0))
    host.ownership.release(shard_of(KEY), host.now)
    host.now += 1
    host.ownership.take_over_blind([shard_of(KEY)], A, host.now, [])
    host.engine.forget([KEY])
    del host.ownership.changed.keys[KEY]
    host.sender.index.start()

    pull = Pull(1, [shard_of(KEY)], 0)
    reply = host.sender.answer(A, pull, host.now, lambda shard: False)

    assert (len(reply.groups), reply.decided) == (1, [])
    assert host.checks.of_shard(shard_of(KEY), 0, host.now) == []


def test_marks_of_a_shard_are_kept_after_it_was_sent_without_counters() -> None:
    peer = node()
    third = Peer(C)
    third.ownership.take_over_blind([1], A, NOW, [])
    third.sender.index.start()
    accept(peer, C, asked(third, B, 1))
    [*origins] = peer.ownership.origins.of(1)
    assert any(number % 2 for number in origins)

    asked(peer, A, 1, now=NOW + 100 * S)
    peer.ownership.origins.expire(NOW + 200 * S, peer.ownership.covers)

    assert peer.ownership.origins.of(1) == tuple(origins)


async def test_thousands_of_covered_shards_return_to_their_owner_in_one_answer_per_pull(
    autojump_clock: MockClock,
) -> None:
    shards = range(2048)
    async with trio.open_nursery() as nursery:
        peers = Peers(nursery)
        owner, standby = peers.add(A), peers.add(B)
        standby.ownership.take_over_blind(shards, A, NOW, [])
        owner.handoff.on_ring_change(ring(B), ring(A), ring(A))
        standby.handoff.on_ring_change(ring(B), ring(A), ring(A))
        await owner.handoff.wait_all_fetched()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()

    pulls = [each for to, each in peers.said if to == B and isinstance(each, Pull)]
    assert {*shards} <= {*peers.acknowledged()}
    assert standby.ownership.is_empty
    assert not standby.ownership.covers
    assert len([each for each in pulls if not {*shards}.isdisjoint(each.shards)]) <= 2 * 8
