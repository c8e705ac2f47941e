"""States of other members: suspicion, death, refutation and restart."""

import pytest

from gossip import (
    Ack,
    Exchange,
    Gossip,
    Nack,
    Ping,
    Send,
    Settings,
    Status,
)
from tests.gossip.membership_calls import HOME, NS, changes, deliver, run, sent


def test_a_confirmed_suspicion_times_out_sooner(core, record):
    def seconds_to_death(*accusers):
        member = core("a")
        effects = deliver(member, *[record(name) for name in "bcdef"])
        for accuser in accusers:
            effects += deliver(member, record("b", status=Status.SUSPECT, accuser=accuser))
        now = 0
        while member.records["b"].status is Status.SUSPECT:
            for ping in sent(effects, Ping):
                member.receive(Ack(ping.target, 1, ping.seq, member.digest, now), HOME, now)
            now = member.next_deadline()
            effects = member.tick(now)
        return now / NS

    assert seconds_to_death("c") == 9.0
    assert seconds_to_death("c", "d", "e", "f") == 1.5
    assert 1.5 < seconds_to_death("c", "d") < 9.0


@pytest.mark.parametrize(("drawn", "probes"), [(0.0599, ["b"]), (0.0601, [])])
def test_a_share_of_a_large_data_center_probes_a_suspect(core, record, drawn, probes):
    """Twice the wanted confirmations: 2 * 3 of 100 members."""
    member = core("a")
    deliver(member, *[record(f"n{number}") for number in range(99)], record("b"))
    member._states._random.random = lambda: drawn

    effects = deliver(member, record("b", status=Status.SUSPECT, accuser="c"), now=1)

    assert [ping.target for ping in sent(effects, Ping)] == probes


def test_a_leaving_member_that_does_not_answer_gets_no_shards_again(core, record):
    """The datagram with which it left was lost."""
    member = core("a")
    deliver(member, record("b", status=Status.LEAVING, incarnation=1))

    run(member, 3)

    suspect = member.records["b"]
    assert (suspect.status, suspect.is_placed, suspect.is_routed) == (Status.SUSPECT, False, False)
    deliver(member, record("b", status=Status.LEAVING, incarnation=2), now=3 * NS)
    assert member.records["b"].is_routed


def test_a_refutation_ends_the_suspicion(core, record):
    member = core("a")
    deliver(member, record("b", status=Status.SUSPECT, accuser="c"))
    deliver(member, record("b", incarnation=1))

    assert member.records["b"].status is Status.ALIVE
    assert not [each for each in changes(run(member, 0.4)) if each.name == "b"]


@pytest.mark.parametrize("status", [Status.SUSPECT, Status.DEAD])
def test_a_suspect_that_sends_a_message_receives_the_suspicion(core, record, status):
    """memberlist#311: the suspected member was not informed, so it could not refute."""
    member = core("a")
    accusation = record("b", status=status, accuser="c")
    deliver(member, accusation, sender="c", source=("host-c", 1))

    (answer,) = sent(member.receive(Nack("b", 1, 0), HOME, 1), Gossip)
    (ack,) = sent(member.receive(Ping("b", 1, 1, "a", 0), HOME, 1), Ack)

    assert answer.updates == (accusation,)
    assert ack.updates[0] == accusation


def test_members_that_consider_each_other_dead_do_not_loop(core, record):
    """After a partition, two members answered accusations with accusations without end."""
    members = {"a": core("a"), "b": core("b")}
    for name, other in (("a", "b"), ("b", "a")):
        deliver(members[name], record(other, status=Status.DEAD, accuser=name), sender="c")
    message, to = Gossip("a", 1, (members["a"].records["b"],)), "b"

    for _ in range(3):
        answers = members[to].receive(message, HOME, 1)
        if not sent(answers, Gossip):
            break
        (message,), to = sent(answers, Gossip), "a" if to == "b" else "b"

    assert not sent(answers, Gossip)
    assert members["a"].records["b"].status is Status.ALIVE


def test_an_outdated_alive_record_is_answered_with_the_suspicion(core, record):
    """memberlist#311: a restarted member stayed dead because its incarnation was too low."""
    member = core("a")
    accusation = record("b", incarnation=100, status=Status.DEAD)
    deliver(member, accusation, sender="c", source=("host-c", 1))

    effects = deliver(member, record("b", incarnation=1), source=("elsewhere", 1))

    reported = [effect.to for effect in effects if effect.message.updates == (accusation,)]
    assert ("elsewhere", 1) in reported


def test_a_suspicion_of_an_unknown_member_is_disseminated(core, record):
    """memberlist#311: members that had just started ignored such a suspicion."""
    member = core("a")
    deliver(member, record("b"))
    accusation = record("x", incarnation=100, status=Status.DEAD)
    deliver(member, accusation)

    assert any(accusation in each.updates for each in sent(run(member, 0.3), Gossip))


def test_an_exchanged_dead_record_of_a_living_member_starts_a_suspicion(core, record):
    member = core("a")
    deliver(member, record("b"))
    member.merge([record("b", status=Status.DEAD)], 0)

    assert member.records["b"].status is Status.SUSPECT
    assert member.records["b"].is_routed


def test_dead_members_are_forgotten_despite_exchanges(core, record):
    """foca#31: identities that no member could remove grew without bound."""
    member = core("a")
    deliver(member, record("b", status=Status.DEAD))
    run(member, 901)
    assert "b" not in member.records

    member.merge([record("b", status=Status.DEAD)], 901 * NS)

    assert "b" in member.records
    assert "b" not in [each.name for each in member.snapshot()]
    run(member, 1900)
    assert "b" not in member.records


def test_dead_members_are_contacted_rarely_until_forgotten(core, record):
    """corrosion#573: members contacted the unused address of a removed member for two days."""
    member = core("a")
    deliver(member, record("b"))
    deliver(member, *[record(f"gone{number}", status=Status.DEAD) for number in range(50)])
    run(member, Settings.lan().gossip_to_dead)

    calls = contacts_of_dead_members(run(member, 850))
    assert 0 < len(calls) <= 2 * 850 / 10
    run(member, 901)
    assert contacts_of_dead_members(run(member, 3000)) == []


def contacts_of_dead_members(effects):
    addresses = [
        effect.to if isinstance(effect, Send) else effect.with_
        for effect in effects
        if isinstance(effect, Send | Exchange)
    ]
    return [address for address in addresses if address[0].startswith("host-gone")]


def test_a_dead_seed_is_remembered_for_longer(core, record):
    member = core("a")
    deliver(member, record("b", status=Status.ALIVE))
    member.join([HOME], 0)
    deliver(member, record("b", status=Status.DEAD))

    run(member, 3000)
    assert "b" in member.records
    run(member, 3601)
    assert "b" not in member.records


def test_records_of_an_earlier_boot_do_not_affect_the_new_one(core, record):
    """Late records of the old process must not make the new process dead."""
    member = core("a")
    deliver(member, record("b", generation=2))

    deliver(member, *[record("b", incarnation=9, status=status) for status in Status])

    assert member.records["b"] == record("b", generation=2)


def test_a_restart_at_another_address_replaces_the_old_record(core, record):
    """memberlist#157, #189: a restarted member kept its old address."""
    member = core("a")
    deliver(member, record("b"))
    deliver(member, record("b", generation=2, host="new"))

    assert member.records["b"].address == ("new", 7600)
