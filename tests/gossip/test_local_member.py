"""The local member: refutation, name conflicts and flap damping."""

from dataclasses import replace

import pytest

from gossip import Conflict, Gossip, Status
from tests.gossip.membership_calls import NS, changes, deliver, run, sent


def test_a_suspected_member_refutes_with_a_higher_incarnation(core, record):
    member = core("a")
    accusation = record("a", incarnation=4, status=Status.SUSPECT, accuser="b")

    effects = deliver(member, accusation)

    assert (member.me.incarnation, member.me.status) == (5, Status.ALIVE)
    assert member.me in changes(effects)
    assert member.counters["refutations"] == 1
    assert member.health == 1


@pytest.mark.parametrize(
    ("incarnation", "refuted_by"), [((1 << 32) - 2, (1, (1 << 32) - 1)), ((1 << 32) - 1, (2, 0))]
)
def test_a_suspicion_of_the_highest_incarnation_is_refuted_by_a_new_generation(
    core, record, incarnation, refuted_by
):
    member = core("a")

    deliver(member, record("a", incarnation=incarnation, status=Status.DEAD))

    assert (member.me.generation, member.me.incarnation) == refuted_by


@pytest.mark.parametrize(
    ("status", "refutations"),
    [
        (Status.ALIVE, 0),
        (Status.LEAVING, 0),
        (Status.SUSPECT, 1),
        (Status.DEAD, 1),
        (Status.LEFT, 1),
    ],
)
def test_a_newer_record_of_this_member_with_any_status_is_replaced(
    core, record, status, refutations
):
    """An earlier process may have raised the incarnation."""
    member = core("a")

    deliver(member, record("a", incarnation=7, status=status))

    assert (member.me.incarnation, member.me.status) == (8, Status.ALIVE)
    assert (member.counters["refutations"], member.health) == (refutations, refutations)


def test_suspicions_of_a_later_process_cause_no_damping(core, record):
    member = core("a")
    deliver(member, *[record(name) for name in "bcd"])
    for accuser in "bcd":
        later = replace(member.me, generation=member.me.generation + 1)
        deliver(member, replace(later, status=Status.SUSPECT, accuser=accuser))

    assert member.counters["refutations"] == 3
    assert not member.me.forward_only


def test_a_member_that_has_left_does_not_change_its_record(core):
    member = core("a")
    member.left(0)
    before = member.me

    assert member.set_forward_only(True, 0) == []
    assert member.me is before


def test_a_members_own_record_changes_nothing(core):
    member = core("a")
    before = member.me

    assert deliver(member, before) == []
    assert member.me is before


def test_a_member_that_has_left_before_it_starts_stays_away(core, record):
    member = core("a", status=Status.LEFT)

    assert deliver(member, record("b")) == []
    assert list(member.records) == ["a"]


def test_a_suspicion_of_a_later_generation_is_refuted(core, record):
    member = core("a", generation=5)

    deliver(member, record("a", generation=99, status=Status.DEAD, accuser="b"))

    assert member.me.generation == 100


def test_a_record_from_before_a_restart_makes_the_member_send_its_own_record(core, record):
    member = core("a", generation=5)
    deliver(member, record("b"))
    run(member, 0.5)

    deliver(member, record("a", generation=4, incarnation=9, status=Status.DEAD), now=NS // 2)

    assert own_records(run(member, 1)) == {member.me}


def test_only_the_sender_of_a_refuted_suspicion_receives_the_refutation_again(core, record):
    """A member that missed the refutation would otherwise declare a running member dead."""
    member = core("a")
    deliver(member, record("b"))
    suspicion = record("a", incarnation=3, status=Status.SUSPECT, accuser="b")
    deliver(member, suspicion)
    run(member, 0.5)

    effects = deliver(member, suspicion, sender="c", source=("host-c", 1), now=NS // 2)

    [answer] = effects
    assert (answer.to, answer.message.updates) == (("host-c", 1), (member.me,))
    assert own_records(run(member, 1)) == set()


def test_an_old_record_without_an_accusation_is_not_answered(core, record):
    member = core("a")
    deliver(member, record("a", incarnation=3, status=Status.SUSPECT, accuser="b"))

    assert not sent(deliver(member, record("a", incarnation=2)), Gossip)


def test_with_two_nodes_of_one_name_the_smaller_address_stops(core, record):
    twins = core("a", host="h1"), core("a", host="h2")
    conflicts = [
        effect
        for twin, other in (twins, reversed(twins))
        for effect in deliver(twin, other.me, sender="c")
        if isinstance(effect, Conflict)
    ]

    assert [effect.steps_down for effect in conflicts] == [True, False]


def test_a_later_node_with_the_same_name_makes_this_one_stop(core, record):
    member = core("a", host="h2")

    (effect,) = deliver(member, record("a", host="h1", generation=2), sender="c")

    assert effect == Conflict(record("a", host="h1", generation=2), steps_down=True)
    assert member.me.generation == 1


def test_a_suspicion_of_a_later_node_with_the_same_name_is_refuted(core, record):
    """The later node has ended, or a member still knows this name at another address."""
    member = core("a", host="h2")

    effects = deliver(
        member, record("a", host="h1", generation=2, status=Status.SUSPECT, accuser="b")
    )

    assert not [each for each in effects if isinstance(each, Conflict)]
    assert (member.me.generation, member.me.address) == (3, ("h2", 7600))


def test_three_suspicions_keep_a_member_out_of_the_ring_for_a_minute(core, record):
    member = core("a")
    deliver(member, *[record(name) for name in "bcd"])
    for accuser in "bcd":
        deliver(member, replace(member.me, status=Status.SUSPECT, accuser=accuser))

    out = []
    for second in range(63):
        alive = [record(name, incarnation=second + 1) for name in "bcd"]
        deliver(member, *alive, now=second * NS)
        run(member, second)
        out.append(member.me.forward_only)
    assert out == [True] * 60 + [False] * 3


def test_damping_does_not_empty_half_of_the_ring(core, record):
    member = core("a")
    deliver(member, *[record(name, forward_only=True) for name in "bcd"])
    for accuser in "bcd":
        deliver(member, replace(member.me, status=Status.SUSPECT, accuser=accuser))

    assert not member.me.forward_only


@pytest.mark.parametrize(
    ("others", "in_ring", "is_out"),
    [(2, 2, True), (2, 1, False), (3, 2, True), (3, 1, False), (4, 3, True), (4, 2, False)],
)
def test_a_damped_member_stays_out_while_half_of_the_members_are_in_the_ring(
    core, record, others, in_ring, is_out
):
    member = core("a")
    names = "bcde"[:others]
    deliver(member, *[record(name, forward_only=at >= in_ring) for at, name in enumerate(names)])
    for accuser in "bcb":
        deliver(member, replace(member.me, status=Status.SUSPECT, accuser=accuser))

    assert member.me.forward_only is is_out


def test_each_change_of_a_members_own_record_raises_its_incarnation(core):
    member = core("a", status=Status.JOINING, generation=7)
    history = []
    for change in (
        member.become_alive,
        member.become_alive,  # Changes nothing.
        lambda now: member.set_forward_only(True, now),
        member.leave,
        member.leave,
        member.left,
    ):
        change(0)
        history.append((member.me.incarnation, member.me.status))

    assert history == [
        (1, Status.ALIVE),
        (1, Status.ALIVE),
        (2, Status.ALIVE),
        (3, Status.LEAVING),
        (3, Status.LEAVING),
        (4, Status.LEFT),
    ]
    assert member.me.generation == 7


def test_suspicions_from_other_data_centers_cause_no_damping(core, record):
    member = core("a")
    deliver(member, record("b"), *[record(name, datacenter="dc2") for name in "cde"])
    for accuser in "cde":
        deliver(member, replace(member.me, status=Status.SUSPECT, accuser=accuser))

    assert not member.me.forward_only


def test_damped_members_return_rather_than_leave_the_ring_empty(core, record):
    member = core("a")
    deliver(member, *[record(name) for name in "bcd"])
    for accuser in "bcd":
        deliver(member, replace(member.me, status=Status.SUSPECT, accuser=accuser))
    assert member.me.forward_only

    deliver(member, *[record(name, forward_only=True, incarnation=1) for name in "bcd"])

    assert not member.me.forward_only


def test_forward_only_by_setting_outlasts_the_damping(core, record):
    member = core("a")
    deliver(member, *[record(name) for name in "bcd"])
    member.set_forward_only(True, 0)
    for accuser in "bcd":
        deliver(member, replace(member.me, status=Status.SUSPECT, accuser=accuser))
    run(member, 100)
    assert member.me.forward_only

    member.set_forward_only(False, 100 * NS)
    assert not member.me.forward_only


def own_records(effects):
    """Return the records of member a in the gossip messages."""
    return {
        each for message in sent(effects, Gossip) for each in message.updates if each.name == "a"
    }
