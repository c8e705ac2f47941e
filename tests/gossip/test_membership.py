import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip import (
    Ack,
    Changed,
    Conflict,
    Exchange,
    Gossip,
    Nack,
    Ping,
    PingReq,
    Record,
    Send,
    Settings,
    Status,
    encode,
)

NS = 1_000_000_000
HOME = ("host-b", 7600)
LAN = Settings.lan()
SEEDS = (("seed-1", 1), ("seed-2", 2))

others = st.builds(
    Record,
    name=st.sampled_from(["a", "b", "c", "d"]),
    host=st.just("h"),
    port=st.just(1),
    datacenter=st.just("dc1"),
    zone=st.just(""),
    weight=st.just(1.0),
    generation=st.integers(1, 2),
    incarnation=st.integers(0, 2),
    status=st.sampled_from(Status),
    accuser=st.sampled_from(["", "b", "c"]),
)


def sent(effects, kind):
    return [
        effect.message
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, kind)
    ]


def is_word_to(effect, record):
    return isinstance(effect, Send) and effect.to == record.address


def first_ping(member):
    """Tick until it asks somebody; return when that was, and what it asked."""
    while True:
        began = member.next_deadline()
        pings = sent(member.tick(began), Ping)
        if pings:
            return began, pings[0]


def changes(effects):
    return [effect.after for effect in effects if isinstance(effect, Changed)]


def run(core, seconds):
    """Tick whenever something is due."""
    effects = []
    while core.next_deadline() <= seconds * NS:
        effects += core.tick(core.next_deadline())
    return effects


def hear(core, *records, sender="b", source=HOME, now=0):
    return core.receive(Gossip(sender, 1, records), source, now)


@given(st.lists(others, max_size=20))
def test_what_is_believed_never_falls_back(core, listed):
    member = core("me")
    for record in listed:
        before = member.records.get(record.name)
        hear(member, record)
        assert before is None or member.records[record.name].rank >= before.rank


@given(st.lists(others, max_size=12), st.randoms())
def test_news_may_come_in_any_order_and_any_number_of_times(core, listed, random):
    one, other = core("me"), core("me")
    hear(one, *listed)
    shuffled = random.sample(listed, len(listed))
    hear(other, *shuffled, *shuffled)

    assert {name: each.rank for name, each in one.records.items()} == {
        name: each.rank for name, each in other.records.items()
    }
    assert one.digest == other.digest


@given(st.lists(others, max_size=20))
def test_no_member_ever_suspects_itself_and_its_queue_stays_bounded(core, listed):
    member = core("a")
    for record in listed:
        hear(member, record, sender="z")
        member.merge([record], 0)
        assert member.me.status is Status.ALIVE
        assert member.pending <= 2 * len(member.records)


def test_the_longest_news_leave_the_queue_amid_many_short_ones(core, record):
    """alertmanager#1412: what was larger than the room in a datagram waited for ever."""
    member = core("m" * 255, host="h")
    long = record("n" * 255, host="h" * 60, accuser="o" * 255, status=Status.SUSPECT)
    hear(member, record("b"), long, *[record(f"short{number}") for number in range(100)])

    told = [each for message in sent(run(member, 60), Gossip | Ping) for each in message.updates]

    assert long in told
    assert member.pending == 0


@given(st.integers(1, 300), st.integers(1, 90))
def test_no_message_is_larger_than_a_datagram(core, record, count, length):
    member = core("me")
    effects = hear(member, *[record(f"{number:0{length}}") for number in range(count)])
    effects += run(member, 2)

    for message in sent(effects, Gossip | Ping):
        assert len(encode(message)) <= 1130


def test_a_member_whose_texts_fit_no_datagram_is_refused(core):
    with pytest.raises(ValueError, match="shorten"):
        core("n" * 255, zone="z" * 255)


def test_the_longest_member_allowed_is_told_of_and_accused(core, record):
    long = record("n" * 255, host="h")
    member = core("m" * 255, host="h")
    hear(member, long, sender="n" * 255, source=long.address)

    effects = run(member, 1)

    assert sent(effects, Ping)
    assert any(each.updates for each in sent(effects, Gossip))
    assert all(len(encode(message)) <= 1130 for message in sent(effects, Ping | Gossip))


def test_a_ping_is_acked_with_the_digest_and_the_clock(core):
    member = core("a")

    (ack,) = sent(member.receive(Ping("b", 1, 7, "a", 0), HOME, 5), Ack)

    assert (ack.seq, ack.digest, ack.stamp) == (7, member.digest, 5)


def test_a_ping_for_somebody_else_is_not_answered(core):
    member = core("a")

    assert member.receive(Ping("b", 1, 7, "c", 0), HOME, 0) == []
    assert member.counters["refused_not_me"] == 1


def test_each_member_is_probed_once_a_round(core, record):
    member = core("a")
    hear(member, record("b"), record("c"), record("d"))
    probed = []
    while len(probed) < 9:
        now = member.next_deadline()
        for ping in sent(member.tick(now), Ping):
            probed.append(ping.target)
            member.receive(Ack(ping.target, 1, ping.seq, member.digest, now), HOME, now)

    assert [sorted(probed[at : at + 3]) for at in (0, 3, 6)] == [["b", "c", "d"]] * 3


def test_an_ack_tells_round_trip_and_offset(core, record):
    member = core("a")
    hear(member, record("b"))
    began, ping = first_ping(member)
    ack = Ack("b", 1, ping.seq, member.digest, began + 50_000_042, delay=80)

    member.receive(ack, HOME, began + 100_000_080)

    assert member.rtt_ns("b") == 100_000_000
    assert member._prober._clock.samples == [("b", 42, 100_000_000)]


def test_a_probe_that_met_a_clock_being_set_tells_nothing_of_offsets(core, record):
    """All clocks of a host farm were set at once, and one found itself a minute behind."""
    member = core("a")
    hear(member, record("b"))
    began, ping = first_ping(member)
    minute = 60 * NS
    member._prober._clock.ahead = minute
    ack = Ack("b", 1, ping.seq, member.digest, began + minute + 1)

    member.receive(ack, HOME, began + 2)

    assert member.rtt_ns("b") == 2
    assert member._prober._clock.samples == []


def test_a_silent_member_is_asked_for_through_others_then_suspected_then_dead(core, record):
    member = core("a")
    hear(member, *[record(name) for name in "bcdef"])

    effects = run(member, 60)

    assert {request.target for request in sent(effects, PingReq)} <= set("bcdef")
    histories = {name: [] for name in "bcdef"}
    for after in changes(effects):
        histories[after.name].append(after.status)
    assert all(each == [Status.SUSPECT, Status.DEAD] for each in histories.values()), histories


def test_one_lost_datagram_accuses_nobody_though_nobody_else_could_be_asked(core, record):
    member = core("a")
    hear(member, record("b"))

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

    assert again.seq == lost.seq
    assert member.records["b"].status is Status.ALIVE


def test_helpers_that_answer_with_nacks_speak_for_our_own_health(core, record):
    def health_after_a_failed_probe(*, nacks):
        member = core("a")
        hear(member, *[record(name) for name in "bcdef"])
        requests = []
        while member.counters["probes_failed"] == 0:
            requests = sent(member.tick(member.next_deadline()), PingReq)
            for request in requests if nacks else []:
                member.receive(Nack("c", 1, request.seq), HOME, member.next_deadline() - 1)
        return member.health

    assert health_after_a_failed_probe(nacks=True) == 0
    assert health_after_a_failed_probe(nacks=False) == 3


def test_a_helper_passes_an_ack_on_or_says_that_none_came(core, record):
    helper = core("c")
    hear(helper, record("a"), record("b"))
    request = PingReq("a", 1, 9, "b", HOME)

    (ping,) = sent(helper.receive(request, ("host-a", 7600), 0), Ping)
    (ack,) = sent(helper.receive(Ack("b", 1, ping.seq, 0, 0), HOME, 1), Ack)
    assert (ack.sender, ack.seq) == ("c", 9)
    assert not sent(run(helper, 0.2), Nack)

    helper.receive(request, ("host-a", 7600), NS)
    assert [nack.seq for nack in sent(run(helper, 1.2), Nack)] == [9]


def test_a_suspicion_that_others_share_ends_sooner(core, record):
    def seconds_to_death(*accusers):
        member = core("a")
        effects = hear(member, *[record(name) for name in "bcdef"])
        for accuser in accusers:
            effects += hear(member, record("b", status=Status.SUSPECT, accuser=accuser))
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


def test_an_accused_member_refutes_with_a_higher_incarnation(core, record):
    member = core("a")
    accusation = record("a", incarnation=4, status=Status.SUSPECT, accuser="b")

    effects = hear(member, accusation)

    assert (member.me.incarnation, member.me.status) == (5, Status.ALIVE)
    assert member.me in changes(effects)
    assert member.counters["refutations"] == 1


def test_an_accusation_of_the_highest_incarnation_is_refuted_by_a_new_generation(core, record):
    member = core("a")

    hear(member, record("a", incarnation=(1 << 32) - 1, status=Status.DEAD))

    assert (member.me.generation, member.me.incarnation) == (2, 0)


def test_an_accusation_of_a_later_generation_is_outdone(core, record):
    member = core("a", generation=5)

    hear(member, record("a", generation=99, status=Status.DEAD, accuser="b"))

    assert member.me.generation == 100


def test_a_refutation_ends_the_suspicion(core, record):
    member = core("a")
    hear(member, record("b", status=Status.SUSPECT, accuser="c"))
    hear(member, record("b", incarnation=1))

    assert member.records["b"].status is Status.ALIVE
    assert not [each for each in changes(run(member, 0.4)) if each.name == "b"]


@pytest.mark.parametrize("status", [Status.SUSPECT, Status.DEAD])
def test_a_message_from_the_accused_is_answered_with_the_accusation(core, record, status):
    """memberlist#311: the accused never heard, so it could not refute."""
    member = core("a")
    accusation = record("b", status=status, accuser="c")
    hear(member, accusation, sender="c", source=("host-c", 1))

    (answer,) = sent(member.receive(Nack("b", 1, 0), HOME, 1), Gossip)
    (ack,) = sent(member.receive(Ping("b", 1, 1, "a", 0), HOME, 1), Ack)

    assert answer.updates == (accusation,)
    assert ack.updates[0] == accusation


def test_two_that_hold_each_other_dead_do_not_answer_each_other_for_ever(core, record):
    """After a split of two each one's accusation was answered with an accusation, and so on."""
    members = {"a": core("a"), "b": core("b")}
    for name, other in (("a", "b"), ("b", "a")):
        hear(members[name], record(other, status=Status.DEAD, accuser=name), sender="c")
    message, to = Gossip("a", 1, (members["a"].records["b"],)), "b"

    for _ in range(3):
        answers = members[to].receive(message, HOME, 1)
        if not sent(answers, Gossip):
            break
        (message,), to = sent(answers, Gossip), "a" if to == "b" else "b"

    assert not sent(answers, Gossip)
    assert members["a"].records["b"].status is Status.ALIVE


def test_stale_news_that_the_accused_is_alive_are_answered_with_the_accusation(core, record):
    """memberlist#311: a restarted member said it was alive, in vain, by too low an incarnation."""
    member = core("a")
    accusation = record("b", incarnation=100, status=Status.DEAD)
    hear(member, accusation, sender="c", source=("host-c", 1))

    effects = hear(member, record("b", incarnation=1), source=("elsewhere", 1))

    told = [effect.to for effect in effects if effect.message.updates == (accusation,)]
    assert ("elsewhere", 1) in told


def test_an_accusation_of_a_member_nobody_told_us_of_is_passed_on(core, record):
    """memberlist#311: members that had just been started swallowed it."""
    member = core("a")
    hear(member, record("b"))
    accusation = record("x", incarnation=100, status=Status.DEAD)
    hear(member, accusation)

    assert any(accusation in each.updates for each in sent(run(member, 0.3), Gossip))


def test_a_list_that_calls_the_living_dead_begins_a_suspicion_only(core, record):
    member = core("a")
    hear(member, record("b"))
    member.merge([record("b", status=Status.DEAD)], 0)

    assert member.records["b"].status is Status.SUSPECT
    assert member.records["b"].is_routed


def test_the_dead_are_forgotten_and_lists_do_not_bring_them_back_for_ever(core, record):
    """foca#31: identities that nobody could get rid of grew without bound."""
    member = core("a")
    hear(member, record("b", status=Status.DEAD))
    run(member, 901)
    assert "b" not in member.records

    member.merge([record("b", status=Status.DEAD)], 901 * NS)

    assert "b" in member.records
    assert "b" not in [each.name for each in member.snapshot()]
    run(member, 1900)
    assert "b" not in member.records


def test_the_dead_are_spoken_to_seldom_and_no_longer_once_they_are_forgotten(core, record):
    """corrosion#573: each that had gone was called for two days, at an address nobody answers."""
    member = core("a")
    hear(member, record("b"))
    hear(member, *[record(f"gone{number}", status=Status.DEAD) for number in range(50)])
    run(member, Settings.lan().gossip_to_dead)

    calls = calls_of_the_dead(run(member, 850))
    assert 0 < len(calls) <= 2 * 850 / 10
    run(member, 901)
    assert calls_of_the_dead(run(member, 3000)) == []


def calls_of_the_dead(effects):
    addresses = [
        effect.to if isinstance(effect, Send) else effect.with_
        for effect in effects
        if isinstance(effect, Send | Exchange)
    ]
    return [address for address in addresses if address[0].startswith("host-gone")]


def test_a_dead_seed_is_remembered_for_longer(core, record):
    member = core("a")
    hear(member, record("b", status=Status.ALIVE))
    member.join([HOME], 0)
    hear(member, record("b", status=Status.DEAD))

    run(member, 3000)
    assert "b" in member.records
    run(member, 3601)
    assert "b" not in member.records


def test_words_of_a_former_life_do_not_touch_the_new_one(core, record):
    """Late words of the old process must not bury the new one."""
    member = core("a")
    hear(member, record("b", generation=2))

    hear(member, *[record("b", incarnation=9, status=status) for status in Status])

    assert member.records["b"] == record("b", generation=2)


def test_a_restart_at_another_address_takes_the_place_of_the_old_life(core, record):
    """memberlist#157, #189: a name stayed bound to the address it once had."""
    member = core("a")
    hear(member, record("b"))
    hear(member, record("b", generation=2, host="new"))

    assert member.records["b"].address == ("new", 7600)


def test_of_two_nodes_with_one_name_the_smaller_address_steps_down(core, record):
    twins = core("a", host="h1"), core("a", host="h2")
    conflicts = [
        effect
        for twin, other in (twins, reversed(twins))
        for effect in hear(twin, other.me, sender="c")
        if isinstance(effect, Conflict)
    ]

    assert [effect.steps_down for effect in conflicts] == [True, False]


def test_a_later_start_under_our_name_elsewhere_makes_us_step_down(core, record):
    member = core("a", host="h2")

    (effect,) = hear(member, record("a", host="h1", generation=2), sender="c")

    assert effect == Conflict(record("a", host="h1", generation=2), steps_down=True)
    assert member.me.generation == 1


def test_leaving_is_told_to_everybody_near_at_once(core, record):
    member = core("a")
    hear(member, *[record(f"n{number}") for number in range(40)], record("far", datacenter="dc2"))

    effects = member.leave(0)

    told = {effect.to for effect in effects if isinstance(effect, Send)}
    assert told == {(f"host-n{number}", 7600) for number in range(40)}
    assert member.me.is_routed
    assert not member.me.is_placed


def test_who_has_left_is_silent_and_deaf(core, record):
    member = core("a")
    hear(member, record("b"))
    member.left(0)

    assert member.receive(Ping("b", 1, 1, "a", 0), HOME, 1) == []
    assert hear(member, record("a", incarnation=9, status=Status.DEAD)) == []
    assert member.tick(member.next_deadline()) == []
    assert member.me.status is Status.LEFT


def test_a_member_that_loses_its_way_looks_for_seeds_until_it_knows_somebody(core, record):
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


def test_of_the_seeds_only_strangers_are_asked_while_others_are_known(core, record):
    """cortex#4931: islands that each had grown around a seed never met."""
    member = core("a")
    hear(member, record("b"))

    asked = [
        effect.with_
        for second in range(9)
        for effect in member.join([HOME, *SEEDS], second * NS)
        if isinstance(effect, Exchange)
    ]

    assert set(asked) == set(SEEDS)


def test_a_newcomer_asks_once_more_for_what_was_new_when_it_came(core, record):
    """Two join at a time: the list that one gets may be older than what the other says of itself,
    and who heard that may have told it all others before it heard of the first."""
    member = core("a")
    member.join([record("b").address], 0)
    member.merge([record("b"), record("c", status=Status.JOINING)], NS // 10)

    asked = [effect.with_ for effect in run(member, 1) if isinstance(effect, Exchange)]

    assert len(asked) == 1
    assert set(asked) < {record("b").address, record("c").address}


def test_members_that_booted_together_do_not_speak_to_the_dead_together(core, record):
    """A thousand of them would fall upon one that was started again at the same instant."""
    spoken_at, now = set(), 0
    for seed in range(4):
        member, dead = core("a", seed=seed), record("dead", status=Status.DEAD)
        hear(member, record("b"), dead)
        run(member, LAN.gossip_to_dead)
        while not any(is_word_to(each, dead) for each in member.tick(now)):
            now = member.next_deadline()
        spoken_at.add(now)

    assert len(spoken_at) == 4


def test_a_lasting_difference_leads_to_an_exchange_but_seldom(core, record):
    """After five rounds of gossip, which take news everywhere if they do not miss a member."""
    member = core("a")
    hear(member, record("b"))
    asked_at = [
        tenth / 10
        for tenth in range(200)
        for effect in member.receive(Ping("b", 1, 1, "a", 0), HOME, tenth * NS // 10)
        if isinstance(effect, Exchange)
    ]

    assert asked_at[0] == 0.5
    assert all(later - sooner >= 5.0 for sooner, later in itertools.pairwise(asked_at))
    assert len(asked_at) >= 3


def test_a_difference_is_not_forgotten_because_another_member_agrees(core, record):
    """Members of one data center agree, and yet they may all lack news of another one."""
    member = core("a")
    hear(member, record("b"), record("c"))

    asked = [
        effect.with_
        for half in range(20)
        for name, digest in (("b", member.digest), ("c", 0))
        for effect in member.receive(Ping(name, 1, 1, "a", digest), HOME, half * NS // 2)
        if isinstance(effect, Exchange)
    ]

    assert asked
    assert set(asked) == {record("c").address}


def test_what_the_shell_could_not_reach_is_probed_at_once(core, record):
    member = core("a")
    hear(member, record("b"), record("c"))

    (ping,) = sent(member.report_unreachable("c", 1), Ping)

    assert ping.target == "c"
    assert member.report_unreachable("c", 2) == member.report_unreachable("unknown", 2) == []


def test_ticking_early_does_nothing(core, record):
    member = core("a")
    hear(member, record("b"))
    run(member, 1)
    deadline = member.next_deadline()

    assert member.tick(deadline - 1) == []
    assert member.next_deadline() == deadline


def test_after_a_pause_of_its_own_a_member_condemns_nobody(core, record):
    member = core("a")
    hear(member, *[record(name) for name in "bcdef"])
    hear(member, *[record("b", status=Status.SUSPECT, accuser=each) for each in "cde"])

    effects = member.tick(30 * NS)

    assert not [each for each in changes(effects) if each.status is Status.DEAD]
    assert member.counters["own_pauses"] == 1
    assert member.health == 1
    assert member.counters["probes_failed"] == 0


def test_a_short_lag_is_given_back_to_the_suspects(core, record):
    member = core("a")
    hear(member, *[record(name) for name in "bcdef"])
    hear(member, *[record("b", status=Status.SUSPECT, accuser=each) for each in "cdef"])
    while member.next_deadline() < 1.2 * NS:
        member.tick(member.next_deadline())

    member.tick(member.next_deadline() + round(0.9 * NS))

    assert member.records["b"].status is Status.SUSPECT


def test_a_confirmation_that_ends_a_suspicion_in_the_past_is_no_own_pause(core, record):
    member = core("me")
    hear(member, *[record(name) for name in "bcdef"])
    hear(member, record("b", status=Status.SUSPECT, accuser="c"))
    run(member, 5.0)
    # Nobody but the one accuser so far: patient. Three more, and it is over since 1.5 s.
    accusations = [record("b", status=Status.SUSPECT, accuser=each) for each in "def"]
    hear(member, *accusations, now=5 * NS)
    member.tick(5 * NS)
    assert member.records["b"].status is Status.DEAD
    assert member.counters["own_pauses"] == 0


def test_three_accusations_make_a_member_leave_the_ring_for_a_minute(core, record):
    member = core("a")
    hear(member, *[record(name) for name in "bcd"])
    for accuser in "bcd":
        hear(member, replace(member.me, status=Status.SUSPECT, accuser=accuser))

    out = []
    for second in range(63):
        alive = [record(name, incarnation=second + 1) for name in "bcd"]
        hear(member, *alive, now=second * NS)
        run(member, second)
        out.append(member.me.forward_only)
    assert out == [True] * 60 + [False] * 3


def test_nobody_leaves_a_ring_that_would_be_half_empty(core, record):
    member = core("a")
    hear(member, *[record(name, forward_only=True) for name in "bcd"])
    for accuser in "bcd":
        hear(member, replace(member.me, status=Status.SUSPECT, accuser=accuser))

    assert not member.me.forward_only


def test_accusations_from_other_data_centers_keep_nobody_out_of_the_ring(core, record):
    member = core("a")
    hear(member, record("b"), *[record(name, datacenter="dc2") for name in "cde"])
    for accuser in "cde":
        hear(member, replace(member.me, status=Status.SUSPECT, accuser=accuser))

    assert not member.me.forward_only


def test_members_that_leave_the_ring_at_once_come_back_rather_than_leave_it_empty(core, record):
    member = core("a")
    hear(member, *[record(name) for name in "bcd"])
    for accuser in "bcd":
        hear(member, replace(member.me, status=Status.SUSPECT, accuser=accuser))
    assert member.me.forward_only

    hear(member, *[record(name, forward_only=True, incarnation=1) for name in "bcd"])

    assert not member.me.forward_only


def test_the_shells_wish_to_forward_only_outlasts_the_damping(core, record):
    member = core("a")
    hear(member, *[record(name) for name in "bcd"])
    member.set_forward_only(True, 0)
    for accuser in "bcd":
        hear(member, replace(member.me, status=Status.SUSPECT, accuser=accuser))
    run(member, 100)
    assert member.me.forward_only

    member.set_forward_only(False, 100 * NS)
    assert not member.me.forward_only


def test_members_elsewhere_are_probed_and_suspected_patiently(core, record):
    member = core("a")
    hear(member, record("b", datacenter="dc2"))
    suspected = dead = 0.0
    while not dead:
        now = member.next_deadline()
        for after in changes(member.tick(now)):
            suspected = suspected or now / NS
            dead = now / NS if after.status is Status.DEAD else 0.0

    assert 2.0 <= suspected <= 4.0
    assert dead - suspected == pytest.approx(20.0)


def test_without_the_buddy_system_a_suspect_is_not_told_by_pings(core, record):
    plain = core("a", settings=Settings.lan().without_lifeguard())
    accusation = record("b", status=Status.SUSPECT, accuser="c")
    hear(plain, accusation, sender="c", source=("host-c", 1))

    assert plain.receive(Nack("b", 1, 0), HOME, 1) == []
