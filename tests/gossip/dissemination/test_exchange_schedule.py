"""Exact times of full exchanges and of gossip, with random numbers that the test chooses."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from gossip import Exchange, Gossip, Record, Send, Settings, Status
from gossip.dissemination.exchanges import Exchanges
from gossip.dissemination.outbox import Outbox
from gossip.members.member_table import MemberTable
from gossip.timers import Due, Timers

NS = 1_000_000_000
LAN = Settings.lan()
ME = Record("me", "host-me", 1, "dc1", "", 1.0, 1, 0, Status.ALIVE)
B = replace(ME, name="b", host="host-b")
FAR = replace(ME, name="far", host="host-far", datacenter="dc2")
SEED, OTHER_SEED = ("seed-1", 1), ("seed-2", 1)


class Draws(Random):
    """Random numbers with one value of `random`; the middle value leaves times unchanged."""

    value = 0.5

    def random(self) -> float:
        return self.value


class Schedule:
    """Exchanges and outbox of the member `me`, with their timers."""

    def __init__(self, *others: Record) -> None:
        self.table = MemberTable(ME)
        for other in others:
            self.table.put(other)
        self.timers = Timers()
        self.random = Draws(1)
        self.counters = Counter[str]()
        self.outbox = Outbox(self.table, self.timers, LAN, self.counters, 0)
        self.exchanges = Exchanges(
            self.table, self.outbox, self.timers, LAN, self.random, self.counters
        )

    def asked(self) -> list[str]:
        """Return the hosts that were asked for an exchange since the last call."""
        return [each.with_[0] for each in self.outbox.take() if isinstance(each, Exchange)]

    def due(self) -> list[tuple[Due, str | int, float]]:
        """Remove all timers; return each with its time in seconds."""
        found = []
        while (at := self.timers.next_at()) is not None:
            timer = self.timers.pop(at)
            assert timer is not None
            found.append((*timer, at / NS))
        return found

    def digest(self, sender: str, seconds: float, *, equal: bool = False) -> list[str]:
        """Receive a digest; return the hosts that are asked for an exchange because of it."""
        digest = self.table.digest if equal else self.table.digest ^ 1
        self.exchanges.on_digest(sender, digest, round(seconds * NS))
        return self.asked()


def members(count: int) -> Iterable[Record]:
    return [replace(B, name=f"n{number}") for number in range(count)]


@pytest.mark.parametrize(
    ("others", "draw", "local_dc", "remote_dc"),
    [
        (0, 0.5, 60, 120),
        (7, 0.5, 60, 120),
        (8, 0.5, 67.5, 135),
        (15, 0.5, 120, 240),
        (0, 0.0, 45, 90),
        (0, 0.75, 67.5, 135),
    ],
)
def test_periodic_exchanges_are_rarer_with_more_than_8_members(
    others: int, draw: float, local_dc: float, remote_dc: float
) -> None:
    schedule = Schedule(*members(others))
    schedule.random.value = draw

    schedule.exchanges.start(0)
    first = schedule.due()
    schedule.exchanges.start_regular("local_dc", NS)
    schedule.exchanges.start_regular("remote_dc", NS)

    assert first == [(Due.EXCHANGE, "local_dc", local_dc), (Due.EXCHANGE, "remote_dc", remote_dc)]
    assert [at - 1 for _, _, at in schedule.due()] == [local_dc, remote_dc]


@pytest.mark.parametrize(("which", "host"), [("local_dc", "host-b"), ("remote_dc", "host-far")])
def test_a_periodic_exchange_asks_one_member(which: str, host: str) -> None:
    schedule = Schedule(B, replace(B, name="c"), FAR, replace(FAR, name="farther"))

    schedule.exchanges.start_regular(which, 0)

    assert schedule.asked() == [host]
    assert schedule.counters["exchanges"] == 1


def test_after_the_first_contact_the_next_exchanges_follow_soon() -> None:
    schedule = Schedule()

    schedule.exchanges.ask_again_soon(NS)

    assert schedule.due() == [(Due.EXCHANGE, "local_dc", 1.6), (Due.EXCHANGE, "remote_dc", 1.6)]


def test_a_lone_member_asks_all_seeds_at_growing_intervals_except_itself() -> None:
    schedule = Schedule()
    schedule.exchanges.join([SEED, ME.address, OTHER_SEED, SEED], 0)
    pauses, now = [], 0.0
    for _ in range(7):
        assert schedule.asked() == ["seed-1", "seed-2"]
        [(kind, _, at)] = schedule.due()
        assert kind is Due.JOIN
        pauses.append(at - now)
        now = at
        schedule.exchanges.contact_seeds(round(now * NS))

    assert pauses == [0.25, 0.5, 1, 2, 4, 5, 5]


def test_a_member_that_is_alone_again_asks_its_seeds_as_often_as_at_first() -> None:
    schedule = Schedule()
    schedule.exchanges.join([SEED], 0)
    schedule.exchanges.contact_seeds(0)
    schedule.table.put(B)
    schedule.exchanges.contact_seeds(0)
    schedule.due()

    schedule.table.forget("b")
    schedule.exchanges.contact_seeds(0)

    assert schedule.due() == [(Due.JOIN, "", 0.25)]


def test_joining_again_asks_the_new_seeds_as_often_as_at_first() -> None:
    schedule = Schedule()
    for _ in range(3):
        schedule.exchanges.join([SEED], 0)
    schedule.asked()

    schedule.exchanges.join([OTHER_SEED], NS)

    assert schedule.asked() == ["seed-2"]
    assert schedule.due() == [(Due.JOIN, "", 1.25)]


def test_with_other_members_one_unknown_seed_is_asked_every_30_seconds() -> None:
    schedule = Schedule(B, replace(B, name="gone", host="seed-1", status=Status.DEAD))
    schedule.exchanges.join([B.address, SEED], 0)

    assert schedule.asked() == ["seed-1"]
    assert schedule.due() == [(Due.JOIN, "", 30)]


def test_after_the_first_contact_the_other_seeds_are_asked_soon_and_then_rarely() -> None:
    """The first contact may be another new member, which knows no member either."""
    schedule = Schedule()
    schedule.exchanges.join([SEED, OTHER_SEED], 0)
    schedule.asked()
    schedule.table.put(replace(B, host="seed-1"))
    schedule.exchanges.ask_again_soon(0)
    pauses, now = [], 0.0
    for _ in range(9):
        [at] = [at for kind, _, at in schedule.due() if kind is Due.JOIN]
        pauses.append(at - now)
        now = at
        schedule.exchanges.contact_seeds(round(now * NS))
        assert schedule.asked() == ["seed-2"]

    assert pauses == [0.25, 0.25, 0.5, 1, 2, 4, 8, 16, 30]


def test_known_seeds_are_not_asked() -> None:
    schedule = Schedule(B)

    schedule.exchanges.join([B.address, ME.address], 0)

    assert schedule.asked() == []
    assert schedule.due() == [(Due.JOIN, "", 30)]


def test_without_seeds_there_is_no_timer() -> None:
    schedule = Schedule()

    schedule.exchanges.join([], 0)

    assert schedule.due() == []


@pytest.mark.parametrize(("member", "limit"), [(B, 0.5), (FAR, 2.5)])
def test_a_digest_may_differ_for_five_rounds_of_gossip(member: Record, limit: float) -> None:
    schedule = Schedule(member)

    asked = [schedule.digest(member.name, 1 + at) for at in (0, limit - 0.001, limit)]

    assert asked == [[], [], [member.host]]


def test_exchanges_because_of_digests_are_five_seconds_apart() -> None:
    schedule = Schedule(B)
    schedule.digest("b", 0)
    assert schedule.digest("b", 1) == ["host-b"]

    asked = [schedule.digest("b", at) for at in (1.1, 3, 5.999, 6, 6.1, 6.6)]

    assert asked == [[], [], [], ["host-b"], [], []]


def test_an_equal_digest_ends_the_mismatch_of_its_sender() -> None:
    schedule = Schedule(B)
    schedule.digest("b", 0)
    schedule.digest("b", 0.4, equal=True)

    assert [schedule.digest("b", at) for at in (0.5, 0.999, 1.0)] == [[], [], ["host-b"]]


def test_if_all_digests_differ_an_exchange_follows_after_five_rounds_in_total() -> None:
    """In a large cluster, digests of one member arrive rarely."""
    schedule = Schedule(*members(9))

    asked = [schedule.digest(f"n{number}", number / 10) for number in range(9)]

    assert asked == [[]] * 5 + [["host-b"]] + [[]] * 3


def test_after_an_equal_digest_the_mismatch_of_each_member_is_timed_separately() -> None:
    schedule = Schedule(*members(9))
    asked = []
    for number in range(8):
        asked += schedule.digest(f"n{number}", number / 10)
        asked += schedule.digest("n8", number / 10, equal=True)

    assert asked == []


@pytest.mark.parametrize("status", [None, Status.DEAD, Status.LEFT])
def test_digests_of_members_that_are_unknown_or_gone_are_ignored(status: Status | None) -> None:
    schedule = Schedule(*([replace(B, status=status)] if status is not None else []))

    assert [schedule.digest("b", at) for at in (0, 10)] == [[], []]


# -- gossip ----------------------------------------------------------------------------------------


def updates_of(schedule: Schedule) -> list[tuple[str, list[str]]]:
    """Return the receivers of gossip since the last call, each with the names in the updates."""
    return [
        (each.to[0], [record.name for record in each.message.updates])
        for each in schedule.outbox.take()
        if isinstance(each, Send) and isinstance(each.message, Gossip)
    ]


@pytest.mark.parametrize(
    ("others", "queues"),
    [((), []), ((B,), ["local_dc"]), ((FAR,), ["local_dc", "remote_dc"])],
)
def test_an_update_is_queued_where_there_are_members(
    others: Iterable[Record], queues: list[str]
) -> None:
    schedule = Schedule(*others)

    schedule.outbox.disseminate(replace(B, name="c"), 5 * NS)

    assert schedule.due() == [(Due.GOSSIP, which, 5) for which in queues]
    lengths = {
        "local_dc": len(schedule.outbox.local_dc),
        "remote_dc": len(schedule.outbox.remote_dc),
    }
    assert lengths == {which: which in queues for which in lengths}


@pytest.mark.parametrize(("which", "pause"), [("local_dc", 0.1), ("remote_dc", 0.5)])
def test_gossip_is_sent_at_once_and_then_at_intervals(which: str, pause: float) -> None:
    schedule = Schedule(B, FAR)
    name = "b" if which == "local_dc" else "far"
    schedule.outbox.disseminate(replace(B, name="c"), 5 * NS)
    schedule.due()

    schedule.outbox.gossip(which, [name, "me"], LAN.probing(which), 5 * NS)

    assert updates_of(schedule) == [(f"host-{name}", ["c"]), ("host-me", ["c"])]
    assert schedule.counters["updates_sent"] == 2
    assert schedule.due() == [(Due.GOSSIP, which, 5 + pause)]
    schedule.outbox.disseminate(replace(B, name="d"), 5 * NS)
    schedule.outbox.disseminate(replace(B, name="e"), 6 * NS)
    other = "remote_dc" if which == "local_dc" else "local_dc"
    assert schedule.due() == [(Due.GOSSIP, other, 5), (Due.GOSSIP, which, 5 + pause)]


def test_gossip_ends_when_the_queue_is_empty() -> None:
    schedule = Schedule(B)
    schedule.outbox.disseminate(replace(B, name="c"), 0)
    schedule.due()

    schedule.outbox.gossip("local_dc", ["b"] * 7, LAN.local_dc, 0)

    assert updates_of(schedule) == [("host-b", ["c"])] * 5  # The limit of transmissions.
    assert schedule.due() == []


def test_without_a_receiver_the_next_gossip_waits_for_the_next_update() -> None:
    schedule = Schedule(B)
    schedule.outbox.disseminate(replace(B, name="c"), 0)
    schedule.due()

    schedule.outbox.gossip("local_dc", [], LAN.local_dc, 0)

    assert (updates_of(schedule), schedule.due()) == ([], [])
    assert len(schedule.outbox.local_dc) == 1


def test_given_records_are_sent_without_queued_updates() -> None:
    schedule = Schedule(B)
    schedule.outbox.disseminate(replace(B, name="c"), 0)

    schedule.outbox.send_records(("elsewhere", 5), B, ME)

    [effect] = schedule.outbox.take()
    assert effect == Send(("elsewhere", 5), Gossip("me", 1, (B, ME)))
    assert len(schedule.outbox.local_dc) == 1


@pytest.mark.parametrize(
    ("receiver", "queue"), [(None, "local_dc"), (B, "local_dc"), (FAR, "remote_dc")]
)
def test_a_message_carries_the_updates_for_the_receivers_data_center(
    receiver: Record | None, queue: str
) -> None:
    schedule = Schedule(B, FAR)
    updates = {"local_dc": replace(B, name="near"), "remote_dc": replace(B, name="distant")}
    schedule.outbox.local_dc.add(updates["local_dc"])
    schedule.outbox.remote_dc.add(updates["remote_dc"])

    schedule.outbox.send(("host", 5), receiver, Gossip("me", 1))

    assert schedule.outbox.take() == [Send(("host", 5), Gossip("me", 1, (updates[queue],)))]
