"""Changes of other members' records: what is stored, disseminated, answered and counted."""

from dataclasses import replace

import pytest

from gossip import Ack, Exchange, Gossip, Nack, Ping, Send, Settings, Status
from tests.gossip.membership_calls import (
    HOME,
    NS,
    changes,
    deliver,
    first_ping,
    is_sent_to,
    run,
    run_answered,
    sent,
)

C = ("host-c", 7600)


def names_in_updates(effects):
    """Return the names in the updates of gossip messages."""
    return {each.name for message in sent(effects, Gossip) for each in message.updates}


def member_without_updates(core, record, *names, status=Status.ALIVE):
    """Return a member that knows others and has no updates to send."""
    member = core("m")
    member.found([record(name, status=status) for name in names], 0)
    assert member.pending == 0
    return member


def test_a_record_of_any_name_is_stored_from_an_exchange(core, record):
    member = core("m")
    listed = [record("a"), record("z", datacenter="dc2")]

    effects = member.merge(listed, 0)

    assert changes(effects) == listed
    assert [member.records[each.name] for each in listed] == listed


def test_the_first_member_list_is_not_disseminated_but_the_own_record_is(core, record):
    """No other member received the record of this member before."""
    member = core("m")
    member.merge([record("b"), record("c")], 0)

    assert member.pending == 1
    assert names_in_updates(run(member, 0.2)) == {"m"}


def test_records_from_later_exchanges_are_disseminated(core, record):
    member = member_without_updates(core, record, "b")

    member.merge([record("d")], 0)

    assert names_in_updates(run(member, 0.2)) == {"d"}


def test_records_of_unknown_members_that_are_gone_are_not_disseminated(core, record):
    member = member_without_updates(core, record, "b")

    member.merge([record("d", status=Status.DEAD), record("e", status=Status.LEFT)], 0)

    assert member.pending == 0
    assert {"d", "e"} <= member.records.keys()
    assert {each.name for each in member.snapshot()} == {"m", "b"}


def test_only_a_member_that_was_alone_soon_exchanges_again(core, record):
    member = core("m")
    deliver(member, record("b"))
    assert [each for each in run(member, 0.8) if isinstance(each, Exchange)]

    member = member_without_updates(core, record, "b")
    deliver(member, record("c"))

    assert not [each for each in run(member, 0.8) if isinstance(each, Exchange)]
    assert names_in_updates(run(member, 0.8)) <= {"b", "c"}


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"status": Status.DEAD}, Status.SUSPECT),
        ({"status": Status.DEAD, "incarnation": 1}, Status.SUSPECT),
        ({"status": Status.DEAD, "generation": 2}, Status.DEAD),  # A later process has ended.
        ({"status": Status.DEAD, "generation": 0}, Status.ALIVE),
        ({"status": Status.SUSPECT}, Status.SUSPECT),
        ({"status": Status.LEFT}, Status.LEFT),
        ({"status": Status.LEAVING}, Status.LEAVING),
        ({"status": Status.ALIVE, "incarnation": 1}, Status.ALIVE),
        ({"status": Status.JOINING, "generation": 2}, Status.JOINING),
    ],
)
def test_of_exchanged_records_only_a_death_becomes_a_suspicion(core, record, change, status):
    member = member_without_updates(core, record, "b")

    member.merge([record("b", **change)], 0)

    assert member.records["b"].status is status


@pytest.mark.parametrize("status", [Status.DEAD, Status.LEFT])
def test_an_exchanged_death_of_a_member_that_is_gone_changes_nothing(core, record, status):
    member = core("m")
    gone = record("b", status=status)
    deliver(member, gone)

    assert changes(member.merge([record("b", status=Status.DEAD, incarnation=3)], 0)) == []
    assert member.records["b"] is gone


def test_an_exchanged_death_of_a_suspect_is_no_second_suspicion(core, record):
    member = member_without_updates(core, record, "b")
    suspicion = record("b", status=Status.SUSPECT, accuser="c")
    deliver(member, suspicion)

    effects = member.merge([record("b", status=Status.DEAD)], 0)

    assert changes(effects) == []
    assert member.records["b"] is suspicion


def test_an_exchanged_death_makes_the_receiver_probe_the_dead_member(core, record):
    member = member_without_updates(core, record, "b", "c", "d", "e")

    pings = sent(member.merge([record("b", status=Status.DEAD)], 1), Ping)

    assert [ping.target for ping in pings] == ["b"]


def test_a_new_accuser_of_a_suspect_is_disseminated_once(core, record):
    member = member_without_updates(core, record, *"bcdefgh")
    pending = []
    for number, accuser in enumerate(("c", "c", "d", "d", "")):
        now = number * NS // 4
        deliver(member, record("b", status=Status.SUSPECT, accuser=accuser), now=now)
        pending.append(member.pending)
        run_answered(member, now + NS // 4)

    assert pending == [1, 0, 1, 0, 0]


@pytest.mark.parametrize("known", [Status.ALIVE, Status.LEAVING, Status.SUSPECT, Status.DEAD])
@pytest.mark.parametrize("received", Status)
def test_only_an_outdated_record_of_an_accused_member_is_answered(core, record, known, received):
    member = core("m")
    newer = record("b", incarnation=5, status=known)
    deliver(member, newer)

    effects = deliver(member, record("b", incarnation=4, status=received), sender="c", source=C)

    is_answered = known in (Status.SUSPECT, Status.DEAD) and received <= Status.LEAVING
    answers = [(each.to, each.message.updates) for each in effects]
    assert answers == ([(C, (newer,))] if is_answered else [])
    assert member.counters["updates_stale"] == 1


@pytest.mark.parametrize(
    ("history", "deaths", "flaps"),
    [
        ([Status.DEAD], 0, 0),  # It was never known as alive.
        ([Status.ALIVE, Status.DEAD], 1, 0),
        ([Status.ALIVE, Status.SUSPECT, Status.DEAD], 1, 0),
        ([Status.ALIVE, Status.DEAD, Status.LEFT], 1, 0),
        ([Status.ALIVE, Status.LEFT], 0, 0),
        ([Status.ALIVE, Status.LEFT, Status.DEAD], 0, 0),
        ([Status.ALIVE, Status.DEAD, Status.DEAD], 1, 0),
        ([Status.ALIVE, Status.DEAD, Status.ALIVE], 1, 1),
        ([Status.ALIVE, Status.SUSPECT, Status.ALIVE], 0, 0),
        ([Status.ALIVE, Status.LEFT, Status.ALIVE], 0, 0),
        ([Status.ALIVE, Status.DEAD, Status.ALIVE, Status.DEAD], 2, 1),
    ],
)
def test_deaths_and_returns_of_members_are_counted(core, record, history, deaths, flaps):
    member = core("m")
    for incarnation, status in enumerate(history):
        deliver(member, record("b", incarnation=incarnation, status=status))

    assert (member.counters["deaths"], member.counters["flaps"]) == (deaths, flaps)


def test_a_restart_of_a_dead_member_is_no_return(core, record):
    member = core("m")
    deliver(member, record("b"), record("b", status=Status.DEAD), record("b", generation=2))

    assert (member.counters["deaths"], member.counters["flaps"]) == (1, 0)


@pytest.mark.parametrize(
    ("change", "is_suspected"),
    [
        ({}, True),
        ({"incarnation": 1}, True),
        ({"generation": 2}, False),
        ({"status": Status.LEFT}, False),
        ({"status": Status.DEAD}, False),
    ],
)
def test_a_failed_probe_is_ignored_after_its_target_restarted_or_left(
    core, record, change, is_suspected
):
    member = member_without_updates(core, record, "b")
    began, _ = first_ping(member)
    changed = record("b", **change)
    deliver(member, changed, now=began)
    while member.counters["probes_failed"] == 0:
        member.tick(member.next_deadline())

    expected = replace(changed, status=Status.SUSPECT, accuser="m") if is_suspected else changed
    assert member.records["b"] == expected
    assert member.counters["suspicions"] == is_suspected


def test_a_failed_probe_of_a_suspect_confirms_the_suspicion(core, record):
    member = member_without_updates(core, record, *"bcdefgh")
    first_ping(member)
    deadlines = []
    deliver(member, record("b", status=Status.SUSPECT, accuser="c"), now=member.next_deadline())
    member.report_unreachable("b", member.next_deadline())
    while member.records["b"].status is Status.SUSPECT:
        deadlines.append(member.next_deadline())
        member.tick(deadlines[-1])

    assert deadlines[-1] < 8 * NS  # Without a confirmation, a suspicion lasts 9 s.


def test_this_member_declares_a_silent_suspect_dead(core, record):
    member = core("m")
    deliver(member, record("b", status=Status.SUSPECT, incarnation=4, accuser="c"))

    run(member, 10)

    assert member.records["b"] == record("b", status=Status.DEAD, incarnation=4, accuser="m")


@pytest.mark.parametrize("status", [Status.DEAD, Status.LEFT])
def test_the_round_trip_of_a_member_that_is_gone_is_forgotten(core, record, status):
    member = core("m")
    deliver(member, record("b"))
    began, ping = first_ping(member)
    member.receive(Ack("b", 1, ping.seq, member.digest, 0), HOME, began + 5)
    assert member.rtt_ns("b") == 5

    deliver(member, record("b", status=status, incarnation=1), now=began + 5)

    assert member.rtt_ns("b") is None


@pytest.mark.parametrize(
    ("status", "accuses_us", "answered"),
    [
        (Status.ALIVE, True, []),
        (Status.SUSPECT, False, ["b"]),
        (Status.SUSPECT, True, ["b", "m"]),
        (Status.DEAD, False, ["b"]),
        (Status.DEAD, True, ["b", "m"]),
        (Status.LEFT, True, []),
    ],
)
def test_an_accused_sender_receives_its_record_and_ours_if_it_accuses_us(
    core, record, status, accuses_us, answered
):
    member = core("m")
    deliver(member, record("b", status=status))
    updates = (record("m", status=Status.SUSPECT, accuser="b"),) if accuses_us else ()

    effects = member.receive(Nack("b", 1, 0, updates), HOME, 0)

    answers = [[each.name for each in message.updates] for message in sent(effects, Gossip)]
    assert answers == ([answered] if answered else [])


def test_an_earlier_process_of_an_accused_member_receives_no_accusation(core, record):
    member = core("m")
    deliver(member, record("b", generation=2, status=Status.SUSPECT))

    assert member.receive(Nack("b", 1, 0), HOME, 0) == []


@pytest.mark.parametrize("has_buddy", [True, False])
def test_a_new_suspect_is_informed_and_probed_again(core, record, has_buddy):
    """The answer to an accusation is its refutation."""
    settings = Settings.lan()
    member = core("m", settings=settings if has_buddy else settings.without_lifeguard())
    member.found([record(f"n{number}") for number in range(30)], 0)
    _, ping = first_ping(member)
    effects = []
    while member.counters["probes_failed"] == 0:
        effects = member.tick(member.next_deadline())

    accusation = record(ping.target, status=Status.SUSPECT, accuser="m")
    informed = [each for each in effects if is_sent_to(each, accusation)]
    is_told = Send(accusation.address, Gossip("m", 1, (accusation,))) in informed
    pings = [each.target for each in sent(effects, Ping)]
    assert member.records[ping.target] == accusation
    assert is_told is has_buddy
    assert (accusation.name in pings) is has_buddy
