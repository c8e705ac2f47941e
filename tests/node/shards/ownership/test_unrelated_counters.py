"""Counters of two members that have no unit in common: all units of both sides count."""

from itertools import pairwise

import pytest

from hashring import Member, Ring, shard_of
from node.shards.ownership.origins import UNKNOWN, ShardOrigins, is_blind_start
from ringfence.limiter import Algorithm, Limit
from ringfence.wire import MAX_ORIGINS
from tests.node.shards.ownership.ownership_host import DAY, KEY, NOW, Host


def transferred(*, is_received: bool) -> tuple[Host, Host]:
    """Return the sender and the receiver of a transfer of three units.

    The sender has taken the transfer back and admitted one more unit. The receiver has admitted two
    units.
    """
    sender, receiver = Host("a"), Host("b")
    sender.start(3)
    reply = receiver.ask(sender)
    if is_received:
        receiver.take(sender, reply)
    else:
        receiver.start()
    receiver.spend(2)
    sender.cover("b")
    sender.spend(1)
    return sender, receiver


def ring_of(*hosts: Host) -> Ring:
    return Ring.of([Member(host.name) for host in hosts])


RECEIVED = pytest.mark.parametrize("is_received", [False, True])


@RECEIVED
def test_units_of_a_transfer_count_once_whether_or_not_it_was_received(
    *, is_received: bool
) -> None:
    """The receiver's counters replaced those of a transfer that the receiver never had."""
    sender, receiver = transferred(is_received=is_received)

    sender.pull(receiver)

    assert sender.used == 6
    assert sender.covered_owner is None


@RECEIVED
@pytest.mark.parametrize("way", ["ab", "acb", "bca"])
def test_a_transfer_that_was_taken_back_counts_once_on_any_way(
    way: str, *, is_received: bool
) -> None:
    """The receiver added only the log, which lacks the units of the first transfer."""
    sender, receiver = transferred(is_received=is_received)
    hosts = {"a": sender, "b": receiver, "c": Host("c")}

    for before, after in pairwise(way):
        hosts[after].pull(hosts[before])

    assert hosts[way[-1]].used == 6


def test_counters_of_a_restarted_owner_are_added_to_those_of_its_replica() -> None:
    """The restarted owner's counters replaced the replica, whose units no other member had."""
    before, after, standby = Host("c"), Host("c"), Host("a")
    before.start(3)
    before.copy_to(standby)
    standby.cover("c")
    standby.spend(1)
    after.start(2)

    standby.pull(after)

    assert standby.used == 6


@pytest.mark.parametrize("units", [0, 4])
def test_a_third_members_unrelated_counters_reach_the_owner_with_the_log(units: int) -> None:
    """The third member's counters ended the cover, and the owner added its own units again."""
    owner, standby, third = Host("b"), Host("a"), Host("c")
    owner.start(3)
    owner.copy_to(standby)
    standby.cover("b")
    standby.spend(2)
    third.start()
    if units:
        third.spend(units)

    standby.pull(third)
    assert (standby.used, standby.covered_owner) == (5 + units, "b")
    owner.pull(standby)

    assert owner.used == 5 + units


@pytest.mark.parametrize("units", [0, 4])
@pytest.mark.parametrize("more", [0, 3])
def test_a_third_members_units_in_a_log_count_once_if_a_replica_of_the_log_returns(
    units: int, more: int
) -> None:
    """The owner had all units of the replica, but did not recognize those of the third member."""
    owner, standby, third, other = Host("b"), Host("a"), Host("c"), Host("d")
    third.start(units)
    standby.cover("b")
    standby.pull(third)
    standby.spend(1)
    standby.copy_to(other)
    owner.cover("a")
    owner.spend(2)
    reply = owner.ask(standby)
    owner.take(standby, reply)
    number = reply.groups[0].transfer_id
    standby.ownership.acknowledge(owner.name, [shard_of(KEY)], number, NOW)
    assert owner.used == 3 + units
    standby.take_over_from_replica_at(other, silent="b")
    if more:
        standby.spend(more)

    owner.pull(standby)

    assert owner.used == 3 + units + more


def test_counters_that_a_replica_came_from_are_not_from_before_a_restart() -> None:
    """The owner took the counters for those of its run before a restart.

    The reason was that the sender is now its standby, which the owner had not asked.
    """
    owner, standby, receiver = Host("b"), Host("a"), Host("c")
    owner.start()
    owner.ownership.unasked.add([shard_of(KEY)], {shard_of(KEY): (standby.name,)})
    owner.spend(3)
    owner.copy_to(standby)
    standby.cover("b")
    standby.spend(2)
    receiver.pull(standby)
    owner.ownership.unasked.on_ring_change(ring_of(owner, receiver))
    assert owner.ownership.unasked.is_to_ask(receiver.name, shard_of(KEY))

    owner.pull(receiver)

    assert owner.used == 5


def test_a_replica_of_a_nodes_own_counters_adds_nothing_to_them() -> None:
    owner, standby = Host("b"), Host("c")
    owner.start()
    owner.ownership.unasked.add([shard_of(KEY)], {})
    owner.spend(3)
    owner.copy_to(standby)
    owner.ownership.unasked.on_ring_change(ring_of(owner, standby))

    owner.ask_for_replica(standby)

    assert owner.used == 3


def test_origins_of_different_hosts_differ() -> None:
    hosts = [Host(name) for name in "ab"]
    for host in hosts:
        host.ownership.start([1])
        host.ownership.start([2])

    one, other = ({host.ownership.origins.of(shard) for shard in (1, 2)} for host in hosts)
    assert one.isdisjoint(other)


def test_each_start_of_a_shard_has_another_origin() -> None:
    origins = ShardOrigins(7)
    origins.start([1, 2])
    origins.start([3])
    assert origins.of(1) == origins.of(2) == origins.of(3) == (16,)

    origins.start([4, 2])
    origins.start([1])
    assert origins.of(4) == origins.of(2) == origins.of(1) == (20,)

    origins.start([1])
    assert origins.of(1) == (24,)


def test_a_start_in_place_of_an_owner_has_an_origin_of_its_own() -> None:
    origins = ShardOrigins(7)

    origins.start([1], is_blind=True)
    origins.start([2], is_blind=True)
    origins.start([3])

    assert [*map(origins.of, (1, 2, 3))] == [(14,), (14,), (16,)]
    assert [is_blind_start(number) for number in (14, 15, 16, 17)] == [True, False, False, False]


def test_counters_with_an_unknown_origin_may_have_any_units() -> None:
    origins = ShardOrigins(7)
    origins.start([1])
    assert origins.of(1) == (16,)
    assert origins.are_shared(1, (6, 8)) is False
    assert origins.are_shared(1, (6, 16))
    assert origins.are_shared(1, ()) is None
    assert origins.are_shared(1, UNKNOWN) is None
    assert origins.are_shared(1, (*UNKNOWN, 16))

    origins.add(1, (6, 8))
    assert origins.of(1) == (16, 6, 8)
    assert origins.have_all(1, (6, 16))
    assert not origins.have_all(1, (6, 10))
    assert not origins.have_all(1, ())
    origins.add(1, UNKNOWN)

    assert origins.are_shared(1, (10,)) is None
    assert origins.are_shared(1, (6,))
    assert not origins.have_all(1, UNKNOWN)


def test_more_origins_than_a_message_may_have_are_unknown() -> None:
    origins = ShardOrigins(1)
    origins.set([1], tuple(range(2, 2 * MAX_ORIGINS + 2, 2)))

    origins.add(1, (2 * MAX_ORIGINS + 2,))

    assert origins.of(1) == UNKNOWN


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("is_third", [False, True])
def test_units_of_an_earlier_window_end_as_early_as_before_the_merge(
    slots: int, *, is_third: bool
) -> None:
    """The units were also counted in the current window, which ends a whole period later."""
    window = Limit.of_ns(100, DAY, algorithm=Algorithm.SLIDING_WINDOW, slots=slots)
    one, other = Host("a", window), Host("b", window)
    for host, units in ((one, 20), (other, 10)):
        host.start()
        host.spend(units, at=NOW - DAY // slots)
        host.spend(3)
    if is_third:
        receiver = Host("c", window)
        receiver.pull(one)
        receiver.pull(other)
    else:
        receiver = one
        receiver.pull(other)

    counts = receiver.engine.snapshot([KEY], NOW).states[0][1:]
    assert counts[:2] == [6, 30]


def test_the_oldest_marks_make_room_for_further_origins() -> None:
    origins = ShardOrigins(1)
    origins.set([1], (2, 5, 3, *range(101, 101 + 2 * (MAX_ORIGINS - 3), 2)))

    origins.add(1, (4,))

    assert origins.of(1)[:2] == (2, 3)
    assert origins.of(1)[-1] == 4
    assert len(origins.of(1)) == MAX_ORIGINS


def test_marks_are_removed_some_minutes_after_the_last_change() -> None:
    origins = ShardOrigins(1)
    for shard in (1, 2):
        origins.set([shard], (2, 5))
        origins.touch(shard, shard)
    origins.touch(3, 3)
    first = origins.next_expiry
    assert 10**11 < first < 10**12

    origins.expire(first, ())
    assert origins.of(1) == (2, 5)
    origins.expire(first + 1, ())
    assert (origins.of(1), origins.of(2)) == ((2,), (2, 5))
    origins.expire(first + 10, [2])

    assert origins.of(2) == (2, 5)
    assert origins.next_expiry > first + 10
