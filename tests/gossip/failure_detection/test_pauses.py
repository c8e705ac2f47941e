"""Effects of pauses of the local process on probes, suspicions and the local health."""

import pytest
from msgspec.structs import replace

from gossip import Gossip, Ping, Settings, Status
from tests.gossip.membership_calls import (
    HOME,
    NS,
    answer,
    deliver,
    first_ping,
    run,
    run_answered,
    sent,
)

MS = NS // 1000


@pytest.mark.parametrize(("lag", "health"), [(100 * MS, 0), (100 * MS + 1, 1), (5 * NS, 1)])
@pytest.mark.parametrize("way", ["timer", "datagram"])
def test_a_call_more_than_100_ms_late_makes_the_health_worse(core, record, lag, health, way):
    member = core("a")
    deliver(member, record("b"))
    run(member, 1)
    before, now = member.health, member.next_deadline() + lag

    if way == "timer":
        member.tick(now)
    else:
        member.receive(Gossip("b", 1), HOME, now)

    assert member.health == before + health


def test_a_pause_is_noticed_once(core, record):
    member = core("a")
    deliver(member, record("b"))
    run(member, 0.4)
    assert member.health == 0
    now = member.next_deadline() + 3 * NS

    for later in (0, 50 * MS, 100 * MS):
        member.receive(Gossip("b", 1), HOME, now + later)
    assert (member.health, member.counters["own_pauses"]) == (1, 1)
    member.receive(Gossip("b", 1), HOME, now + 201 * MS)  # The timers have still not run.

    assert member.health == 2


@pytest.mark.parametrize(
    ("lag", "died_after"),
    [
        (0.05, 1.5),  # Not late.
        (0.2, 1.5 + 0.2),
        (0.8, 1.5 + 0.8),
        (1.0, 1.5 + 1.0),  # Two probe intervals.
    ],
)
def test_a_short_pause_prolongs_suspicions_by_its_length(core, record, lag, died_after):
    """The suspect is declared dead at the earliest one probe interval after the pause."""
    late, died = death_after_pause(core, record, lag)

    assert died == pytest.approx(max(died_after, late + 0.5 if lag > 0.1 else 0))


@pytest.mark.parametrize("lag", [1.01, 1.3, 60])
def test_after_a_long_pause_suspicions_begin_again_one_interval_later(core, record, lag):
    """Without accusers, a suspicion lasts 9 s."""
    late, died = death_after_pause(core, record, lag)

    assert died == pytest.approx(late + 0.5 + 9)


def death_after_pause(core, record, lag):
    """Return the times of the end of a pause and of the death of a suspect, both in seconds.

    The suspicion began at 0 and would last 1.5 s, because several members share it. All other
    members answer.
    """
    member = core("a")
    member.found([record(name) for name in "bcdefghij"], 0)
    accusations = [record("b", status=Status.SUSPECT, accuser=accuser) for accuser in "cdef"]
    deliver(member, *accusations)
    run_answered(member, NS // 2)
    late = member.next_deadline() + round(lag * NS)
    for ping in sent(member.tick(late), Ping):
        answer(member, ping, late)
    at = late
    while member.records["b"].status is Status.SUSPECT:
        at = member.next_deadline()
        run_answered(member, at)
    return late / NS, at / NS


def test_a_probe_that_was_running_during_a_pause_does_not_fail(core, record):
    member = core("a")
    deliver(member, record("b"))
    _, ping = first_ping(member)

    effects = member.tick(member.next_deadline() + 10 * NS)

    assert member.counters["probes_failed"] == 0
    [again] = sent(effects, Ping)
    assert again.seq == ping.seq + 1


def test_without_own_pauses_a_late_probe_fails(core, record):
    member = core("a", settings=replace(Settings.lan(), own_pauses=False))
    deliver(member, record("b"))
    first_ping(member)

    member.tick(member.next_deadline() + 10 * NS)

    assert member.counters["probes_failed"] == 1
    assert member.counters["own_pauses"] == 0
    assert member.records["b"].status is Status.SUSPECT
