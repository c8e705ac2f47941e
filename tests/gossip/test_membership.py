"""Laws and bounds of membership, leaving, and pauses of the process."""

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
from tests.gossip.membership_calls import HOME, NS, changes, deliver, others, run, sent


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
    """alertmanager#1412: what was larger than the room in a datagram waited for ever."""
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


def test_a_member_that_has_left_sends_and_accepts_nothing(core, record):
    member = core("a")
    deliver(member, record("b"))
    member.left(0)

    assert member.receive(Ping("b", 1, 1, "a", 0), HOME, 1) == []
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


def test_after_its_own_pause_a_member_declares_nobody_dead(core, record):
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
    # Nobody but the one accuser so far: patient. Three more, and it is over since 1.5 s.
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
