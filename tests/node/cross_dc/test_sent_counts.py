"""Counts and digests that one node sends to other data centers, without any network."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf

import pytest
import trio
from trio.testing import MockClock

from hashring import shard_of
from node.cross_dc.split import share_of
from ringfence.limiter import Code
from ringfence.peering.engine_choice import decide_batch
from ringfence.rules import Rule
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import (
    Batch,
    Digest,
    DigestMismatch,
    Done,
    ErrorCode,
    Op,
    RecoverCounts,
    RecoverCountsReply,
    Refused,
    WindowCounts,
)
from tests.node.cross_dc.counting_host import (
    DAY,
    HOME,
    MS,
    NOW,
    PART,
    QUOTA,
    RULES,
    RULES_TEXT,
    SECOND,
    SHADOW,
    WINDOW,
    CountingHost,
    alone,
    key_of,
    key_of_rule,
    pair,
    part_of,
    view_of,
)

MANY = [key_of(value) for value in range(4001)]
BOUNDS_MS = (10, 50, 100, 200, 300, 500, 1000, 2000, 5000, 10_000)


# -- rules and members -----------------------------------------------------------------------------


def test_a_rule_with_a_home_is_decided_by_the_ring_of_that_data_center() -> None:
    eu, us = pair()
    rule = HOME.id.to_bytes(8, "big")

    assert eu.counts.elsewhere() == {rule: view_of("u1").ring("us")}
    assert us.counts.elsewhere() == {}
    assert (
        eu.counts.split_rules()
        == us.counts.split_rules()
        == {PART.id.to_bytes(8, "big"): share_of(PART.limit, "eu", ["us"])}
    )
    assert eu.counts.other_rings() == {"us": view_of("u1").ring("us")}
    assert us.counts.other_rings() == {"eu": view_of("e1").ring("eu")}


def test_a_split_limit_is_divided_among_all_data_centers_that_have_not_left() -> None:
    host = CountingHost("e1")

    def admitted(value: int) -> int:
        return host.spend(*[part_of(value)] * 11).count(Code.ALLOWED)

    assert admitted(0) == 10
    host.see("e1", "u1")
    assert admitted(1) == 5
    host.see("e1", "u1", "p1")
    assert admitted(2) == 3  # `ap` is first by name and has 4.
    host.see("e1")
    assert admitted(3) == 3  # Unreachable data centers still admit their shares.
    host.counts.set_view(view_of("e1"), view_of("e1"), left=["ap", "eu"])
    assert admitted(4) == 5
    host.counts.set_view(view_of("e1"), view_of("e1"), left=["us"])
    assert admitted(5) == 10


@asynccontextmanager
async def running(host: CountingHost) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.counts.run)
        yield
        nursery.cancel_scope.cancel()


async def test_a_data_center_that_becomes_known_gets_the_counts_of_all_keys(
    autojump_clock: MockClock,
) -> None:
    hosts: dict[str, CountingHost] = {}
    eu, us = CountingHost("e1", hosts), CountingHost("u1", hosts)
    keys = [key_of(value) for value in range(9000)]
    eu.see("e1")
    eu.spend(*keys)

    async with running(eu):
        await trio.sleep(1)
        eu.see("e1", "u1")
        await trio.sleep(2)

    assert us.used(*keys) == [1] * len(keys)


async def test_a_rule_that_becomes_global_has_the_counts_of_all_data_centers(
    autojump_clock: MockClock,
) -> None:
    eu, us = pair()
    local = load_text(RULES_TEXT.replace(", scope: global", "")).rules
    for host in (eu, us):
        host.counts.set_rules(local)
    eu.spend(key_of(1), units=20)

    async with running(eu):
        for host in (us, eu):
            host.counts.set_rules(RULES)
        await trio.sleep(2)

    assert us.used(key_of(1)) == [20]


async def test_the_keys_for_a_new_data_center_are_marked_in_parts(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.cross_dc.counts._MOST_MARKED", 3000)
    host = CountingHost("e1")
    host.pending = []  # Nothing is acknowledged, so all marked keys wait.
    host.spend(*[key_of(value) for value in range(9000)])

    async with running(host):
        host.see("e1", "u1")
        host.is_linked = False
        await trio.sleep(5)
        assert 3000 < len(host.keys.to_send["us"]) < 6000


async def test_the_keys_for_a_data_center_do_not_wait_for_an_unreachable_one(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.cross_dc.counts._MOST_MARKED", 3000)
    eu, us = pair()
    eu.see("e1", "u1", "p1")
    local = load_text(RULES_TEXT.replace(", scope: global", "")).rules
    eu.counts.set_rules(local)
    keys = [key_of(value) for value in range(9000)]
    eu.spend(*keys)

    async with running(eu):
        eu.see("e1", "u1")
        eu.counts.set_rules(RULES)
        await trio.sleep(5)

    assert us.used(*keys) == [1] * len(keys)


def test_counts_are_sent_to_every_other_data_center() -> None:
    host = alone("u1", "p1")
    host.spend(key_of(1))

    host.flush()

    assert sorted(to for to, _ in host.sent) == ["p1", "u1"]


def test_a_data_center_without_changes_does_not_end_the_round_of_the_others() -> None:
    host = alone("p1")
    host.spend(key_of(1))
    host.flush()
    host.see("e1", "p1", "u1")
    host.sent.clear()
    host.keys.to_send["us"].mark_changed(key_of(1), NOW)

    host.flush()

    assert [to for to, _ in host.sent] == ["u1"]


def test_a_new_owner_in_another_data_center_receives_all_counts_again() -> None:
    eu, us = pair()
    eu.spend(key_of(1), key_of(2))
    eu.now += SECOND
    eu.flush()
    assert us.used(key_of(1), key_of(2)) == [1, 1]
    eu.sent.clear()

    eu.see("e1", "u1")
    eu.now += SECOND
    eu.flush()
    assert eu.sent_keys() == []  # The owner is the same.

    eu.others["u2"] = CountingHost("u1")
    view = view_of("e1", "u2")
    eu.counts.set_view(view, view)
    eu.now += SECOND
    eu.flush()
    assert [*map(sorted, eu.sent_keys("u2"))] == [sorted([key_of(1), key_of(2)])]


def test_a_data_center_that_returns_receives_all_counts_again() -> None:
    eu, us = pair()
    eu.spend(key_of(1))
    eu.now += SECOND
    eu.flush()
    eu.sent.clear()

    eu.see("e1")
    eu.now += SECOND
    eu.flush()
    assert (eu.sent, eu.keys.others) == ([], [])
    assert eu.counts.stats()["cells_waiting"] == 1

    eu.see("e1", "u1")
    eu.now += SECOND
    eu.flush()
    assert eu.sent_keys() == [[key_of(1)]]
    assert us.used(key_of(1)) == [1]


def test_expired_counts_for_a_data_center_without_members_are_dropped() -> None:
    host = alone("u1")
    host.spend(key_of(1))
    host.see("e1")
    host.flush()
    assert host.counts.stats()["cells_waiting"] == 1

    host.now += 3 * DAY
    host.flush()

    assert host.counts.stats()["cells_waiting"] == 0


@pytest.mark.parametrize("rule", [SHADOW, QUOTA])
def test_shadow_and_quota_rules_deny_no_group(rule: Rule) -> None:
    host = CountingHost("e1")
    spent, free = key_of_rule(rule, 0), part_of(0)
    host.spend(*[spent] * 5)
    batch = Batch(Op.CHECK, [spent, free], [1, 1], [2])

    codes = decide_batch(host.engine, batch, NOW).codes
    host.spend(*[free] * 9)
    reverse = decide_batch(host.engine, Batch(Op.CHECK, [free, spent], [1, 1], [2]), NOW).codes

    assert codes == [Code.DENIED, Code.ALLOWED]
    assert reverse[0] == Code.DENIED


# -- messages --------------------------------------------------------------------------------------


def test_a_round_sends_at_most_4000_keys_in_messages_of_100() -> None:
    eu, us = pair()
    eu.spend(*MANY)
    eu.now += SECOND

    eu.flush()
    assert [len(keys) for keys in eu.sent_keys()] == [100] * 40
    assert eu.count("cells_sent") == us.count("cells_received") == 4000
    eu.flush()
    assert [len(keys) for keys in eu.sent_keys()] == [1]
    assert us.used(*MANY) == [1] * 4001


def test_an_owner_gets_no_counts_until_all_messages_of_a_round_are_answered() -> None:
    host = alone("u1")
    host.spend(*MANY[:150])
    host.now += SECOND
    host.flush()
    assert [len(keys) for keys in host.sent_keys()] == [100, 50]
    host.spend(MANY[2000], units=50)

    for _ in range(2):
        host.flush()
        assert host.sent_keys() == []
        host.answer(Done(1))
    host.flush()

    assert host.sent_keys() == [[MANY[2000]]]


def test_an_owner_gets_one_round_at_a_time_also_when_two_tasks_send() -> None:
    host = alone("u1")
    host.spend(key_of(1))
    periodic = host.counts.flush(are_all_due=True)
    next(periodic)
    host.spend(key_of(2))
    host.flush(are_all_due=True)

    assert [*periodic] == []
    assert host.sent_keys() == [[key_of(2)]]
    host.answer(Done(1))
    host.flush(are_all_due=True)

    assert host.sent_keys() == [[key_of(1)]]


def test_counts_are_sent_to_owners_that_are_new_since_the_first_step_of_a_round() -> None:
    host = alone("u1")
    host.spend(*MANY[:20])
    steps = host.counts.flush(are_all_due=True)
    next(steps)
    host.see("e1", "u2")

    assert [*steps] == []
    assert host.sent == []
    host.flush(are_all_due=True)

    assert [to for to, _ in host.sent] == ["u2"]


def test_an_owner_that_has_not_answered_delays_no_other_owner() -> None:
    host = alone("u1")
    view = view_of("e1", "u1", "u2")
    host.counts.set_view(view, view)
    owner = view.ring("us").owner
    slow = [key for key in MANY if owner(shard_of(key)) == "u1"]
    other = next(key for key in MANY if owner(shard_of(key)) == "u2")
    host.spend(slow[0], units=10)
    host.flush()
    host.spend(slow[1], units=10)
    host.spend(other, units=10)
    assert host.sent_keys() == [[slow[0]]]

    host.flush()

    assert host.sent_keys() == [[other]]


@pytest.mark.parametrize("reply", [None, Refused(1, ErrorCode.OVERLOADED, "busy")])
def test_unacknowledged_counts_are_sent_again_and_keep_their_age(reply: Refused | None) -> None:
    host = alone("u1")
    host.spend(key_of(1), key_of(2), units=10)
    host.now += 700 * MS
    host.flush()
    host.answer(reply)
    assert host.count("cells_lost") == 2
    assert host.counts.stats()["cells_waiting"] == 2
    host.now += 600 * MS
    host.flush()
    host.answer(Done(1))

    assert [len(keys) for keys in host.sent_keys()] == [2, 2]
    assert host.count("cells_sent") == 4
    assert host.counts.staleness()[1] == 2 * 1.3


def test_counts_wait_for_a_link_to_their_owner() -> None:
    host = alone("u1")
    host.is_linked = False
    host.spend(key_of(1), units=10)
    host.flush()
    assert (host.count("cells_lost"), host.counts.stats()["cells_waiting"]) == (0, 1)

    host.is_linked = True
    host.now += 40 * MS
    host.flush()
    host.answer(Done(1))

    assert host.counts.staleness()[1] == 0.04


@pytest.mark.parametrize("bound", BOUNDS_MS)
@pytest.mark.parametrize("late_ns", [0, MS - 1, MS])
def test_the_age_of_acknowledged_counts_is_measured_in_classes(bound: int, late_ns: int) -> None:
    host = alone("u1")
    host.spend(key_of(1), key_of(2), units=10)
    host.flush()
    host.now += bound * MS + late_ns
    host.answer(Done(1))

    classes, total = host.counts.staleness()

    # Ages are whole milliseconds.
    is_in_next = late_ns == MS
    assert [upper for upper, _ in classes] == [*[b / 1000 for b in BOUNDS_MS], inf]
    assert [units for _, units in classes] == [
        2 * (b > bound or (b == bound and not is_in_next)) for b in (*BOUNDS_MS, inf)
    ]
    assert total == 2 * (bound + is_in_next) / 1000
    stats = host.counts.stats()
    after = [*BOUNDS_MS, "inf"][BOUNDS_MS.index(bound) + is_in_next]
    assert stats == {
        f"staleness_ms_le_{after}": 2,
        "staleness_ms_worst": bound + is_in_next,
        "cells_waiting": 0,
    }


def test_the_worst_age_of_counts_is_kept() -> None:
    host = alone("u1")
    for age_ms in (30, 70, 20):
        host.spend(key_of(age_ms), units=10)
        host.now += age_ms * MS
        host.flush()
        host.answer(Done(1))

    assert host.counts.stats()["staleness_ms_worst"] == 70
    assert host.counts.staleness()[1] == 0.12


# -- received messages -----------------------------------------------------------------------------


def test_received_counts_change_counters_and_their_replicas() -> None:
    host = alone("u1")
    rows = [[WINDOW - 1, 2, WINDOW, 3], [WINDOW, 4], []]
    message = WindowCounts(7, "us", [key_of(1), key_of(2), key_of(3)], rows)

    assert host.counts.receive_counts("us", message) == Done(7)

    assert host.used(*message.keys) == [3, 4, 0]
    assert host.ownership.changed.take(10) == message.keys
    assert host.count("cells_received") == 3
    assert host.count("cells_refused") == 0
    received = host.keys.received["us"]
    assert received.get(key_of(1)) == tuple(rows[0])
    assert received.get(key_of(3)) == ()


@pytest.mark.parametrize(
    ("writer", "sender", "is_accepted"),
    [("us", "us", True), ("us", "ap", False), ("eu", "us", False), ("eu", "eu", False)],
)
def test_each_data_center_is_the_only_writer_of_its_counts(
    *, writer: str, sender: str, is_accepted: bool
) -> None:
    host = alone("u1", "p1")
    counts = WindowCounts(7, writer, [key_of(1), key_of(2)], [[WINDOW, 3], [WINDOW, 3]])
    digest = Digest(8, writer, [1], [0])

    replies = [
        host.counts.receive_counts(sender, counts),
        host.counts.receive_digest(sender, digest),
    ]

    if is_accepted:
        assert replies == [Done(7), DigestMismatch(8, [])]
        assert host.used(key_of(1)) == [3]
        return
    for reply, seq in zip(replies, (7, 8), strict=True):
        assert isinstance(reply, Refused)
        assert (reply.seq, reply.code) == (seq, ErrorCode.NOT_PERMITTED)
        assert writer in reply.reason
        assert sender in reply.reason
    assert host.used(key_of(1)) == [0]
    assert host.count("cells_refused") == 2


def test_counts_of_a_future_window_are_refused() -> None:
    host = alone("u1")
    message = WindowCounts(7, "us", [key_of(1)], [[WINDOW + 5, 3]])

    assert host.counts.receive_counts("us", message) == Done(7)
    assert host.count("cells_refused") == 1


def test_a_data_center_that_lost_counts_receives_only_those_again() -> None:
    eu, us = pair()
    keys = [key_of(value) for value in range(20)]
    eu.spend(*keys)
    eu.now += SECOND
    eu.flush()
    eu.sent.clear()
    us.ownership.start([shard_of(keys[3])])
    lost = shard_of(keys[3])

    reply = eu.counts.receive_recovery_request("us", RecoverCounts(5, [lost]))
    eu.now += SECOND
    eu.flush()

    assert isinstance(reply, RecoverCountsReply)
    assert eu.sent_keys() == [[key for key in keys if shard_of(key) == lost]]


def test_counts_are_recalled_only_by_a_known_data_center() -> None:
    host = alone("u1")
    host.ownership.start([3])

    refused = host.counts.receive_recovery_request("", RecoverCounts(5, [3, 4]))
    assert isinstance(refused, Refused)
    assert (refused.seq, refused.code) == (5, ErrorCode.NOT_PERMITTED)
    for sender in ("eu", "us", "ap"):
        reply = host.counts.receive_recovery_request(sender, RecoverCounts(6, [3, 4]))
        assert reply == RecoverCountsReply(6, [3], [], [])
    assert host.keys.lost.to_request("us") == [3]  # Of its own data center.
