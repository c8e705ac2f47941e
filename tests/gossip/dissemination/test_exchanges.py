"""Full exchanges: seeds, digest mismatches and intervals."""

import itertools

from gossip import (
    Exchange,
    Ping,
    Status,
)
from tests.gossip.membership_calls import HOME, LAN, NS, SEEDS, deliver, is_sent_to, run


def test_a_lone_member_contacts_seeds_until_it_knows_another_member(core, record):
    """foca#15: a member that lost all others never recovered."""
    member = core("a")
    asked = [effect.with_ for effect in member.join(SEEDS, 0)]
    again = [each for each in run(member, 20) if isinstance(each, Exchange)]
    member.merge([record("b")], 20 * NS)
    member.merge([record("b", status=Status.LEFT)], 20 * NS)
    later = [each for each in run(member, 60) if isinstance(each, Exchange)]

    assert asked == list(SEEDS)
    assert {each.with_ for each in again} == set(SEEDS)
    assert len(later) >= 2


def test_seeds_may_be_replaced(core):
    member = core("a")
    member.join(SEEDS, 0)
    member.set_seeds([("new", 1)])

    assert {each.with_ for each in run(member, 10) if isinstance(each, Exchange)} == {("new", 1)}


def test_only_unknown_seeds_are_contacted_while_members_are_known(core, record):
    """cortex#4931: clusters that had formed around different seeds never merged."""
    member = core("a")
    deliver(member, record("b"))

    asked = [
        effect.with_
        for second in range(9)
        for effect in member.join([HOME, *SEEDS], second * NS)
        if isinstance(effect, Exchange)
    ]

    assert set(asked) == set(SEEDS)


def test_a_new_member_exchanges_a_second_time_soon_after_joining(core, record):
    """The second list has the record of a member that joined at the same time.

    The first list may lack this record, and its dissemination may have ended before.
    """
    member = core("a")
    member.join([record("b").address], 0)
    member.merge([record("b"), record("c", status=Status.JOINING)], NS // 10)

    asked = [effect.with_ for effect in run(member, 1) if isinstance(effect, Exchange)]

    assert len(asked) == 1
    assert set(asked) < {record("b").address, record("c").address}


def test_members_that_booted_together_contact_dead_members_at_different_times(core, record):
    """Otherwise a thousand members would contact a restarted member at the same instant."""
    sent_at, now = set(), 0
    for seed in range(4):
        member, dead = core("a", seed=seed), record("dead", status=Status.DEAD)
        deliver(member, record("b"), dead)
        run(member, LAN.gossip_to_dead)
        while not any(is_sent_to(each, dead) for each in member.tick(now)):
            now = member.next_deadline()
        sent_at.add(now)

    assert len(sent_at) == 4


def test_a_lasting_digest_mismatch_causes_rare_exchanges(core, record):
    """An exchange follows after five rounds of gossip, which usually reach all members."""
    member = core("a")
    deliver(member, record("b"))
    asked_at = [
        tenth / 10
        for tenth in range(200)
        for effect in member.receive(Ping("b", 1, 1, "a", 0), HOME, tenth * NS // 10)
        if isinstance(effect, Exchange)
    ]

    assert asked_at[0] == 0.5
    assert all(later - sooner >= 5.0 for sooner, later in itertools.pairwise(asked_at))
    assert len(asked_at) >= 3


def test_a_matching_digest_does_not_clear_another_mismatch(core, record):
    """Members of one data center may agree although all lack updates of another one."""
    member = core("a")
    deliver(member, record("b"), record("c"))

    asked = [
        effect.with_
        for half in range(20)
        for name, digest in (("b", member.digest), ("c", 0))
        for effect in member.receive(Ping(name, 1, 1, "a", digest), HOME, half * NS // 2)
        if isinstance(effect, Exchange)
    ]

    assert asked
    assert set(asked) == {record("c").address}
