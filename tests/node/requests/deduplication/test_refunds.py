"""Refunds and resets that two nodes apply count once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ringfence.wire import DecidedCheck
from tests.node.requests.deduplication.decided_hosts import (
    ALLOWED,
    KEY,
    NOW,
    SECOND,
    SHARD,
    Host,
    key_of,
    memory,
)


def test_a_refund_that_removed_nothing_does_not_move_with_its_shard() -> None:
    checks = memory()
    checks.remember((1, 5, 0), KEY, 0, ALLOWED, NOW, is_refund=True)
    checks.remember((1, 6, 0), KEY, 2, ALLOWED, NOW, is_refund=True)

    assert checks.of_shard(SHARD, 0, NOW) == [
        DecidedCheck((1, 6, 0), KEY, 2, 0, ALLOWED, is_refund=True)
    ]
    assert [*checks.find([(1, 5, 0), (1, 6, 0)])] == [0, 1]


@pytest.mark.parametrize(("here", "there", "again"), [(2, 3, 2), (3, 2, 2), (0, 2, 0)])
def test_a_refund_applied_by_two_nodes_is_undone_by_the_units_that_both_removed(
    here: int, there: int, again: int
) -> None:
    checks = memory()
    checks.remember((1, 5, 0), KEY, here, ALLOWED, NOW - 50, is_refund=True)
    theirs = DecidedCheck((1, 5, 0), KEY, there, 20, ALLOWED, is_refund=True)

    expected = [replace(theirs, cost=again, age_ns=50)] if again else []
    assert checks.merge([theirs], NOW) == ([], [], expected)


def test_a_reset_applied_by_two_nodes_ends_the_effect_of_earlier_checks_of_its_key() -> None:
    checks, other = memory(), key_of(2)
    for seq, key in enumerate((KEY, KEY, other, KEY), 5):
        checks.remember((1, seq, 0), key, 2, ALLOWED, NOW - 50, is_refund=seq == 6)
    checks.remember((1, 9, 0), KEY, 0, ALLOWED, NOW - 20, is_reset=True)
    theirs = [
        DecidedCheck((1, 5, 0), KEY, 2, 20, ALLOWED),
        DecidedCheck((1, 6, 0), KEY, 2, 20, ALLOWED, is_refund=True),
        DecidedCheck((1, 7, 0), other, 2, 20, ALLOWED),
        DecidedCheck((1, 9, 0), KEY, 0, 10, ALLOWED, is_reset=True),
        DecidedCheck((1, 8, 0), KEY, 2, 5, ALLOWED),
    ]

    assert checks.merge(theirs, NOW) == ([theirs[2], theirs[4]], [], [theirs[3]])


def test_a_merge_compares_the_key_of_a_reset_with_few_other_keys() -> None:
    compared = 0

    class Key(bytes):
        __hash__ = bytes.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

        def __ne__(self, other: object) -> bool:
            return not self == other

    checks, theirs = memory(), list[DecidedCheck]()
    for seq in range(1, 401):
        is_reset, id_, key = seq > 200, (1, seq, 0), Key(key_of(seq))
        theirs.append(DecidedCheck(id_, key, 1, 20, ALLOWED, is_reset=is_reset))
        checks.remember(id_, key, 1, ALLOWED, NOW - 50, is_reset=is_reset)

    ours_first, _, resets = checks.merge(theirs, NOW)

    assert len(ours_first) == len(resets) == 200
    assert compared < 5 * 400


def test_a_reset_that_one_node_has_passed_on_is_not_one_of_two() -> None:
    checks = memory()
    checks.remember((1, 9, 0), KEY, 0, ALLOWED, NOW - 20, is_reset=True)
    checks.on_charges_transferred(SHARD, NOW)
    theirs = DecidedCheck((1, 9, 0), KEY, 0, 30, ALLOWED, is_reset=True)

    assert checks.merge([theirs], NOW) == ([], [], [])
    assert checks.of_shard(SHARD, 0, NOW) == [theirs]


def test_a_refund_known_from_another_node_is_not_applied_again() -> None:
    owner, receiver = Host("a"), Host("b")
    owner.ownership.start([SHARD])
    owner.decide((1, 5, 0), NOW, cost=3)
    owner.refund((1, 6, 0), NOW + 1)
    owner.give_to(receiver, NOW + 2)

    receiver.refund((1, 6, 0), NOW + 3)

    assert len(receiver.hits(NOW + 3)) == 2


def test_a_refund_applied_by_owner_and_standby_counts_once() -> None:
    owner, standby = Host("a"), Host("b")
    owner.ownership.start([SHARD])
    owner.decide((1, 5, 0), NOW)
    standby.take_over_from(owner, NOW + 1)
    standby.decide((1, 6, 0), NOW + 2)
    standby.refund((1, 7, 0), NOW + 3)
    owner.refund((1, 7, 0), NOW + 4)  # The request waited in the socket of the owner.

    standby.give_to(owner, NOW + 5)

    assert len(owner.hits(NOW + 6)) == 1


def test_a_refund_of_a_unit_that_only_the_owner_has_is_applied_by_the_owner() -> None:
    owner, standby = Host("a"), Host("b")
    owner.ownership.start([SHARD])
    owner.decide((1, 5, 0), NOW, cost=2)
    standby.take_over_from(owner, NOW + 1)
    standby.refund((1, 7, 0), NOW + 3)  # The log of the standby has no unit.
    standby.give_to(owner, NOW + 4)

    owner.refund((1, 7, 0), NOW + 5)

    assert len(owner.hits(NOW + 6)) == 1


def test_a_refund_that_two_standbys_applied_counts_once_at_the_owner() -> None:
    owner, first, second = Host("a"), Host("b"), Host("c")
    owner.ownership.start([SHARD])
    for standby in (first, second):
        standby.take_over_from(owner, NOW)
    first.decide((1, 5, 0), NOW + 1)
    second.decide((1, 6, 0), NOW + 1)
    second.decide((1, 7, 0), NOW + 1)
    for standby in (first, second):
        standby.refund((1, 8, 0), NOW + 2)
    second.ownership.owner_moved(SHARD, first.name, NOW + 3)
    first.give_to(second, NOW + 4)
    assert second.engine.used(KEY, NOW + 4) == 2

    second.give_to(owner, NOW + 5)

    assert len(owner.hits(NOW + 6)) == 2


@given(
    st.lists(
        st.tuples(st.sampled_from(["owner", "standby"]), st.integers(1, 6), st.booleans()),
        max_size=25,
    ),
    st.integers(0, 4),
)
def test_units_are_never_lost_by_refunds_on_several_nodes(
    asks: list[tuple[str, int, bool]], before: int
) -> None:
    """Each check costs 1, and each of several refunds has one of the checks."""
    owner, standby = Host("a"), Host("b")
    nodes = {"owner": owner, "standby": standby}
    owner.ownership.start([SHARD])
    for seq in range(before):
        owner.decide((2, seq + 1, 0), NOW)
    standby.take_over_from(owner, NOW)
    at, checked, refunded = NOW, set(), set()
    for asked, seq, is_refund in asks:
        at += SECOND
        if not is_refund:
            nodes[asked].decide((1, seq, 0), at)
            checked.add(seq)
        elif seq in checked:
            nodes[asked].refund((3, seq, 0), at)
            refunded.add(seq)

    standby.give_to(owner, at + SECOND)

    used = owner.engine.used(KEY, at + SECOND)
    assert before + len(checked - refunded) <= used <= before + len(checked)
