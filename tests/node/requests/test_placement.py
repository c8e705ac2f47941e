"""Which member decides a key, by the ring, the held shards and recent transfers."""

import pytest

from hashring import Member, NodeId, Ring, shard_of
from node.requests.placement import NodeRoutes, ShardPlacement
from ringfence.wire import Batch, Op
from tests.node.shards.ownership.ownership_host import KEY, NOW, Host

SHARD = shard_of(KEY)
ME, OTHER = NodeId("a"), NodeId("b")
OURS, THEIRS, NO_RING = Ring.of([Member(ME)]), Ring.of([Member(OTHER)]), Ring.of([])


def placed(ring: Ring, holding: str) -> ShardPlacement:
    """Return the placement of node `a`, which has the shard as `holding` describes.

    `held`: it owns the shard. `sent`: it has sent the shard to node `c`. `covered`: it covers the
    shard. `searching`: it covers the shard, and node `c` has not answered whether it has a replica.
    Otherwise it never had the shard.
    """
    host = Host(ME)
    if holding == "held":
        host.start(3)
    elif holding == "covered":
        host.cover("b")
    elif holding == "searching":
        host.cover("b", "c")
    elif holding == "sent":
        host.start(3)
        Host("c").ask(host)
    placement = ShardPlacement(ME, host.ownership, lambda: NOW)
    placement.ring = ring
    return placement


@pytest.mark.parametrize("holding", ["none", "held", "covered", "searching", "sent"])
@pytest.mark.parametrize("ring", [OURS, THEIRS, NO_RING], ids=["ours", "theirs", "without members"])
def test_a_node_decides_what_it_holds_and_may_take_what_the_ring_assigns(
    ring: Ring, holding: str
) -> None:
    placement = placed(ring, holding)
    batch = Batch(Op.CHECK, [KEY, KEY], [1, 1])
    is_ours, is_held = ring is OURS, holding in ("held", "covered", "searching")

    assert placement.is_ours(SHARD) is is_ours
    assert placement.is_here(SHARD) is (is_ours or is_held)
    assert placement.holds([KEY]) is is_held
    assert placement.missing(batch) == ([] if is_held else [SHARD])
    assert placement.may_decide(batch) is (is_held or is_ours)
    assert placement.is_foreign(batch) is not is_ours
    assert placement.may_lend(KEY) is (is_ours and holding in ("held", "covered"))


@pytest.mark.parametrize(
    ("ring", "holding", "holder"),
    [
        (OURS, "none", None),
        (OURS, "held", None),
        (OURS, "sent", "c"),
        (THEIRS, "none", "b"),
        (THEIRS, "held", None),
        (THEIRS, "covered", None),
        (THEIRS, "sent", "c"),
        (NO_RING, "none", None),
    ],
)
def test_the_holder_is_the_receiver_of_a_transfer_or_else_the_owner(
    ring: Ring, holding: str, holder: str | None
) -> None:
    assert placed(ring, holding).holder_of(SHARD) == holder


def test_a_batch_is_foreign_if_another_member_owns_any_of_its_keys() -> None:
    both = Ring.of([Member(ME), Member(OTHER)])
    keys = [KEY[:-1] + bytes([number]) for number in range(100)]
    placement = placed(both, "none")
    ours = [key for key in keys if both.owner(shard_of(key)) == ME]
    theirs = [key for key in keys if both.owner(shard_of(key)) == OTHER]

    assert not placement.is_foreign(Batch(Op.CHECK, ours, [1] * len(ours)))
    assert placement.may_decide(Batch(Op.CHECK, ours, [1] * len(ours)))
    mixed = Batch(Op.CHECK, [*ours, theirs[0]], [1] * (len(ours) + 1))
    assert placement.is_foreign(mixed)
    assert not placement.may_decide(mixed)


@pytest.mark.parametrize(
    ("ring", "is_here", "holder", "decides"),
    [
        (OURS, True, None, "a"),
        (OURS, True, "c", "c"),
        (THEIRS, False, "c", "b"),
        (THEIRS, True, None, "a"),
        (THEIRS, True, "c", "c"),
        (NO_RING, False, None, None),
    ],
)
def test_a_route_of_an_own_key_follows_its_transfer(
    ring: Ring, *, is_here: bool, holder: str | None, decides: str | None
) -> None:
    routes = NodeRoutes(
        *(ring, {}),
        me=ME,
        is_here=lambda shard: is_here and shard == SHARD,
        holder_of=lambda shard: None if holder is None else NodeId(holder),
    )

    assert routes.owner(KEY) == decides
    assert routes.owners([KEY, KEY]) == [decides, decides]


def test_a_rule_that_another_ring_decides_has_the_owner_of_that_ring() -> None:
    elsewhere = {KEY[:8]: Ring.of([Member(NodeId("d"))])}
    routes = NodeRoutes(
        *(OURS, {}, elsewhere), me=ME, is_here=lambda shard: True, holder_of=lambda shard: ME
    )

    assert routes.owner(KEY) == "d"
    assert routes.owner(b"otherone" + b"key") == ME
