"""Checks that two members decided, because a client asked a second member: each counts once."""

import pytest

from hashring import shard_of
from ringfence.limiter import Algorithm, Limit
from tests.node.shards.ownership.ownership_host import DAY, KEY, NOW, Host

CHECK = (7, 1, 0)
"""Identity of the check that two members decide."""
REFUND = (7, 2, 0)
"""Identity of the refund of that check."""
BEGIN, EARLIER, LATER = NOW - 3_000_000, NOW - 2_000_000, NOW - 1_000_000
ORDERS = pytest.mark.parametrize(("first", "second"), [(EARLIER, LATER), (LATER, EARLIER)])


def covered_by(count: int) -> tuple[Host, list[Host]]:
    """Return an owner with three units, and members that hold its shard from a replica."""
    owner, covers = Host("c"), [Host(name) for name in "ab"[:count]]
    owner.start()
    owner.spend(3, at=BEGIN)
    for host in covers:
        owner.copy_to(host)
        host.cover("c", at=BEGIN)
    return owner, covers


def move(sender: Host, receiver: Host) -> None:
    """Transfer the shard from one member to another, with an acknowledgement."""
    reply = receiver.ask(sender)
    receiver.take(sender, reply)
    [group] = reply.groups
    sender.ownership.acknowledge(receiver.name, group.shards, group.transfer_id, NOW)


@ORDERS
def test_a_check_of_the_owner_and_its_standby_counts_once(first: int, second: int) -> None:
    owner, [standby] = covered_by(1)
    owner.spend(2, at=first, check_id=CHECK)
    standby.spend(2, at=second, check_id=CHECK)
    standby.spend(5)

    standby.pull(owner)

    assert standby.used == 10


@ORDERS
def test_a_check_of_two_standbys_counts_once_at_the_owner(first: int, second: int) -> None:
    owner, [one, other] = covered_by(2)
    one.spend(2, at=first, check_id=CHECK)
    other.spend(2, at=second, check_id=CHECK)
    other.spend(5)

    one.pull(other)
    assert one.used == 10
    owner.pull(one)

    assert owner.used == 10


@ORDERS
def test_a_check_of_two_members_without_a_replica_counts_once(first: int, second: int) -> None:
    restarted, standby = Host("c"), Host("a")
    for host in (restarted, standby):
        host.cover("c", at=BEGIN)
    standby.spend(2, at=first, check_id=CHECK)
    restarted.spend(2, at=second, check_id=CHECK)

    restarted.pull(standby)

    assert restarted.used == 2


@ORDERS
def test_a_check_of_two_owners_counts_once(first: int, second: int) -> None:
    one, other = Host("a"), Host("b")
    for host, at in ((one, first), (other, second)):
        host.start()
        host.spend(2, at=at, check_id=CHECK)
    other.spend(5)

    one.pull(other)

    assert one.used == 7


@pytest.mark.parametrize("units", [0, 1])
@pytest.mark.parametrize("is_carried", [False, True])
def test_a_check_and_its_refund_at_two_members_leave_the_other_units(
    units: int, *, is_carried: bool
) -> None:
    """The second charge was removed first, and the refund found no limit for the unused key."""
    limit = Limit.of_ns(20, DAY, algorithm=Algorithm.SLIDING_WINDOW)
    one, other = (Host(name, limit, carried=limit if is_carried else None) for name in "ab")
    one.start(units)
    one.copy_to(other)
    other.cover("a", at=BEGIN)
    for host, at in ((other, EARLIER), (one, LATER)):
        host.spend(1, at=at, check_id=CHECK)
        host.refund(1, at=at, check_id=REFUND)

    one.pull(other)

    assert one.used == units


@pytest.mark.parametrize("algorithm", [Algorithm.SLIDING_WINDOW_LOG, Algorithm.TOKEN_BUCKET])
@pytest.mark.parametrize("ago_s", [10, 8])
def test_a_refund_of_the_sender_leaves_its_charges_of_another_time(
    algorithm: Algorithm, ago_s: int
) -> None:
    """A unit of the later charge was removed as a duplicate, although the node's own charge of the
    check had expired."""
    second_ns = 1_000_000_000
    limit = Limit.of_ns(20, 10 * second_ns, algorithm=algorithm)
    owner, standby = Host("c", carried=limit), Host("a", carried=limit)
    owner.start()
    owner.spend(1, at=NOW - ago_s * second_ns, check_id=CHECK)
    standby.cover("c", at=NOW - 11 * second_ns)
    later = NOW - ago_s * second_ns + 1_000_000
    standby.spend(1, at=later, check_id=CHECK)
    standby.refund(1, at=later, check_id=REFUND)
    standby.spend(5)

    owner.pull(standby)

    assert owner.used == 5


def test_a_check_that_has_drained_from_a_bucket_counts_once() -> None:
    """The refund of the second charge removed no units, because these units had drained."""
    second_ns = 1_000_000_000
    bucket = Limit.of_ns(10, 40 * second_ns, algorithm=Algorithm.TOKEN_BUCKET)
    owner, standby = Host("c", bucket), Host("a", bucket)
    owner.start()
    owner.spend(5, at=NOW - 8 * second_ns)
    owner.copy_to(standby)
    standby.cover("c", at=NOW - 7 * second_ns)
    standby.spend(1, at=NOW - 6 * second_ns, check_id=CHECK)
    owner.spend(1, at=NOW - 5 * second_ns, check_id=CHECK)

    owner.pull(standby)

    assert owner.used == 4  # Two of six units have drained in eight seconds.


def test_a_check_counts_once_in_a_sliding_log_that_has_its_hit_a_little_earlier() -> None:
    """No hit was young enough for the refund, so the second charge stayed."""
    limit = Limit.of_ns(20, DAY, algorithm=Algorithm.SLIDING_WINDOW_LOG)
    one, other = Host("a", limit), Host("b", limit)
    for host, at in ((one, LATER), (other, EARLIER)):
        host.start()
        host.spend(1, at=BEGIN)
        host.spend(2, at=at, check_id=CHECK, answered_at=at + 190_000)

    one.pull(other)

    assert one.used == 4


def test_units_of_a_crossed_transfer_leave_a_sliding_log_when_it_is_acknowledged() -> None:
    """Units of the latest part of the log were charged as new, and refunded as younger ones."""
    limit = Limit.of_ns(20, DAY, algorithm=Algorithm.SLIDING_WINDOW_LOG)
    owner, standby = Host("c", limit), Host("a", limit)
    owner.start()
    owner.spend(3, at=BEGIN)
    owner.copy_to(standby)
    standby.cover("c", at=BEGIN)
    standby.spend(2, at=EARLIER)
    number = owner.ask(standby).groups[0].transfer_id  # The owner has not received it yet.
    standby.pull(owner)
    assert standby.used == 5

    standby.ownership.acknowledge(owner.name, [shard_of(KEY)], number, NOW + DAY // 64)

    assert standby.used == 3


def test_units_of_a_crossed_transfer_leave_a_counter_whose_limit_is_in_no_rule() -> None:
    """The units of a limit in requests were counted twice, because no rule had the limit."""
    limit = Limit.of_ns(20, DAY, algorithm=Algorithm.FIXED_WINDOW)
    owner, standby = Host("c", carried=limit), Host("a", carried=limit)
    owner.start()
    owner.spend(3, at=BEGIN)
    owner.copy_to(standby)
    standby.cover("c", at=BEGIN)
    standby.spend(2, at=EARLIER)
    number = owner.ask(standby).groups[0].transfer_id  # The owner has not received it yet.
    standby.pull(owner)
    assert standby.used == 5

    standby.ownership.acknowledge(owner.name, [shard_of(KEY)], number, NOW)

    assert standby.used == 3


@ORDERS
def test_a_crossed_transfer_is_charged_without_the_checks_that_its_owner_decided_too(
    first: int, second: int
) -> None:
    """The common check seemed to show that the owner had received the whole transfer."""
    owner, [standby] = covered_by(1)
    owner.spend(2, at=first, check_id=CHECK)
    standby.spend(2, at=second, check_id=CHECK)
    for number in (2, 3):
        standby.spend(5, at=NOW - number, check_id=(7, number, 0))
    from_standby = owner.ask(standby)  # The owner has not received it yet.
    from_owner = standby.ask(owner)

    standby.take(owner, from_owner)
    assert standby.used == 15
    standby.ownership.acknowledge(
        owner.name, [shard_of(KEY)], from_standby.groups[0].transfer_id, NOW
    )

    assert standby.used == 5


def test_a_crossed_transfer_is_charged_although_the_owner_decided_all_its_recent_checks() -> None:
    """The owner's checks are newer than the other check of the transfer, which was lost."""
    owner, [standby] = covered_by(1)
    standby.spend(1, at=EARLIER, check_id=(7, 2, 0))
    for host in (owner, standby):
        host.spend(2, at=LATER, check_id=CHECK)
    owner.ask(standby)  # The owner never receives it.

    standby.pull(owner)

    assert standby.used == 6


def test_a_check_whose_charge_left_and_returns_through_another_member_is_counted() -> None:
    """The node had decided the check itself, so it seemed to have the charge still."""
    standby, owner, elsewhere = Host("a"), Host("b"), Host("d")
    elsewhere.start(3)
    standby.cover("b", at=BEGIN)
    standby.spend(1, at=EARLIER, check_id=CHECK)
    move(standby, owner)
    standby.pull(elsewhere)
    assert standby.used == 3

    standby.pull(owner)

    assert standby.used == 4


def test_a_check_in_a_replica_after_a_transfer_is_counted_once() -> None:
    owner, receiver, other = Host("a"), Host("b"), Host("c")
    owner.start()
    owner.spend(1, at=EARLIER, check_id=CHECK)
    owner.copy_to(other)
    other.cover("a", at=EARLIER)
    other.spend(1, at=LATER, check_id=CHECK)
    move(owner, receiver)
    receiver.copy_to(owner)
    owner.cover("b")

    owner.pull(other)

    assert owner.used == 1


def test_a_charge_that_a_third_member_has_is_not_in_the_replica_of_the_owner() -> None:
    """The check was taken for counted, because this node had decided it before."""
    owner, third, host = Host("a"), Host("c"), Host("b")
    host.cover("c")
    host.spend(1, check_id=CHECK)
    move(host, third)
    owner.start(20)
    owner.copy_to(host)
    host.cover("a")

    host.pull(third)

    assert host.used == 21


def test_a_check_whose_charge_left_is_not_sent_with_the_counters_of_a_third_member() -> None:
    """The owner, which had the charge, took the check for a duplicate and removed the charge."""
    owner, standby, third = Host("a"), Host("b"), Host("c")
    owner.start()
    third.cover("a", at=BEGIN)
    third.spend(20, at=BEGIN, check_id=(7, 2, 0))
    standby.cover("a", at=BEGIN)
    standby.spend(2, at=EARLIER, check_id=CHECK)
    move(standby, owner)
    move(third, standby)

    owner.pull(standby)

    assert owner.used == 22
