"""Round trips, time-outs and order of probes, and pings on behalf of other members."""

from collections import Counter
from random import Random

import pytest

from gossip import Ack, Membership, Nack, Ping, PingReq, Send, Settings, Status
from gossip.failure_detection.prober import LocalHealth, Rounds
from gossip.members.member_table import Pool
from tests.gossip.conftest import HostClock
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


def sent_at(member, kind, until):
    """Return the times at which messages of one kind are sent, and their receivers."""
    found = []
    while (now := member.next_deadline()) <= until:
        found += [
            (now, effect.to, effect.message)
            for effect in member.tick(now)
            if isinstance(effect, Send) and isinstance(effect.message, kind)
        ]
    return found


@pytest.mark.parametrize(
    ("rtts", "smoothed"),
    [([80], 80), ([80, 160], 90), ([80, 160, 160], 98.75), ([80, 0], 70), ([80, 80.000001], 80)],
)
def test_each_round_trip_counts_for_an_eighth(core, record, rtts, smoothed):
    member = core("a")
    deliver(member, record("b"))
    assert member.rtt_ns("b") is None
    for rtt in rtts:
        began, ping = first_ping(member)
        answer(member, ping, began + round(rtt * MS))

    assert member.rtt_ns("b") == smoothed * MS


@pytest.mark.parametrize(("delay", "rtt"), [(0, 80), (30, 50), (80, 0), (90, 0)])
def test_the_time_in_which_a_member_answers_is_no_part_of_the_round_trip(core, record, delay, rtt):
    member = core("a")
    deliver(member, record("b"))
    began, ping = first_ping(member)

    answer(member, ping, began + 80 * MS, delay=delay * MS)

    assert member.rtt_ns("b") == rtt * MS


@pytest.mark.parametrize("is_second", [False, True])
def test_a_round_trip_begins_with_the_ping_that_was_answered(record, is_second):
    clock = HostClock()
    member = Membership(record("a"), Settings.lan(), Random(1), 0, clock)
    deliver(member, record("b"))
    began, first = first_ping(member)
    again, second = first_ping(member)
    assert again == began + 200 * MS

    answered, ping = (again, second) if is_second else (began, first)
    answer(member, ping, again + 80 * MS, stamp=again + 40 * MS)

    rtt = again + 80 * MS - answered
    assert member.rtt_ns("b") == rtt
    assert clock.samples == [("b", again + 40 * MS - (answered + rtt // 2), rtt)]
    answer(member, second, again + 90 * MS)  # The probe has ended.
    assert member.rtt_ns("b") == rtt


@pytest.mark.parametrize(
    ("gain", "offset"),
    [
        (0, 0),
        (1, -1),  # The answer was stamped by a clock that was then 1 ns ahead of the local one.
        (50 * MS, -50 * MS),
        (50 * MS + 1, None),
        (-80 * MS, 80 * MS),
        (-80 * MS - 1, None),
    ],
)
def test_an_offset_is_measured_unless_the_local_clock_was_set_meanwhile(record, gain, offset):
    """After a host's clock was set back, the local clock stands still."""
    clock = HostClock()
    member = Membership(record("a"), Settings.lan(), Random(1), 0, clock)
    deliver(member, record("b"))
    began, ping = first_ping(member)

    clock.ahead = gain
    answer(member, ping, began + 80 * MS, stamp=began + 40 * MS)

    assert clock.samples == ([] if offset is None else [("b", offset, 80 * MS)])


@pytest.mark.parametrize(
    ("rtt", "timeout"), [(None, 200), (1, 50), (16, 50), (17, 51), (66, 198), (67, 200), (90, 200)]
)
def test_a_probe_asks_helpers_after_three_round_trips_from_50_to_200_ms(core, record, rtt, timeout):
    member = core("a")
    deliver(member, record("b"), record("c", status=Status.LEFT))
    if rtt is not None:
        began, ping = first_ping(member)
        answer(member, ping, began + rtt * MS)

    began, ping = first_ping(member)

    [(at, _, again), *_] = sent_at(member, Ping, began + 450 * MS)
    assert (at, again.seq) == (began + timeout * MS, ping.seq + 1)


@pytest.mark.parametrize("score", [1, 2, 3, 8])
def test_a_member_in_bad_health_probes_more_slowly(core, record, score):
    member = core("a")
    deliver(member, record("b"))
    for _ in range(score):  # Each pause of this process makes its health worse by one.
        began = member.next_deadline() + 10 * NS
        effects = member.tick(began)
    [ping] = sent(effects, Ping)
    assert member.health == score

    [(at, _, again)] = sent_at(member, Ping, began + (score + 1) * NS // 2 - 1)

    assert (at, again.seq) == (began + (score + 1) * 200 * MS, ping.seq + 1)
    assert member.counters["probes_failed"] == 0
    member.tick(began + (score + 1) * NS // 2)
    assert member.counters["probes_failed"] == 1


@pytest.mark.parametrize(
    ("changes", "score"),
    [([1], 1), ([8], 8), ([9], 8), ([3, -1], 2), ([3, -3], 0), ([3, -4], 0), ([-1, 2], 2)],
)
def test_the_health_score_is_bounded_and_scales_durations(changes, score):
    health = LocalHealth(8, is_used=True)
    for change in changes:
        health.change(change)

    assert health.score == score
    assert health.scaled(500) == 500 * (score + 1)


def test_a_new_member_is_probed_in_the_current_round_at_a_random_place():
    """Each of the three places is equally probable."""
    places = Counter()
    for seed in range(3000):
        pool = Pool()
        rounds = Rounds(pool, Random(seed))
        for name in "abc":
            pool.add(name)
        rounds.next()
        pool.add("new")
        rounds.add("new")
        places[[rounds.next() for _ in range(3)].index("new")] += 1

    assert all(900 < places[place] < 1100 for place in range(3))  # 1000 each, four sigma.


def test_members_that_are_gone_are_left_out_of_the_round():
    pool = Pool()
    rounds = Rounds(pool, Random(1))
    assert rounds.next() is None
    for name in "abc":
        pool.add(name)
    first = rounds.next()
    [gone, *_] = set("abc") - {first}
    pool.drop(gone)

    [last] = set("abc") - {first, gone}
    assert rounds.next() == last
    assert {rounds.next(), rounds.next()} == {first, last}


def test_a_member_is_not_probed_twice_at_a_time(core, record):
    member = core("a")
    deliver(member, record("b"))
    began, ping = first_ping(member)

    assert member.report_unreachable("b", began) == []
    answer(member, ping, began + 1)

    [again] = sent(member.report_unreachable("b", began + 1), Ping)
    assert again.seq == ping.seq + 1


@pytest.mark.parametrize(
    ("sender", "generation", "ends", "has_rtt"),
    [
        ("node-b", 2, True, True),
        ("node-b", 3, True, True),
        ("node-b", 1, False, False),  # An earlier process of the member.
        ("c", 1, True, False),  # A helper that received the member's answer.
    ],
)
def test_the_answer_of_the_member_or_of_a_helper_ends_a_probe(
    core, record, sender, generation, ends, has_rtt
):
    member = core("a")
    deliver(member, record("node-b", generation=2))
    began, ping = first_ping(member)

    answer(member, ping, began + MS, sender=sender, generation=generation)

    assert (member.rtt_ns("node-b") is not None) is has_rtt
    assert member.counters["saved_indirectly"] == (ends and not has_rtt)
    is_running = not sent(member.report_unreachable("node-b", began + MS), Ping)
    assert is_running is not ends


def test_an_answer_to_no_probe_has_no_effect(core, record):
    member = core("a")
    deliver(member, record("b"))
    began, ping = first_ping(member)

    answer(member, Ping("a", 1, ping.seq + 1, "b", 0), began + MS)

    assert member.rtt_ns("b") is None
    assert member.report_unreachable("b", began + MS) == []


@pytest.mark.parametrize(("answered", "score"), [(0, 3), (1, 2), (2, 1), (3, 0), (4, 0)])
def test_each_silent_helper_of_a_failed_probe_makes_the_health_worse(core, record, answered, score):
    member = core("a")
    deliver(member, record("b"), *[record(name) for name in "cde"])
    while not (requests := sent(member.tick(member.next_deadline()), PingReq)):
        pass
    assert len(requests) == 3

    for _ in range(answered):
        member.receive(Nack("c", 1, requests[0].seq), HOME, member.next_deadline() - 1)
    while member.counters["probes_failed"] == 0:
        member.tick(member.next_deadline())

    assert member.health == score


def test_a_failed_probe_without_helpers_makes_the_health_worse_by_one(core, record):
    member = core("a")
    deliver(member, record("b"))
    while member.counters["probes_failed"] == 0:
        member.tick(member.next_deadline())

    assert member.health == 1


def helpers_of(core, record, here, there):
    """Return the data centers of the helpers that probe a member of another data center."""
    member = core("a")
    near = [record(f"near{number}") for number in range(here)]
    far = [record(f"far{number}", datacenter="dc2") for number in range(there)]
    deliver(member, record("b", datacenter="dc2"), *near, *far)
    member.report_unreachable("b", 1)
    messages = run_answered(member, NS, silent="b")
    asked = [to[0] for to, message in messages if isinstance(message, PingReq)]
    assert len(asked) == len(set(asked))
    return Counter(host.removeprefix("host-").rstrip("0123456789") for host in asked)


@pytest.mark.parametrize(
    ("here", "there", "far", "near"),
    [(5, 5, 3, 0), (5, 3, 3, 0), (5, 2, 2, 1), (5, 1, 1, 2), (5, 0, 0, 3), (1, 1, 1, 1)],
)
def test_helpers_are_of_the_data_center_of_the_probed_member_if_possible(
    core, record, here, there, far, near
):
    found = helpers_of(core, record, here, there)

    assert (found["far"], found["near"]) == (far, near)


@pytest.mark.parametrize(
    ("datacenter", "nack_at", "ends_at"), [("dc1", 160, 500), ("dc2", 640, 2000)]
)
@pytest.mark.parametrize("is_known", [True, False])
def test_a_helper_waits_for_an_answer_as_long_as_for_its_own_probes(
    core, record, datacenter, nack_at, ends_at, is_known
):
    if not is_known:
        nack_at, ends_at = 160, 500  # The times of the helper's own data center.
    target = record("b", datacenter=datacenter)

    def relaying():
        helper = core("c")
        deliver(helper, record("a"))
        if is_known:
            deliver(helper, target)
        request = PingReq("a", 1, 9, "b", target.address)
        [effect] = helper.receive(request, ("host-a", 7600), 0)
        assert (effect.to, effect.message.target) == (target.address, "b")
        return helper, effect.message

    helper, _ = relaying()
    nacks = [each for each in sent_at(helper, Nack, 3 * NS) if each[2].seq == 9]
    assert [(at, to) for at, to, _ in nacks] == [(nack_at * MS, ("host-a", 7600))]

    for end, is_relayed in ((ends_at - 1, True), (ends_at, False)):
        helper, ping = relaying()
        run(helper, end / 1000)
        answers = sent(answer(helper, ping, end * MS), Ack)
        assert [each.seq for each in answers] == ([9] if is_relayed else [])


def test_only_the_answer_of_the_requested_member_is_forwarded(core, record):
    helper = core("c")
    deliver(helper, record("a"), record("b"), record("d"))
    [ping] = sent(helper.receive(PingReq("a", 1, 9, "b", HOME), ("host-a", 7600), 0), Ping)

    assert sent(answer(helper, ping, MS, sender="d"), Ack) == []


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_helper_forwards_the_record_that_the_probed_member_sent(core, record, is_sent):
    """It may refute the suspicion of the member that requested the probe."""
    helper = core("c")
    deliver(helper, record("a"), record("b"))
    run_answered(helper, 10 * NS)  # No update is waiting any more.
    request = PingReq("a", 1, 9, "b", HOME)
    [ping] = sent(helper.receive(request, ("host-a", 7600), 10 * NS), Ping)
    refutation = record("b", incarnation=3)
    updates = (refutation,) if is_sent else ()

    effects = helper.receive(Ack("b", 1, ping.seq, 0, 0, 0, updates), HOME, 10 * NS + 1)

    [(to, ack)] = [(each.to, each.message) for each in effects if sent([each], Ack)]
    assert (to, ack.sender, ack.seq) == (("host-a", 7600), "c", 9)
    assert ack.updates == updates


@pytest.mark.parametrize("which", ["local_dc", "remote_dc"])
def test_the_timeout_of_a_probe_is_that_of_the_members_data_center(core, record, which):
    probing = Settings.lan().probing(which)
    member = core("a")
    deliver(member, record("b", datacenter="dc1" if which == "local_dc" else "dc2"))
    began, _ = first_ping(member)

    [(at, _, _)] = sent_at(member, Ping, began + round(probing.interval * NS) - 1)

    assert at == began + round(probing.timeout * NS)


@pytest.mark.parametrize("datacenter", ["dc1", "dc2"])
@pytest.mark.parametrize("seed", range(3))
def test_a_new_member_is_probed_before_the_next_round(core, record, datacenter, seed):
    member = core("a", seed=seed)
    deliver(member, *[record(f"n{number}", datacenter=datacenter) for number in range(10)])
    probed = []

    while len(probed) < 11:
        now = member.next_deadline()
        for ping in sent(member.tick(now), Ping):
            answer(member, ping, now)
            probed.append(ping.target)
            if len(probed) == 1:
                deliver(member, record("new", datacenter=datacenter), now=now)

    assert len(set(probed)) == 11


@pytest.mark.parametrize("helpers", [0, 1, 2, 3, 5])
def test_each_helper_is_asked_once(core, record, helpers):
    member = core("a")
    deliver(member, record("b"), *[record(f"n{number}") for number in range(helpers)])
    member.report_unreachable("b", 1)

    messages = run_answered(member, NS // 2, silent="b")

    asked = [to for to, message in messages if isinstance(message, PingReq)]
    assert len(asked) == len(set(asked)) == min(helpers, 3)


@pytest.mark.parametrize(
    ("accused", "refutes"), [("m", True), ("a", False), ("z", False), (None, False)]
)
def test_the_answer_to_an_accusation_carries_the_refutation_first(core, record, accused, refutes):
    member = core("m")
    member.found([record("b"), record("c")], 0)
    updates = (record(accused, status=Status.SUSPECT, accuser="c"),) if accused else ()

    [ack] = sent(member.receive(Ping("b", 1, 7, "m", 0, updates), HOME, 0), Ack)

    names = [each.name for each in ack.updates]
    if refutes:
        assert ack.updates[0] == member.me == record("m", incarnation=1)
    assert names == ([accused] if accused else [])
