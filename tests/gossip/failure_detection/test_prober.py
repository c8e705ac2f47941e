"""Probes, indirect probes and their answers."""

import pytest

from gossip import (
    Ack,
    Nack,
    Ping,
    PingReq,
    Send,
    Settings,
    Status,
)
from tests.gossip.membership_calls import HOME, NS, changes, deliver, first_ping, run, sent


def test_an_ack_carries_the_digest_and_the_clock(core):
    member = core("a")

    (ack,) = sent(member.receive(Ping("b", 1, 7, "a", 0), HOME, 5), Ack)

    assert (ack.seq, ack.digest, ack.stamp) == (7, member.digest, 5)


def test_a_ping_for_another_member_is_not_answered(core):
    member = core("a")

    assert member.receive(Ping("b", 1, 7, "c", 0), HOME, 0) == []
    assert member.counters["refused_not_me"] == 1


def test_each_member_is_probed_once_a_round(core, record):
    member = core("a")
    deliver(member, record("b"), record("c"), record("d"))
    probed = []
    while len(probed) < 9:
        now = member.next_deadline()
        for ping in sent(member.tick(now), Ping):
            probed.append(ping.target)
            member.receive(Ack(ping.target, 1, ping.seq, member.digest, now), HOME, now)

    assert [sorted(probed[at : at + 3]) for at in (0, 3, 6)] == [["b", "c", "d"]] * 3


def test_an_ack_yields_round_trip_and_clock_offset(core, record):
    member = core("a")
    deliver(member, record("b"))
    began, ping = first_ping(member)
    ack = Ack("b", 1, ping.seq, member.digest, began + 50_000_042, delay=80)

    member.receive(ack, HOME, began + 100_000_080)

    assert member.rtt_ns("b") == 100_000_000
    assert member._prober._clock.samples == [("b", 42, 100_000_000)]


def test_a_probe_during_a_clock_change_yields_no_offset(core, record):
    """When all clocks of a cluster were set at once, one member measured an offset of a minute."""
    member = core("a")
    deliver(member, record("b"))
    began, ping = first_ping(member)
    minute = 60 * NS
    member._prober._clock.ahead = minute
    ack = Ack("b", 1, ping.seq, member.digest, began + minute + 1)

    member.receive(ack, HOME, began + 2)

    assert member.rtt_ns("b") == 2
    assert member._prober._clock.samples == []


def test_a_clock_that_stands_still_is_measured_against_distant_members(core, record):
    """The clock of a host was set back by an hour, and all other members were far away."""
    member = core("a")
    deliver(member, record("b"))
    began, ping = first_ping(member)
    rtt = 90_000_000
    member._prober._clock.ahead = -rtt
    ack = Ack("b", 1, ping.seq, member.digest, began + rtt // 2)

    member.receive(ack, HOME, began + rtt)

    assert member._prober._clock.samples == [("b", rtt, rtt)]


def test_a_probe_during_a_jump_of_the_clock_to_an_earlier_time_yields_no_offset(core, record):
    member = core("a")
    deliver(member, record("b"))
    began, ping = first_ping(member)
    member._prober._clock.ahead = -60 * NS

    member.receive(Ack("b", 1, ping.seq, member.digest, began + 1), HOME, began + 2)

    assert member._prober._clock.samples == []


def test_a_silent_member_is_probed_indirectly_then_suspected_then_dead(core, record):
    member = core("a")
    deliver(member, *[record(name) for name in "bcdef"])

    effects = run(member, 60)

    assert {request.target for request in sent(effects, PingReq)} <= set("bcdef")
    histories = {name: [] for name in "bcdef"}
    for after in changes(effects):
        histories[after.name].append(after.status)
    assert all(each == [Status.SUSPECT, Status.DEAD] for each in histories.values()), histories


@pytest.mark.parametrize("seed", range(10))
def test_neither_the_target_nor_a_suspect_helps_with_an_indirect_probe(core, record, seed):
    """A suspect probably does not answer."""
    member = core("a", seed=seed)
    suspects = [record(name, status=Status.SUSPECT, accuser="f") for name in "bc"]
    deliver(member, *suspects, *[record(name) for name in "def"])
    effects = []
    while not sent(effects, PingReq):
        effects = member.tick(member.next_deadline())

    asked = [each for each in effects if isinstance(each, Send)]
    asked = [(each.message.target, each.to) for each in asked if isinstance(each.message, PingReq)]
    for target in {name for name, _ in asked}:
        helpers = {to for name, to in asked if name == target}
        assert helpers == {record(name).address for name in "def" if name != target}


def test_one_lost_datagram_causes_no_suspicion_without_helpers(core, record):
    member = core("a")
    deliver(member, record("b"))

    def pings():
        found = []
        while not found:
            now = member.next_deadline()
            found = sent(member.tick(now), Ping)
        return found[0], now

    lost, _ = pings()
    again, now = pings()
    member.receive(Ack("b", 1, again.seq, member.digest, 0), HOME, now + 1)
    run(member, 0.99)

    assert (again.target, again.seq) == ("b", lost.seq + 1)
    assert member.records["b"].status is Status.ALIVE


def test_nacks_of_helpers_keep_the_local_health_good(core, record):
    def health_after_a_failed_probe(*, nacks):
        member = core("a")
        deliver(member, *[record(name) for name in "bcdef"])
        requests = []
        while member.counters["probes_failed"] == 0:
            requests = sent(member.tick(member.next_deadline()), PingReq)
            for request in requests if nacks else []:
                member.receive(Nack("c", 1, request.seq), HOME, member.next_deadline() - 1)
        return member.health

    assert health_after_a_failed_probe(nacks=True) == 0
    assert health_after_a_failed_probe(nacks=False) == 3


def test_the_counters_state_how_many_probes_were_sent_and_failed(core, record):
    member = core("a")
    deliver(member, *[record(name) for name in "bcdef"])
    effects = []
    while member.counters["probes_failed"] == 0:
        effects += member.tick(member.next_deadline())
        for request in sent(effects, PingReq)[-1:]:
            member.receive(Nack("c", 1, request.seq), HOME, member.next_deadline() - 1)

    repeated = {request.seq for request in sent(effects, PingReq)}
    assert member.counters["probes"] == len(sent(effects, Ping)) - len(repeated)
    assert member.counters["indirect_probes"] == len(sent(effects, PingReq))
    assert member.counters["probes_failed"] == 1
    assert member.counters["nacks"] == 3  # One for each helper, although more were received.


def test_an_ack_improves_the_local_health_by_one(core, record):
    member = core("a")
    deliver(member, record("b"))
    member._health.change(2)
    _, ping = first_ping(member)

    member.receive(Ack("b", 1, ping.seq, member.digest, 0), HOME, member.next_deadline() - 1)

    assert member.health == 1


def test_a_member_runs_at_most_16_probes(core, record):
    member = core("a")
    names = [f"n{number}" for number in range(20)]
    deliver(member, *[record(name) for name in names])

    probed = [sent(member.report_unreachable(name, 1), Ping) for name in names]

    assert [len(pings) for pings in probed] == [1] * 16 + [0] * 4


def test_a_helper_refuses_more_than_256_requests_at_a_time(core, record):
    helper = core("c")
    deliver(helper, record("a"), record("b"))

    relayed = [
        len(sent(helper.receive(PingReq("a", 1, seq, "b", HOME), HOME, 0), Ping))
        for seq in range(258)
    ]

    assert relayed == [1] * 256 + [0] * 2
    assert helper.counters["refused_relays"] == 2


def test_a_helper_relays_an_ack_or_sends_a_nack(core, record):
    helper = core("c")
    deliver(helper, record("a"), record("b"))
    request = PingReq("a", 1, 9, "b", HOME)

    (ping,) = sent(helper.receive(request, ("host-a", 7600), 0), Ping)
    (ack,) = sent(helper.receive(Ack("b", 1, ping.seq, 0, 0), HOME, 1), Ack)
    assert (ack.sender, ack.seq) == ("c", 9)
    assert not sent(run(helper, 0.2), Nack)

    helper.receive(request, ("host-a", 7600), NS)
    assert [nack.seq for nack in sent(run(helper, 1.2), Nack)] == [9]


def test_an_unreachable_member_is_probed_at_once(core, record):
    member = core("a")
    deliver(member, record("b"), record("c"))

    (ping,) = sent(member.report_unreachable("c", 1), Ping)

    assert ping.target == "c"
    assert member.report_unreachable("c", 2) == member.report_unreachable("unknown", 2) == []


def test_members_of_other_data_centers_are_probed_more_slowly(core, record):
    member = core("a")
    deliver(member, record("b", datacenter="dc2"))
    suspected = dead = 0.0
    while not dead:
        now = member.next_deadline()
        for after in changes(member.tick(now)):
            suspected = suspected or now / NS
            dead = now / NS if after.status is Status.DEAD else 0.0

    assert 2.0 <= suspected <= 4.0
    assert dead - suspected == pytest.approx(20.0)


def test_without_the_buddy_system_pings_carry_no_suspicion(core, record):
    plain = core("a", settings=Settings.lan().without_lifeguard())
    accusation = record("b", status=Status.SUSPECT, accuser="c")
    deliver(plain, accusation, sender="c", source=("host-c", 1))

    assert plain.receive(Nack("b", 1, 0), HOME, 1) == []


def test_a_member_without_others_sends_no_probes_and_does_not_wake_for_them(core):
    member = core("a")
    run(member, 3)
    ticks = 0
    while member.next_deadline() <= 600 * NS:
        member.tick(member.next_deadline())
        ticks += 1
    assert ticks < 100  # Only announcements and exchanges; a probe would come twice a second.


@pytest.mark.parametrize("datacenter", ["dc1", "dc2"])
@pytest.mark.parametrize("way", ["gossip", "founders"])
def test_probes_start_when_the_first_other_member_appears_late(core, record, datacenter, way):
    member = core("a")
    run(member, 60)
    other = record("b", datacenter=datacenter)

    if way == "gossip":
        deliver(member, other, now=60 * NS)
    else:
        member.found([member.me, other], 60 * NS)

    probing = Settings.lan().probing("local_dc" if datacenter == "dc1" else "remote_dc")
    at, ping = first_ping(member)
    assert ping.target == "b"
    assert 60 * NS <= at <= (60 + probing.interval) * NS


def test_members_that_appear_late_are_not_probed_at_the_same_time(core, record):
    starts = []
    for seed in range(20):
        member = core("a", seed=seed)
        run(member, 60)
        deliver(member, record("b"), now=60 * NS)
        starts.append(first_ping(member)[0])
    assert len(set(starts)) > 15
