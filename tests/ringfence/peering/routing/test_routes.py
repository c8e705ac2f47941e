"""Choice of the member for each row of a batch, at first and after a failure."""

from typing import cast

import pytest

from hashring import SHARDS, Member, NodeId, Ring, shard_of
from ringfence.peering.routing.pending_request import PendingRequest
from ringfence.peering.routing.routes import Routes, split_by_member
from ringfence.peering.routing.stale_view_retry import owner_parts, retry_parts
from ringfence.peering.target import Target
from ringfence.wire import Batch, Op
from tests.ringfence.peering.routing.cluster import JoinableMember

A, B, C = map(NodeId, "abc")


class Link(str):
    """Fake link to the member with this name."""


def ring(*names: str) -> Ring:
    return Ring.of([Member(NodeId(name)) for name in names])


def routes(
    names: str, links: str | None = None, elsewhere: dict[bytes, Ring] | None = None
) -> Routes:
    targets = {
        NodeId(name): cast(Target, Link(name)) for name in (names if links is None else links)
    }
    return Routes(ring(*names), targets, elsewhere or {})


def key_of(owner: str, standby: str | None = None, names: str = "abc", number: int = 0) -> bytes:
    """Return the key with this number among those of an owner, and of a standby if given."""
    where, found = ring(*names), 0
    for at in range(1_000_000):
        key = b"%08d" % at
        shard = shard_of(key)
        if where.owner(shard) == owner and standby in (None, where.standby(shard)):
            if found == number:
                return key
            found += 1
    raise AssertionError


def test_without_members_no_member_decides() -> None:
    empty = routes("")

    assert empty.owner(b"12345678") is None
    assert empty.owners([b"12345678"] * 2) == [None, None]
    assert empty.standby(b"12345678") is None
    assert empty.single_check_targets() == [None] * SHARDS
    assert split_by_member(empty, batch_of([b"12345678"]), [0], as_standby=False) == []


def test_a_lone_member_has_no_standby() -> None:
    lone = routes("a")

    assert (lone.owner(b"12345678"), lone.standby(b"12345678")) == (A, None)
    assert split_by_member(lone, batch_of([b"12345678"]), [0], as_standby=True) == []


def test_a_rule_may_have_the_members_of_another_ring() -> None:
    key, other = key_of("a"), b"otherkey"
    both = routes("abc", "abcd", {other: ring("d")})

    assert both.owners([key, other, other + b"1"]) == [A, "d", "d"]
    assert (both.owner(other), both.standby(other)) == ("d", None)
    assert both.single_check_targets() == [None] * SHARDS


def test_single_checks_join_the_links_that_permit_it() -> None:
    where = ring("a", "b")
    joinable = JoinableMember()
    targets = {A: joinable, B: cast(Target, Link("b"))}

    found = Routes(where, targets).single_check_targets()

    assert found == [joinable if owner == A else None for owner in where.owner_by_shard]


def batch_of(keys: list[bytes], groups: list[int] | None = None) -> Batch:
    return Batch(Op.CHECK, keys, [1] * len(keys), groups or [])


@pytest.mark.parametrize("as_standby", [False, True])
def test_a_batch_is_split_by_the_owner_or_standby_of_each_key(*, as_standby: bool) -> None:
    keys = [key_of("a", "b"), key_of("b", "c"), key_of("a", "b", number=1), key_of("c", "a")]

    parts = split_by_member(routes("abc"), batch_of(keys), range(4), as_standby=as_standby)

    names = "bca" if as_standby else "abc"
    assert [(list(rows), target) for rows, target in parts] == [
        ([0, 2], names[0]),
        ([1], names[1]),
        ([3], names[2]),
    ]


def test_only_the_given_rows_are_split_and_members_without_a_link_are_left_out() -> None:
    keys = [key_of("a"), key_of("b"), key_of("a", number=1), key_of("c")]

    parts = split_by_member(routes("abc", "ac"), batch_of(keys), [1, 2, 3], as_standby=False)

    assert [(list(rows), target) for rows, target in parts] == [([2], "a"), ([3], "c")]
    assert split_by_member(routes("abc", "ac"), batch_of(keys), [1], as_standby=False) == []


@pytest.mark.parametrize(
    ("groups", "sizes"),
    [
        ([], [4096, 1]),
        ([4095, 2], [4095, 2]),
        ([1, 4096], [1, 4096]),
        ([4096, 1], [4096, 1]),
        ([4050, 60, 50, 4000], [4050, 110, 4000]),
        ([1] * 4095 + [2], [4095, 2]),
    ],
)
def test_a_part_has_at_most_4096_rows_and_ends_between_two_groups(
    groups: list[int], sizes: list[int]
) -> None:
    count = sum(sizes)
    keys = [key_of("a")] * count

    parts = split_by_member(routes("a"), batch_of(keys, groups), range(count), as_standby=False)

    assert [len(rows) for rows, _ in parts] == sizes
    assert [row for rows, _ in parts for row in rows] == [*range(count)]


def test_a_part_of_exactly_4096_rows_is_not_cut() -> None:
    keys = [key_of("a")] * 4096

    [(rows, target)] = split_by_member(routes("ab"), batch_of(keys), range(4096), as_standby=False)

    assert (len(rows), target) == (4096, "a")


def pending(keys: list[bytes], *, missing: list[int], shed: tuple[int, ...] = ()) -> PendingRequest:
    made = PendingRequest(batch_of(keys), 0.0)
    made.missing = missing
    made.shed = {*shed}
    return made


def test_owners_are_asked_about_rows_without_results_that_no_busy_member_has_shed() -> None:
    keys = [key_of("a"), key_of("b"), key_of("a", number=1), key_of("c")]

    parts = owner_parts(routes("abc"), pending(keys, missing=[1, 2, 3], shed=(3,)))

    assert [(list(rows), target, is_standby) for rows, target, is_standby in parts] == [
        ([1], "b", False),
        ([2], "a", False),
    ]


def test_after_a_failure_new_owners_are_asked_or_else_the_standbys() -> None:
    """A row with a new owner that has no link goes to the standby, as rows with the same owner."""
    before, after = routes("abc"), routes("bc", "bc")
    moved = next(
        key for at in range(99) if (key := key_of("a", number=at)) and after.owner(key) == B
    )
    same = key_of(
        "b", "a", number=next(n for n in range(99) if after.owner(key_of("b", "a", number=n)) == B)
    )
    keys = [moved, same]

    parts = retry_parts(after, before, pending(keys, missing=[0, 1]))

    assert [(list(rows), target, is_standby) for rows, target, is_standby in parts] == [
        ([0], "b", False),
        ([1], "c", True),
    ]
    unreachable = routes("bc", "c")
    parts = retry_parts(unreachable, before, pending(keys, missing=[0, 1]))
    assert [(list(rows), target, is_standby) for rows, target, is_standby in parts] == [
        ([0, 1], "c", True),
    ]


@pytest.mark.parametrize("has_previous", [False, True])
def test_with_the_same_routes_all_standbys_are_asked_except_for_shed_rows(
    *, has_previous: bool
) -> None:
    same = routes("abc")
    keys = [key_of("a", "b"), key_of("b", "c"), key_of("a", "b", number=1)]

    parts = retry_parts(
        same, same if has_previous else None, pending(keys, missing=[0, 1, 2], shed=(1,))
    )

    assert [(list(rows), target, is_standby) for rows, target, is_standby in parts] == [
        ([0, 2], "b", True),
    ]
