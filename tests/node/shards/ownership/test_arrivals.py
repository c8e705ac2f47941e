"""Event that the arrival of a shard's counters is, by what the sender and this node have."""

import pytest

from hashring import NodeId
from node.shards.ownership.arrivals import arrival_of
from node.shards.ownership.ownership_table import Event
from ringfence.wire import Holding, ShardGroup


def name(text: str) -> NodeId:
    """Return a name as its own object, as names in messages are."""
    return NodeId(text.encode().decode())


def arrival(
    text: str,
    sender: str = "sender",
    owner: str = "",
    base_of: str = "",
    *,
    is_unrelated: bool = False,
    is_branch: bool = False,
    has_log: bool = False,
) -> Event:
    """Return the event of an arrival; `text` describes the transfer by words.

    The first word is the member from which the sender took the shard over, or `own`. The word
    `blind` means a takeover without a replica. The word `before` means counters of a run before
    this node's restart.
    """
    words = text.split()
    taken_from = "" if words[0] == "own" else words[0]
    blind = name("third") if "blind" in words else ""
    group = ShardGroup(
        *([1], [1], Holding.HELD, 1, "", blind, name(taken_from) if taken_from else ""),
        *(9, "before" in words),
    )
    return arrival_of(
        *(group, name(sender), name("this"), name(owner) if owner else None, name(base_of)),
        is_unrelated=is_unrelated,
        is_branch=is_branch,
        has_log=has_log,
    )


@pytest.mark.parametrize(("owner", "base_of"), [("", ""), ("owner", ""), ("owner", "sender")])
def test_an_owner_transfers_its_shard(owner: str, base_of: str) -> None:
    assert arrival("own", owner=owner, base_of=base_of) is Event.TRANSFER
    assert arrival("own", owner=owner, base_of=base_of, has_log=True) is Event.TRANSFER_OF_BASE


@pytest.mark.parametrize(
    ("text", "sender", "owner", "base_of", "event"),
    [
        ("this", "sender", "", "", Event.RETURN),
        ("this before", "sender", "", "", Event.RETURN_TO_RESTARTED),
        ("this blind", "sender", "", "", Event.RETURN_BLIND),
        ("this blind before", "sender", "", "", Event.RETURN_BLIND_TO_RESTARTED),
        ("this", "sender", "other", "", Event.RETURN),
        ("this", "sender", "this", "", Event.RETURN_OF_SAME_OWNER),
        ("this", "owner", "owner", "", Event.RETURN_BY_OWNER),
        ("this before", "owner", "owner", "", Event.RETURN_BY_OWNER),
        ("this", "sender", "owner", "sender", Event.RETURN_BY_OWNER),
        ("this blind", "sender", "owner", "sender", Event.RETURN_BLIND_BY_BASE),
        ("this blind", "sender", "", "sender", Event.RETURN_BLIND),
        ("this", "sender", "", "sender", Event.RETURN),
    ],
)
def test_a_member_returns_the_shard_that_it_had_taken_over_from_this_node(
    text: str, sender: str, owner: str, base_of: str, event: Event
) -> None:
    assert arrival(text, sender, owner, base_of) is event


@pytest.mark.parametrize(
    ("text", "sender", "owner", "base_of", "event"),
    [
        ("third", "sender", "", "", Event.COVER),
        ("third", "sender", "owner", "", Event.COVER),
        ("third before", "sender", "owner", "", Event.COVER),
        ("owner", "sender", "owner", "", Event.COVER_OF_SAME_OWNER),
        ("third", "owner", "owner", "", Event.COVER_BY_OWNER),
        ("third", "sender", "owner", "sender", Event.COVER_BY_OWNER),
        ("third", "sender", "", "sender", Event.COVER),
        ("third blind", "sender", "", "", Event.COVER_BLIND),
        ("owner blind", "sender", "owner", "", Event.COVER_BLIND),
        ("third blind", "owner", "owner", "", Event.COVER_BLIND_BY_OWNER),
        ("third blind", "sender", "owner", "sender", Event.COVER_BLIND),
    ],
)
def test_a_member_sends_a_shard_that_it_holds_in_place_of_another_member(
    text: str, sender: str, owner: str, base_of: str, event: Event
) -> None:
    assert arrival(text, sender, owner, base_of) is event


@pytest.mark.parametrize(
    ("text", "sender", "owner", "event"),
    [
        ("own", "sender", "", Event.UNRELATED),
        ("own", "sender", "this", Event.UNRELATED),
        ("own", "owner", "owner", Event.UNRELATED),
        ("own", "sender", "owner", Event.UNRELATED_BY_THIRD),
        ("this", "sender", "", Event.UNRELATED),
        ("this blind", "sender", "", Event.RETURN_BLIND),
        ("third", "sender", "", Event.COVER),
        ("third before", "sender", "", Event.UNRELATED),
        ("third before", "sender", "owner", Event.COVER),
        ("third", "owner", "owner", Event.COVER),
        ("this", "owner", "owner", Event.RETURN),
    ],
)
def test_counters_without_common_units_are_added_if_their_sender_has_a_base(
    text: str, sender: str, owner: str, event: Event
) -> None:
    assert arrival(text, sender, owner, is_unrelated=True) is event


@pytest.mark.parametrize("text", ["own", "this", "third", "third blind"])
def test_counters_that_began_with_those_of_this_node_are_a_branch(text: str) -> None:
    assert arrival(text, is_branch=True) is Event.BRANCH
