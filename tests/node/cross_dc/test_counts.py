"""Two data centers of two nodes each, 40 ms apart, on a network in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from gossip import Record, Status, pack_records
from hashring import Member, NodeId, View
from ringfence.client.limiter import Limiter
from ringfence.peering.link import LinkSettings
from ringfence.rules.cross_dc_bounds import cross_dc_bounds
from ringfence.wire import Done, Exchange, Refused, Source, WindowCounts
from tests.node.cluster import World, address_of, empty_world, world

MINUTE = 60 * 10**9
RTT = 0.08
NODES = {"e1": "eu", "e2": "eu", "u1": "us", "u2": "us"}
RULES = """
domain: api
descriptors:
  - key: fixed
    rate_limit: {unit: minute, requests_per_unit: 600, algorithm: fixed_window, scope: global}
  - key: sliding
    rate_limit: {unit: minute, requests_per_unit: 600, scope: global}
  - key: token
    rate_limit: {unit: minute, requests_per_unit: 600, algorithm: token_bucket, scope: global}
  - key: split
    rate_limit: {unit: minute, requests_per_unit: 601, global: {mode: split}}
  - key: home
    rate_limit: {unit: minute, requests_per_unit: 600, global: {mode: home, home: us}}
  - key: near
    rate_limit: {unit: minute, requests_per_unit: 600, algorithm: fixed_window, leases: false}
"""


@asynccontextmanager
async def two_datacenters() -> AsyncIterator[tuple[World, Limiter, Limiter]]:
    async with empty_world(rules=RULES) as w:
        for name, datacenter in NODES.items():
            await w.start(name, datacenter=datacenter)
        for one in ("e1", "e2"):
            for other in ("u1", "u2"):
                w.network.set_delay(address_of(one), address_of(other), RTT / 2)
        await w.settle()
        async with w.client("e1", "e2") as here, w.client("u1", "u2") as there:
            yield w, here, there


async def load(limiter: Limiter, key: str, per_second: int, seconds: float) -> int:
    """Send checks at a steady rate; return how many were admitted."""
    admitted = 0
    for _ in range(round(per_second * seconds)):
        decision = await limiter.check("api", {key: "x"})
        assert decision.source is Source.OWNER
        admitted += decision.allowed
        await trio.sleep(1 / per_second)
    return admitted


async def load_both(
    here: Limiter, there: Limiter, key: str, per_second: int, seconds: float
) -> tuple[int, int]:
    """Send checks in both data centers at once; return how many each one admitted."""
    admitted = [0, 0]

    async def side(index: int, limiter: Limiter) -> None:
        admitted[index] = await load(limiter, key, per_second, seconds)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(side, 0, here)
        nursery.start_soon(side, 1, there)
    return admitted[0], admitted[1]


def cut(w: World, how: str) -> None:
    for one in ("e1", "e2"):
        for other in ("u1", "u2"):
            getattr(w.network, how)(address_of(one), address_of(other))


@pytest.mark.parametrize("key", ["fixed", "sliding", "token"])
async def test_a_global_limit_is_exceeded_by_no_more_than_the_printed_bound(
    autojump_clock: MockClock, key: str
) -> None:
    async with two_datacenters() as (w, here, there):
        rule = next(rule for rule in w.rules.rules() if rule.path[-1][0] == key)
        assert rule.limit is not None
        admitted = await load_both(here, there, key, 100, 6.0)

        # 100 a second on both sides is 20 times the limit.
        bounds = cross_dc_bounds(rule.limit, "global", 2, round(RTT * 1e9), 20.0)
        assert 600 <= sum(admitted) <= bounds.bound
        assert min(admitted) > 200


@pytest.mark.parametrize("key", ["fixed", "sliding"])
async def test_when_the_load_stops_both_sides_soon_report_the_same(
    autojump_clock: MockClock, key: str
) -> None:
    async with two_datacenters() as (_, here, there):
        admitted = await load_both(here, there, key, 100, 2.0)
        await trio.sleep(2 * 0.22 + 2 * RTT + 1.0)  # a change of under 1 % may wait for a second

        seen = [(await limiter.peek("api", {key: "x"})).remaining for limiter in (here, there)]
        assert seen == [600 - sum(admitted)] * 2


async def test_a_check_that_is_refunded_at_once_counts_in_no_other_data_center(
    autojump_clock: MockClock,
) -> None:
    async with two_datacenters() as (_, here, there):
        await trio.sleep(3)
        await here.check("api", {"fixed": "x"}, cost=500)
        await trio.sleep(0.01)
        await here.refund("api", {"fixed": "x"}, cost=500)
        await trio.sleep(3)

        seen = [(await limiter.peek("api", {"fixed": "x"})).remaining for limiter in (here, there)]
        assert seen == [600] * 2


@pytest.mark.parametrize("are_together", [True, False])
async def test_counts_of_a_stopped_data_center_remain_and_no_member_is_dead(
    autojump_clock: MockClock, are_together: bool
) -> None:
    async with two_datacenters() as (w, here, there):
        keys = [str(number) for number in range(30)]
        for key in keys:
            assert (await there.check("api", {"fixed": key}, 5)).allowed
        async with trio.open_nursery() as nursery:
            for name in ("u1", "u2"):
                nursery.start_soon(w.stop, name)
                await trio.sleep(0 if are_together else 10)
        await trio.sleep(1)

        left = [(await here.peek("api", {"fixed": key})).remaining for key in keys]
        assert left == [595] * 30
        statuses = {n: r.status for n, r in w.nodes["e1"].membership.records.items()}
        assert statuses["u1"] is statuses["u2"] is Status.LEFT
        assert w.nodes["e2"].membership.datacenters_left == {"us"}


async def test_a_home_without_members_is_reported_once_until_a_member_joins_there(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with empty_world(rules=RULES) as w:
        await w.start("e1", datacenter="eu")
        await trio.sleep(30)
        reports = [each for each in caplog.messages if "which is the home of" in each]
        assert reports == [
            "no member is in data center 'us', which is the home of rules such as api > home; "
            "their on_failure decides until a member joins there"
        ]
        await w.start("u1", datacenter="us")
        await trio.sleep(30)
        await w.stop("u1")
        await trio.sleep(30)
        assert sum("which is the home of" in each for each in caplog.messages) == 2


async def test_after_a_cut_of_ten_seconds_both_data_centers_have_equal_counts(
    autojump_clock: MockClock,
) -> None:
    async with two_datacenters() as (w, here, there):
        before = await load_both(here, there, "fixed", 50, 1.0)
        await trio.sleep(2)
        cut(w, "cut")
        apart = await load_both(here, there, "fixed", 20, 10.0)
        alone = [(await limiter.peek("api", {"fixed": "x"})).remaining for limiter in (here, there)]
        cut(w, "heal")
        await trio.sleep(60)

        seen = [(await limiter.peek("api", {"fixed": "x"})).remaining for limiter in (here, there)]
        assert alone == [600 - sum(before) - apart[0], 600 - sum(before) - apart[1]]
        assert seen == [600 - sum(before) - sum(apart)] * 2


@pytest.mark.parametrize("key", ["fixed", "sliding"])
async def test_counts_that_a_cut_delays_do_not_count_in_a_later_window(
    autojump_clock: MockClock, key: str
) -> None:
    """limitador#288: after an outage, hits of the previous window were counted in the new one."""
    async with two_datacenters() as (w, here, there):
        cut(w, "cut")
        assert await load_both(here, there, key, 50, 2.0) == (100, 100)
        w.clock.time += 3 * MINUTE
        cut(w, "heal")
        await trio.sleep(60)

        assert [await remaining(each, key) for each in (here, there)] == [[600], [600]]


async def test_expired_counts_do_not_wait_for_an_unreachable_data_center(
    autojump_clock: MockClock,
) -> None:
    """limitador#295: the queue of counts for an unreachable node grew without bound."""
    async with two_datacenters() as (w, here, _):
        cut(w, "cut")
        await trio.sleep(45)  # until each side declares the other one dead
        for _ in range(5):
            for number in range(40):
                assert (await here.check("api", {"fixed": str(number)})).allowed
            w.clock.time += MINUTE
        waiting = [
            w.nodes[name].queries.stats(1).counters["cells_waiting"] for name in ("e1", "e2")
        ]
        assert sum(waiting) > 0
        await trio.sleep(1)

        waiting = [
            w.nodes[name].queries.stats(1).counters["cells_waiting"] for name in ("e1", "e2")
        ]
        assert waiting == [0, 0]


async def test_counts_of_other_data_centers_do_not_move_the_end_of_a_window(
    autojump_clock: MockClock,
) -> None:
    """gubernator#225: each message with a global count restarted the window, so it never ended."""
    async with two_datacenters() as (w, here, there):
        ends = set()
        for _ in range(10):
            for limiter in (here, there):
                decision = await limiter.check("api", {"fixed": "x"}, 20)
                ends.add(w.clock.time + round(decision.reset_after * 1e9))
            await trio.sleep(1.5)  # until the other data center has the count
            w.clock.time += 2 * 10**9

        assert ends == {MINUTE}
        assert [await remaining(each, "fixed") for each in (here, there)] == [[200], [200]]
        w.clock.time = MINUTE
        await trio.sleep(1.5)
        assert [await remaining(each, "fixed") for each in (here, there)] == [[600], [600]]


async def test_counts_of_a_value_of_any_length_are_sent(autojump_clock: MockClock) -> None:
    """alertmanager#1412: updates that did not fit into one packet were never delivered."""
    async with two_datacenters() as (_, here, there):
        long = {"fixed": "x" * 900}
        await here.check("api", long, 7)
        await trio.sleep(1.5)

        assert (await there.peek("api", long)).remaining == 593


async def test_counts_are_sent_beside_any_amount_of_membership_updates(
    autojump_clock: MockClock,
) -> None:
    """memberlist#299: updates of many members filled every packet, and delayed other messages."""
    async with two_datacenters() as (w, here, there):
        records = [unknown_member(number) for number in range(120)]
        for name in NODES:
            w.nodes[name].cluster.gossip.exchanged("x", Exchange(1, pack_records(records)))
        await here.check("api", {"fixed": "x"}, 500)
        await trio.sleep(2 * 0.22 + 2 * RTT)

        assert min(w.nodes[name].membership.pending for name in NODES) > 50
        assert (await there.peek("api", {"fixed": "x"})).remaining == 100


def unknown_member(number: int) -> Record:
    """Return the record of a joining member that the ring does not contain."""
    name = f"member{number}"
    return Record(name, name, 7101, "eu", "", 1.0, 1, 0, Status.JOINING)


async def test_a_split_limit_is_never_exceeded(autojump_clock: MockClock) -> None:
    async with two_datacenters() as (_, here, there):
        assert sum(await load_both(here, there, "split", 100, 4.0)) == 601


async def test_one_data_center_may_use_what_the_others_leave_of_a_split_limit(
    autojump_clock: MockClock,
) -> None:
    async with two_datacenters() as (w, here, there):
        assert await load(here, "split", 100, 7.0) == 601
        assert not (await there.check("api", {"split": "x"})).allowed
        assert w.total("borrowed") == 300


async def test_a_cost_above_the_local_share_passes_where_the_share_is_larger(
    autojump_clock: MockClock,
) -> None:
    async with two_datacenters() as (w, here, there):
        both_ways = [await each.check("api", {"split": "x"}, 301) for each in (here, there)]

        assert [decision.allowed for decision in both_ways].count(True) == 1
        [denied] = [decision for decision in both_ways if not decision.allowed]
        assert not denied.is_permanent
        assert denied.retry_after is not None
        assert 0 < denied.retry_after <= 7200
        too_much = [await each.check("api", {"split": "y"}, 302) for each in (here, there)]
        assert [decision.is_permanent for decision in too_much] == [True, True]

        fresh = [
            await each.check("api", {"split": name}, 301)
            for name, each in (("p", here), ("q", there))
        ]
        assert all(fresh)
        assert w.total("borrowed") >= 1


async def test_a_split_limit_holds_while_the_data_centers_are_apart(
    autojump_clock: MockClock,
) -> None:
    async with two_datacenters() as (w, here, there):
        cut(w, "cut")
        await trio.sleep(30)  # until each side declares the other one dead

        assert sum(await load_both(here, there, "split", 100, 4.0)) == 601


async def test_the_own_part_decides_in_time_when_another_data_center_is_silent(
    autojump_clock: MockClock,
) -> None:
    async with two_datacenters() as (w, _, _), w.client(
        "e1", "e2", link=LinkSettings(deadline=0.3)
    ) as here:  # fmt: skip
        await here.check("api", {"split": "x"})
        cut(w, "cut")

        denied = await here.check("api", {"split": "x"}, 302, timeout=0.3)
        allowed = await here.check("api", {"split": "x"}, 290, timeout=0.3)

        assert (denied.allowed, denied.source) == (False, Source.OWNER)
        assert (allowed.allowed, allowed.source) == (True, Source.OWNER)


async def test_checks_of_an_exhausted_split_key_while_a_data_center_starts_end_no_node(
    autojump_clock: MockClock,
) -> None:
    async with empty_world(rules=RULES) as w:
        for name in ("e1", "e2"):
            await w.start(name, datacenter="eu")
        await w.settle()
        async with w.client("e1", "e2", denials=0) as limiter:
            await limiter.check_many("api", [{"split": "x"}] * 601)
            w.network.set_delay(address_of("e1"), address_of("u1"), RTT / 2)
            w.network.set_delay(address_of("e2"), address_of("u1"), RTT / 2)
            sources: set[Source] = set()
            was_joining = False

            async def ask() -> None:
                nonlocal was_joining
                while "us" not in w.nodes["e1"].cluster.rings():
                    states = {
                        row.name: row.state for row in w.nodes["e1"].queries.members(1).members
                    }
                    was_joining = was_joining or states.get("u1") == "joining"
                    decision = await limiter.check("api", {"split": "x"})
                    sources.add(decision.source)
                    await trio.sleep(0.002)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await w.start("u1", datacenter="us")

            assert was_joining
            assert sources == {Source.OWNER}


async def test_a_data_center_without_members_has_no_ring(
    autojump_clock: MockClock,
) -> None:
    async with world("e1", rules=RULES) as w:
        cross_dc = w.nodes["e1"].shards.cross_dc
        here = Member(NodeId("e1"), "dc1")
        there = Member(NodeId("u1"), "us")
        cross_dc.set_view(View.of([here]), View.of([here, there]))
        assert cross_dc.other_rings() == {}

        cross_dc.set_view(View.of([here, there]), View.of([here]))
        assert cross_dc.other_rings() == {"us": View.of([there]).ring("us")}


async def test_a_limit_with_a_home_is_decided_there(autojump_clock: MockClock) -> None:
    async with two_datacenters() as (w, here, there):
        for limiter in (here, there):
            for number in range(10):
                decision = await limiter.check("api", {"home": str(number)})
                assert decision.source is Source.OWNER

        for number in range(10):
            assert (await there.peek("api", {"home": str(number)})).remaining == 598
        assert w.count("u1", "checks") + w.count("u2", "checks") == 30


async def test_counts_of_a_limit_of_one_data_center_are_not_sent(
    autojump_clock: MockClock,
) -> None:
    async with two_datacenters() as (w, here, there):
        assert await load_both(here, there, "near", 100, 1.0) == (100, 100)
        await trio.sleep(3)

        assert (await here.peek("api", {"near": "x"})).remaining == 500
        assert w.total("cells_sent") == 0


async def test_a_global_count_survives_the_hand_over_of_its_shard(
    autojump_clock: MockClock,
) -> None:
    async with two_datacenters() as (w, here, there):
        admitted = await load_both(here, there, "fixed", 50, 2.0)
        await trio.sleep(2)
        await w.stop("e1")
        await w.settle()
        await trio.sleep(3)

        seen = [(await limiter.peek("api", {"fixed": "x"})).remaining for limiter in (here, there)]
        assert seen == [600 - sum(admitted)] * 2


@pytest.mark.parametrize("key", ["fixed", "sliding", "token"])
async def test_counts_of_another_data_center_survive_a_crash_of_the_node_that_received_them(
    key: str, autojump_clock: MockClock
) -> None:
    values = [str(number) for number in range(20)]
    async with two_datacenters() as (w, here, there):
        for value in values:
            await there.check("api", {key: value}, cost=300)
        await trio.sleep(2)
        cut(w, "cut")
        await w.crash("e1")
        await trio.sleep(1)

        found = [await here.peek("api", {key: value}) for value in values]

        assert {each.source for each in found} == {Source.OWNER, Source.STANDBY}
        drained = 10 * 5 if key == "token" else 0
        assert all(300 <= (each.remaining or 0) <= 300 + drained for each in found)


async def test_a_data_center_that_lost_all_its_nodes_recovers_the_counts_that_it_sent(
    autojump_clock: MockClock,
) -> None:
    kinds = ("fixed", "sliding", "token")
    async with two_datacenters() as (w, here, there):
        for key in kinds:
            assert await load_both(here, there, key, 50, 1.0) == (50, 50)
        await trio.sleep(1.5)
        await restart_all(w, "e1", "e2")
        async with w.client("e1", "e2") as again:
            await trio.sleep(1)
            assert [await remaining(each, *kinds) for each in (again, there)] == [[500] * 3] * 2
            assert w.count("e1", "hits_recalled") + w.count("e2", "hits_recalled") == 150

            for key in kinds:
                assert await load(again, key, 50, 0.5) == 25
            await trio.sleep(1.5)
            assert [await remaining(each, *kinds) for each in (again, there)] == [[475] * 3] * 2


async def remaining(limiter: Limiter, *keys: str) -> list[int | None]:
    return [(await limiter.peek("api", {key: "x"})).remaining for key in keys]


async def restart_all(w: World, *names: str) -> None:
    """Lose all nodes of a data center at once and start them again."""
    for name in names:
        await w.crash(name)
    for name in names:
        await w.start(name, datacenter=NODES[name])
    await w.settle()


async def test_counts_that_another_data_center_sends_in_our_name_are_refused(
    autojump_clock: MockClock,
) -> None:
    async with two_datacenters() as (w, here, _):
        await here.check("api", {"fixed": "x"})
        node = w.nodes["e1"]
        [match] = w.rules.match("api", [_descriptor("fixed", "x")])
        assert match is not None

        forged = WindowCounts(1, "eu", [match.key], [[0, 500]])
        assert isinstance(node.shards.cross_dc.receive_counts("us", forged), Refused)
        future = WindowCounts(2, "us", [match.key], [[1000, 500]])
        assert isinstance(node.shards.cross_dc.receive_counts("us", future), Done)

        assert w.count("e1", "cells_refused") == 2
        assert (await here.peek("api", {"fixed": "x"})).remaining == 599


def _descriptor(key: str, value: str):  # type: ignore[no-untyped-def]
    from ringfence.rules import Descriptor

    return Descriptor(((key, value),))
