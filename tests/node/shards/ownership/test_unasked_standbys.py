"""Standbys that a restarted node must ask before it may replicate to them."""

import pytest

from hashring import SHARDS, Member, NodeId, Ring
from node.shards.ownership.unasked_standbys import UnaskedStandbys
from ringfence.wire import Holding, ShardGroup

ME, B, C = map(NodeId, ("me", "b", "c"))
RING = Ring.of([Member(name) for name in (ME, B, C)])


def shards_with(owner: NodeId, standby: NodeId, count: int = 2) -> list[int]:
    return [
        shard
        for shard in range(SHARDS)
        if (RING.owner(shard), RING.standby(shard)) == (owner, standby)
    ][:count]


MINE_AT_B, MINE_AT_C = shards_with(ME, B), shards_with(ME, C)
OF_B_AT_ME = shards_with(B, ME)


def started(*shards: int, answered: dict[int, tuple[NodeId, ...]] | None = None) -> UnaskedStandbys:
    made = UnaskedStandbys(ME)
    made.add(shards, answered or {})
    made.on_ring_change(RING)
    return made


def to_ask(made: UnaskedStandbys) -> dict[NodeId, list[int]]:
    return {name: sorted(shards) for name, shards in made.to_ask.items()}


def test_the_standby_of_each_started_shard_is_to_be_asked() -> None:
    made = started(*MINE_AT_B, *MINE_AT_C)

    assert to_ask(made) == {B: MINE_AT_B, C: MINE_AT_C}
    assert made.is_to_ask(B, MINE_AT_B[0])
    assert not made.is_to_ask(C, MINE_AT_B[0])
    assert not made.is_to_ask(NodeId("d"), MINE_AT_B[0])


def test_the_member_that_owns_a_held_shard_by_the_ring_is_to_be_asked() -> None:
    """The node holds it until the owner has received it, and replicates it to the owner."""
    assert to_ask(started(*OF_B_AT_ME)) == {B: OF_B_AT_ME}


def test_members_that_had_no_counters_are_not_asked_again() -> None:
    first, second = MINE_AT_B
    made = started(first, second, answered={first: (B,), second: (C,)})

    assert to_ask(made) == {B: [second]}


def test_the_standby_of_a_shard_whose_owner_has_nothing_is_to_be_asked_at_once() -> None:
    made = started()
    first, second = MINE_AT_B

    made.add_covered(first, C)
    made.add_covered(second, B)

    assert to_ask(made) == {B: [first]}
    made.on_ring_change(RING)
    assert to_ask(made) == {B: [first]}


def test_without_standbys_no_member_is_to_be_asked() -> None:
    made = started(*MINE_AT_B)

    made.on_ring_change(Ring.of([Member(ME)]))
    assert to_ask(made) == {}
    made.on_ring_change(Ring.of([]))
    assert to_ask(made) == {}
    made.on_ring_change(RING)
    assert to_ask(made) == {B: MINE_AT_B}


def test_an_answer_ends_the_question_for_its_shards_also_after_a_change_of_the_ring() -> None:
    made = started(*MINE_AT_B, *MINE_AT_C)
    first, second = MINE_AT_B

    assert made.on_answer(B, [first, *MINE_AT_C]) == {first}
    assert made.on_answer(B, [first]) == set()
    assert to_ask(made) == {B: [second], C: MINE_AT_C}
    made.on_ring_change(RING)
    assert to_ask(made) == {B: [second], C: MINE_AT_C}
    assert made.on_answer(B, [second]) == {second}
    assert to_ask(made) == {C: MINE_AT_C}


def test_shards_with_counters_are_forgotten() -> None:
    made = started(*MINE_AT_B, *MINE_AT_C)

    made.drop([MINE_AT_B[0], *MINE_AT_C])

    assert to_ask(made) == {B: MINE_AT_B[1:]}
    made.on_ring_change(RING)
    assert to_ask(made) == {B: MINE_AT_B[1:]}


def test_a_shard_that_starts_again_forgets_its_earlier_answers() -> None:
    made = started(*MINE_AT_B, answered=dict.fromkeys(MINE_AT_B, (B,)))
    assert to_ask(made) == {}

    made.add(MINE_AT_B[:1], {})
    made.on_ring_change(RING)

    assert to_ask(made) == {B: MINE_AT_B[:1]}


@pytest.mark.parametrize(
    ("is_asked", "taken_from", "are_shared", "before", "after"),
    [
        (True, "", None, False, True),
        (True, "me", None, False, True),
        (False, "me", None, False, False),
        (False, "me", None, True, True),
        (True, "me", True, True, False),
        (False, "me", True, True, False),
        (True, "c", True, True, True),
        (True, "me", False, False, False),
        (True, "me", False, True, True),
    ],
)
def test_counters_of_a_standby_that_is_to_be_asked_are_from_before_the_restart(
    *, is_asked: bool, taken_from: str, are_shared: bool | None, before: bool, after: bool
) -> None:
    """Origins in common show that the standby has the present counters."""
    shard = MINE_AT_B[0] if is_asked else MINE_AT_C[0]
    group = ShardGroup([shard], [1], Holding.HELD, 1, "", "", taken_from, 9, before)

    corrected = started(*MINE_AT_B, *MINE_AT_C).correct_group(
        shard, group, B, are_shared=are_shared
    )

    assert corrected.is_from_before is after
    assert corrected.shards == [shard]
