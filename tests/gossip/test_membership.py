"""Invariants and bounds of membership, leaving, and pauses of the process."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip import (
    Gossip,
    Ping,
    Send,
    Settings,
    Status,
    encode,
)
from gossip.datagrams.codec import record_size
from tests.gossip.membership_calls import HOME, NS, changes, deliver, is_sent_to, others, run, sent


@given(st.lists(others, max_size=20))
def test_a_record_never_falls_back_to_an_older_one(core, listed):
    member = core("me")
    for record in listed:
        before = member.records.get(record.name)
        deliver(member, record)
        assert before is None or member.records[record.name].rank >= before.rank


@given(st.lists(others, max_size=12), st.randoms())
def test_updates_may_arrive_in_any_order_and_repeatedly(core, listed, random):
    one, other = core("me"), core("me")
    deliver(one, *listed)
    shuffled = random.sample(listed, len(listed))
    deliver(other, *shuffled, *shuffled)

    assert {name: each.rank for name, each in one.records.items()} == {
        name: each.rank for name, each in other.records.items()
    }
    assert one.digest == other.digest


@given(st.lists(others, max_size=20))
def test_a_member_never_suspects_itself_and_bounds_its_queue(core, listed):
    member = core("a")
    for record in listed:
        deliver(member, record, sender="z")
        member.merge([record], 0)
        assert member.me.status is Status.ALIVE
        assert member.pending <= 2 * len(member.records)


def test_the_longest_updates_leave_the_queue_among_many_short_ones(core, record):
    """alertmanager#1412: an update above the size of a datagram waited forever."""
    member = core("m" * 255, host="h")
    long = record("n" * 255, host="h" * 60, accuser="o" * 255, status=Status.SUSPECT)
    deliver(member, record("b"), long, *[record(f"short{number}") for number in range(100)])

    reported = [
        each for message in sent(run(member, 60), Gossip | Ping) for each in message.updates
    ]

    assert long in reported
    assert member.pending == 0


@given(st.integers(1, 300), st.integers(1, 90))
def test_no_message_is_larger_than_a_datagram(core, record, count, length):
    member = core("me")
    effects = deliver(member, *[record(f"{number:0{length}}") for number in range(count)])
    effects += run(member, 2)

    for message in sent(effects, Gossip | Ping):
        assert len(encode(message)) <= 1130


def test_a_member_with_too_long_texts_is_rejected(core):
    with pytest.raises(ValueError, match="shorten"):
        core("n" * 255, zone="z" * 255)


def test_the_texts_of_a_member_take_up_to_440_bytes(core):
    def with_zone(length):
        return core("n" * 255, host="h", zone="z" * length).me

    longest = next(length for length in range(255) if record_size(with_zone(length)) == 440)

    with pytest.raises(ValueError, match="shorten them to 440"):
        with_zone(longest + 1)


def test_the_longest_allowed_record_is_sent_and_suspected(core, record):
    long = record("n" * 255, host="h")
    member = core("m" * 255, host="h")
    deliver(member, long, sender="n" * 255, source=long.address)

    effects = run(member, 1)

    assert sent(effects, Ping)
    assert any(each.updates for each in sent(effects, Gossip))
    assert all(len(encode(message)) <= 1130 for message in sent(effects, Ping | Gossip))


def test_a_leave_is_sent_to_the_local_data_center_at_once(core, record):
    member = core("a")
    deliver(
        member,
        *[record(f"n{number}") for number in range(40)],
        record("remote_dc", datacenter="dc2"),
    )

    effects = member.leave(0)

    reported = {effect.to for effect in effects if isinstance(effect, Send)}
    assert reported == {(f"host-n{number}", 7600) for number in range(40)}
    assert member.me.is_routed
    assert not member.me.is_placed


def test_the_last_member_of_a_data_center_reports_its_leave_to_others(core, record):
    member = core("a")
    others = [record(f"n{number}", datacenter="dc2") for number in range(40)]
    deliver(member, *others, record("gone", status=Status.LEFT))

    for effects in (member.leave(0), member.left(1)):
        reported = {effect.to for effect in effects if isinstance(effect, Send)}
        assert 1 < len(reported) <= 10
        assert reported <= {each.address for each in others}


def test_a_member_that_has_left_only_answers_pings_with_its_record(core, record):
    member = core("a")
    deliver(member, record("b"))
    member.left(0)

    updates = (record("a", incarnation=9, status=Status.DEAD),)
    [answer] = member.receive(Ping("b", 1, 1, "a", 0, updates), HOME, 1)
    assert (answer.to, answer.message) == (HOME, Gossip("a", 1, (member.me,)))
    for ping in (Ping("a", 1, 1, "a", 0), Ping("b", 1, 1, "c", 0)):
        assert member.receive(ping, HOME, 1) == []
    assert deliver(member, record("a", incarnation=9, status=Status.DEAD)) == []
    assert member.tick(member.next_deadline()) == []
    assert member.me.status is Status.LEFT


def test_an_early_tick_has_no_effect(core, record):
    member = core("a")
    deliver(member, record("b"))
    run(member, 1)
    deadline = member.next_deadline()

    assert member.tick(deadline - 1) == []
    assert member.next_deadline() == deadline


def test_after_its_own_pause_a_member_declares_no_member_dead(core, record):
    member = core("a")
    deliver(member, *[record(name) for name in "bcdef"])
    deliver(member, *[record("b", status=Status.SUSPECT, accuser=each) for each in "cde"])

    effects = member.tick(30 * NS)

    assert not [each for each in changes(effects) if each.status is Status.DEAD]
    assert member.counters["own_pauses"] == 1
    assert member.health == 1
    assert member.counters["probes_failed"] == 0


def test_a_short_lag_extends_suspicions(core, record):
    member = core("a")
    deliver(member, *[record(name) for name in "bcdef"])
    deliver(member, *[record("b", status=Status.SUSPECT, accuser=each) for each in "cdef"])
    while member.next_deadline() < 1.2 * NS:
        member.tick(member.next_deadline())

    member.tick(member.next_deadline() + round(0.9 * NS))

    assert member.records["b"].status is Status.SUSPECT


@pytest.mark.parametrize(("intervals", "pauses"), [(2, 0), (2.01, 1)])
def test_a_lag_above_two_intervals_counts_as_a_pause(core, record, intervals, pauses):
    member = core("a")
    deliver(member, record("b"))
    run(member, 3)

    member.tick(member.next_deadline() + round(intervals * Settings.lan().local_dc.interval * NS))

    assert member.counters["own_pauses"] == pauses


def test_a_suspicion_that_a_confirmation_ends_in_the_past_is_no_pause(core, record):
    member = core("me")
    deliver(member, *[record(name) for name in "bcdef"])
    deliver(member, record("b", status=Status.SUSPECT, accuser="c"))
    run(member, 5.0)
    # With one accuser, the suspicion lasts 9 s. With three more, it would have ended after 1.5 s.
    accusations = [record("b", status=Status.SUSPECT, accuser=each) for each in "def"]
    deliver(member, *accusations, now=5 * NS)
    member.tick(5 * NS)
    assert member.records["b"].status is Status.DEAD
    assert member.counters["own_pauses"] == 0


def test_founders_know_each_other_without_sending_records(core, record):
    member = core("a")
    founders = [member.me, record("b"), record("c", datacenter="dc2")]

    effects = member.found(founders, 0)

    assert changes(effects) == founders[1:]
    assert len(effects) == 2
    assert member.pending == 0
    joined = core("a")
    joined.merge(founders[1:], 0)
    assert member.digest == joined.digest
    assert {ping.target for ping in sent(run(member, 30), Ping)} == {"b", "c"}


def test_a_member_that_has_left_has_no_timer(core, record):
    member = core("a")
    deliver(member, record("b"))
    member.left(0)

    assert member.next_deadline() > 100 * 365 * 86_400 * NS


@pytest.mark.parametrize(
    ("record_of", "is_probed"),
    [
        ({"status": Status.ALIVE}, True),
        ({"status": Status.LEAVING}, True),
        ({"status": Status.SUSPECT}, True),
        ({"status": Status.DEAD}, False),
        ({"status": Status.LEFT}, False),
    ],
)
def test_a_member_that_is_not_gone_is_probed_when_it_is_unreachable(
    core, record, record_of, is_probed
):
    member = core("a")
    member.found([record("b", **record_of)], 0)

    pings = sent(member.report_unreachable("b", 1), Ping)

    assert [ping.target for ping in pings] == (["b"] if is_probed else [])
    assert member.report_unreachable("a", 1) == []


def test_messages_with_the_members_own_name_are_refused_and_counted(core, record):
    member = core("a")
    ping = Ping("a", 1, 7, "a", 0, (record("b"),))

    assert member.receive(ping, HOME, 0) == []
    assert list(member.records) == ["a"]
    assert member.counters["refused_own_name"] == 1
    member.left(0)
    member.receive(ping, HOME, 0)
    assert member.counters["refused_own_name"] == 1


def test_updates_are_pending_for_each_kind_of_data_center(core, record):
    member = core("a")
    pending = []
    for listed in (record("b"), record("c"), record("d", datacenter="dc2")):
        deliver(member, listed)
        pending.append(member.pending)

    # The first other member receives the own record. Updates for other data centers are queued as
    # soon as a member there is known.
    assert pending == [2, 3, 5]


@pytest.mark.parametrize(
    ("members", "left"),
    [
        ({}, set()),
        ({"b": ("dc1", Status.LEFT)}, set()),
        ({"b": ("dc2", Status.LEFT)}, {"dc2"}),
        ({"b": ("dc2", Status.DEAD)}, set()),
        ({"b": ("dc2", Status.LEFT), "c": ("dc2", Status.DEAD)}, set()),
        ({"b": ("dc2", Status.LEFT), "c": ("dc2", Status.LEAVING)}, set()),
        ({"b": ("dc2", Status.LEFT), "c": ("dc2", Status.LEFT)}, {"dc2"}),
        ({"b": ("dc2", Status.LEFT), "c": ("dc3", Status.DEAD)}, {"dc2"}),
        ({"b": ("dc2", Status.LEFT), "c": ("dc3", Status.LEFT)}, {"dc2", "dc3"}),
    ],
)
def test_a_data_center_has_left_when_all_its_members_have_left_voluntarily(
    core, record, members, left
):
    member = core("a")
    for name, (datacenter, _) in members.items():
        deliver(member, record(name, datacenter=datacenter))
    for name, (datacenter, status) in members.items():
        deliver(member, record(name, datacenter=datacenter, status=status, incarnation=1))

    assert member.datacenters_left == left


def test_only_suspicions_damp_a_member(core, record):
    member = core("a")
    deliver(member, record("b"), record("c"))
    assert not member.is_damped
    member.set_forward_only(True, 0)
    assert not member.is_damped

    for accuser in "bcb":
        deliver(member, replace(member.me, status=Status.SUSPECT, accuser=accuser))

    assert member.is_damped


def test_a_member_that_has_just_died_receives_its_accusation(core, record):
    """A member that is alive refutes its death."""
    member = core("a")
    death = record("c", status=Status.DEAD)
    deliver(member, record("b"), death)

    addressed = [each for each in run(member, 0.3) if is_sent_to(each, death)]

    assert addressed
    assert all(each.message.updates[0] == death for each in addressed)
