"""Histories of members that exchange one shard: no unit is lost, and none counts twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashring import NodeId
from tests.node.shards.ownership.ownership_host import KEY, Host
from tests.node.shards.ownership.random_histories import SHARD, STEPS, History, Step, steps_of


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(st.lists(st.sampled_from(STEPS), min_size=3, max_size=12))
def test_every_unit_counts_once_in_a_random_history(steps: list[Step]) -> None:
    history = History()

    assert history.run(steps) == history.admitted


@pytest.mark.parametrize(
    "steps",
    [
        # The receiver's blind cover contained the log that a replica at its owner has, too.
        "spend a, cover c b, copy a b, fetch c a",
        "cover c b, spend a, copy a b, fetch c a",
        # A member took over from a replica of the log of a blind cover, and returned it.
        "cover b a, spend b, copy b c, cover c b, fetch b c",
        # The first sender of a shard offers its transfer to a third member, which has the shard.
        "fetch c a, spend c, fetch_unacknowledged b c",
        # A member received the owner's transfer as part of a log, and the owner took it back.
        "spend a, cover c b, fetch_unacknowledged c a, fetch b c",
        # A node dropped its unacknowledged counters for those of a member that had started blind.
        "cover c b, spend a, ask c a, fetch c b",
        # A node that had started blind ignored the counters below a log.
        "spend a, fetch c a, cover b c, ask b c, cover c b",
        # A blind cover had followed the replicas of a member whose shard moved to another cover.
        "cover c b, fetch b a, cover a c, spend b, copy b c",
        "spend a, fetch b a, cover a c, copy b c, cover c b",
        "spend a, copy a c, fetch b a, cover c a, cover a c",
        # A node dropped the log in its unacknowledged transfer for counters of a third member.
        "spend a, copy a b, cover b a, spend b, copy b c, ask a b, cover c b, spend c, fetch b c",
        "spend a, copy a b, cover b a, spend b, ask c b, fetch b a",
        # A member started from a replica of a blind cover, whose log arrived with the shard.
        "cover b c, spend b, copy b a, fetch b a, cover a c",
        "fetch b a, cover c b, spend c, copy c a, cover a b",
        # A log had all units of a third member, and another member had them, too.
        "cover b c, spend a, fetch b a, fetch_unacknowledged c b",
        "spend a, cover b a, cover c b, copy a b, fetch c a",
        # The receiver of a transfer that was taken back never got it, and had an older replica.
        "spend a, copy a b, spend a, cover b a, fetch c a, ask b c, cover c b, fetch c b",
        # A node added only the log of a member that had also admitted units before its log.
        "spend a, ask b a, cover a c, fetch c a, cover b a",
        "spend a, ask b a, cover a b, fetch c a, cover b a",
        "fetch_unacknowledged b a, spend b, ask c b, cover b a, cover a c",
        "fetch_unacknowledged c a, spend c, ask b c, cover a b, cover c b",
        "fetch_unacknowledged c a, spend c, ask b c, cover a c, fetch a c, cover c b",
        "fetch_unacknowledged c a, spend c, fetch b c, ask a b, cover a b, cover b a",
        "fetch b a, spend b, fetch c b, ask b c, cover c b, cover b a",
        "ask c a, cover a b, spend a, fetch c a, cover a b, ask b a, cover a c",
        # A node added a replica below a log, and then the log of the member that the replica is of.
        "cover c a, spend c, copy c b, cover b c",
        "cover b c, spend b, fetch c b, cover b c, copy c b",
        # A check of both members was removed, although only the units that exceeded the other
        # member's were added.
        "fetch_unacknowledged b a, cover a b, fetch_unacknowledged c b, spend a, "
        "fetch_unacknowledged c a, cover a c, spend a",
        "spend a, cover b c, fetch_unacknowledged b c, spend b, fetch_unacknowledged c b",
    ],
)
def test_every_unit_counts_once_in_a_known_history(steps: str) -> None:
    history = History()

    assert history.run(steps_of(steps)) == history.admitted


def covered() -> tuple[Host, Host, Host]:
    """Return an owner with three units, its standby, and a third member. The standby has taken over
    from a replica, and has become the owner too, because the other two had nothing."""
    owner, standby, third = Host("a"), Host("b"), Host("c")
    owner.start(3)
    owner.copy_to(standby)
    standby.cover("c")
    for _ in range(2):
        standby.ownership.owner_has_nothing(SHARD, standby.now)
    standby.spend(2)
    return owner, standby, third


def test_two_owners_with_common_counters_count_them_once() -> None:
    """The first owner joined the counters of both, with the common ones twice."""
    owner, standby, _ = covered()
    owner.spend(1)
    assert standby.covered_owner is None

    owner.pull(standby)

    assert owner.used == 6


def test_a_second_owner_keeps_its_log_for_the_counters_of_the_first() -> None:
    owner, standby, _ = covered()
    owner.spend(1)

    standby.pull(owner)

    assert standby.used == 6


def test_the_log_of_a_second_owner_is_kept_for_some_seconds() -> None:
    owner, standby, _ = covered()
    ended = standby.ownership.next_expiry - standby.now
    assert 10 * 10**9 < ended < 20 * 10**9

    standby.now += ended + 1
    standby.ownership.expire(standby.now)

    (group,) = owner.ask(standby).groups
    assert len(group.marks) == 1


def test_a_second_owner_sends_its_log_with_its_transfer() -> None:
    """A third member that receives the transfer first therefore continues the log."""
    _, standby, third = covered()

    reply = third.ask(standby)

    (group,) = reply.groups
    assert group.taken_from == ""
    assert len(group.marks) == 2
    assert [row[1::2] for row in reply.fallback_counts] == [[2]]


def test_an_owner_does_not_follow_a_replica_that_contains_its_log() -> None:
    owner, standby = Host("a"), Host("b")
    owner.start(3)
    owner.copy_to(standby)
    standby.cover("a")
    standby.spend(2)
    origins = standby.ownership.origins.of(SHARD)
    counts = standby.ownership.snapshot([KEY], standby.now)

    standby.ownership.keep_replica(NodeId("a"), counts, standby.now, [origins])

    assert standby.used == 5
