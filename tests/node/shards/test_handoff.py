"""Transfers of counters after a join, leave, crash, restart and split, on an in-memory network."""

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from hashring import shard_of
from ringfence.client.limiter import Limiter
from ringfence.wire import Source
from tests.node.cluster import NAMES, World, address_of, counter, owned, ring_of, world

RULES = """
domain: api
descriptors:
  - {key: fixed, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: fixed_window}}
  - {key: sliding, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: log, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: sliding_window_log}}
  - {key: token, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: token_bucket}}
  - {key: leaky, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: leaky_bucket}}
  - {key: busy, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: concurrency}}
"""
KINDS = ("fixed", "sliding", "log", "token", "leaky", "busy")
KEYS = [{kind: str(number)} for kind in KINDS for number in range(12)]


async def spend(limiter: Limiter, cost: int = 3) -> None:
    for key in KEYS:
        assert (await limiter.check("api", key, cost)).allowed


async def left(limiter: Limiter) -> set[int | None]:
    return {(await limiter.peek("api", key)).remaining for key in KEYS}


async def test_a_joining_node_continues_from_the_counts_of_others(
    autojump_clock: MockClock,
) -> None:
    async with world("a", "b", rules=RULES) as w, w.client("a") as limiter:
        await spend(limiter)

        await w.start("c")
        await w.settle()

        assert await left(limiter) == {7}
        assert w.count("c", "keys_pulled") > 0
        assert w.total("shards_taken") == 0


def state_of(w: World, name: str, viewer: str) -> str | None:
    rows = w.nodes[viewer].queries.members(1).members
    return next((row.state for row in rows if row.name == name), None)


async def test_a_joining_node_receives_checks_only_after_its_shards(
    autojump_clock: MockClock,
) -> None:
    async with world("a", "b", rules=RULES) as w, w.client("a") as limiter:
        await spend(limiter, 1)
        states: list[tuple[str | None, int]] = []

        async def watch() -> None:
            while state_of(w, "c", "a") != "alive":
                await limiter.check("api", KEYS[len(states) % len(KEYS)])
                if "c" in w.nodes:
                    states.append((state_of(w, "c", "a"), w.count("c", "held_shards")))
                await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await w.start("c")

        joining = [held for state, held in states if state == "joining"]
        assert max(joining) == w.count("c", "owned_shards") == w.count("c", "held_shards")
        assert len(set(joining)) > 2  # in several steps
        assert w.total("undecided") == w.total("shards_taken") == 0


async def test_counts_survive_a_node_that_dies_while_it_joins(autojump_clock: MockClock) -> None:
    async with world("a", "b", rules=RULES) as w, w.client("a") as limiter:
        await spend(limiter)
        await trio.sleep(0.3)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(w.start, "c")
            while state_of(w, "c", "a") != "joining":  # noqa: ASYNC110 - there is no event to wait for.
                await trio.sleep(0.001)
            await trio.sleep(0.15)
            w.network.crash(address_of("c"))
            nursery.cancel_scope.cancel()
        w.nodes.pop("c")
        await trio.sleep(10)
        await w.settle()

        assert await left(limiter) == {7}


async def test_a_leaving_node_transfers_every_count(autojump_clock: MockClock) -> None:
    async with world(rules=RULES) as w, w.client("a") as limiter:
        await spend(limiter)

        await w.stop("b")
        await w.settle()

        assert await left(limiter) == {7}
        assert w.total("shards_taken") == 0


async def test_checks_during_a_leave_and_a_join_are_all_counted_once(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=RULES) as w, w.client("a") as limiter:
        sources: set[Source] = set()

        async def ask(number: int) -> None:
            await trio.sleep(number / 100)
            decision = await limiter.check("api", KEYS[number % len(KEYS)])
            assert decision.allowed
            sources.add(decision.source)

        async with trio.open_nursery() as nursery:
            for number in range(5 * len(KEYS)):
                nursery.start_soon(ask, number)
            await trio.sleep(0.5)
            await w.stop("c")
            await w.start("c")

        await w.settle()
        assert await left(limiter) == {5}
        assert sources == {Source.OWNER}


@pytest.mark.parametrize("zones", [("", "", ""), ("x", "x", "y")], ids=["one zone", "two zones"])
async def test_after_a_crash_other_nodes_continue_from_replicas(
    autojump_clock: MockClock, zones: tuple[str, ...]
) -> None:
    async with world("a", rules=RULES) as w, w.client("a") as limiter:
        await w.stop("a")
        for name, zone in zip(NAMES, zones, strict=True):
            await w.start(name, zone=zone)
        await w.settle()
        await spend(limiter)
        await trio.sleep(0.3)  # until the replicas arrive

        await w.crash("b")
        soon = await left(limiter)
        await trio.sleep(5)  # until it is declared dead
        later = await left(limiter)

        assert soon == later == {7}


async def test_15_minutes_after_a_crash_the_others_log_no_more_for_the_dead_node(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=RULES.replace("hour", "day")) as w, w.client("a") as limiter:
        await spend(limiter)
        await trio.sleep(0.3)  # until the replicas arrive
        await w.crash("b")
        await trio.sleep(5)  # until it is declared dead
        others = [w.nodes[name].shards.ownership for name in "ac"]
        assert all(each.covers for each in others)

        w.clock.time += 901 * 10**9
        await trio.sleep(60)

        assert [dict(each.covers) for each in others] == [{}, {}]
        assert await left(limiter) == {7}
        await w.start("b")
        await w.settle()
        assert await left(limiter) == {7}


async def test_within_four_seconds_of_a_crash_the_others_own_its_shards(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        await w.crash("b")
        with trio.fail_after(4.0):
            await w.settle()

        assert w.count("a", "owned_shards") + w.count("c", "owned_shards") == 16384


async def test_a_restarted_node_recovers_its_shards_and_counts(
    autojump_clock: MockClock,
) -> None:
    for pause in (0.2, 8.0):  # before and after it is declared dead
        async with world(rules=RULES) as w, w.client("a") as limiter:
            await spend(limiter)
            await trio.sleep(0.3)
            await w.crash("b")
            await trio.sleep(pause)

            await w.start("b")
            await w.settle()
            await trio.sleep(2)

            assert await left(limiter) == {7}
            assert w.count("b", "held_shards") == w.count("b", "owned_shards") > 0


async def test_a_node_that_restarts_without_seeds_recovers_its_counts_after_a_takeover(
    autojump_clock: MockClock,
) -> None:
    async with world("a", "b", rules=RULES, joins=True) as w, w.client("a") as limiter:
        await spend(limiter)
        await trio.sleep(0.3)
        await w.crash("b")

        await w.start("b", seeds=())
        await w.settle()
        await trio.sleep(2)

        assert w.count("a", "shards_taken") > 0
        assert await left(limiter) == {7}


async def test_a_node_that_crashes_twice_recovers_from_the_standbys_replicas(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=RULES) as w, w.client("a") as limiter:
        await w.stop("b")
        await w.start("b")
        await w.settle()
        await spend(limiter)
        await trio.sleep(0.3)

        await w.crash("b")
        await trio.sleep(0.2)
        await w.start("b")
        await w.settle()
        await trio.sleep(2)

        assert await left(limiter) == {7}


async def test_a_standby_that_restarts_before_detection_gets_its_replicas_again(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=RULES) as w, w.client("a") as limiter:
        await spend(limiter)
        await trio.sleep(0.3)
        await w.crash("b")
        await trio.sleep(0.2)
        await w.start("b")
        await w.settle()
        await trio.sleep(5)

        await w.crash("c")
        await trio.sleep(8)

        assert await left(limiter) == {7}


async def test_after_a_split_heals_the_hits_of_both_sides_count(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=RULES) as w, w.client("a") as here, w.client("b") as there:
        await spend(here, 1)
        await trio.sleep(0.3)
        for one, other in (("a", "b"), ("c", "b"), ("client1", "b")):
            w.network.cut(at(one), at(other))
        for other in ("a", "c"):
            w.network.cut(at("client2"), at(other))
        with trio.fail_after(30):
            while w.count("b", "held_shards") < 16384:  # noqa: ASYNC110 - counters have no event.
                await trio.sleep(0.1)
        for limiter in (here, there):
            await left(limiter)  # A client without requests does not discover the other members.
        await trio.sleep(1)

        await spend(here, 2)
        await spend(there, 3)
        for one, other in (("a", "b"), ("c", "b"), ("client1", "b")):
            w.network.heal(at(one), at(other))
        for other in ("a", "c"):
            w.network.heal(at("client2"), at(other))
        await trio.sleep(60)
        await w.settle()
        await left(here)
        await trio.sleep(2)

        assert await left(here) == {10 - 1 - 2 - 3}
        assert w.total("splits_healed") > 0


async def test_the_standby_prefers_its_replica_to_that_of_a_former_standby(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a") as limiter:
        ring = ring_of(NAMES)
        tenants = [owned(w.rules, "tenant", "b", number) for number in range(40)]
        client = next(
            each
            for each in tenants
            if ring.standby(shard_of(counter(w.rules, "tenant", each["tenant"]))) == "c"
        )
        await limiter.check("api", client, 10)
        await w.stop("c")
        await limiter.check("api", client, 10)
        await trio.sleep(
            0.3
        )  # Now `a` has a replica, and keeps it when `c` becomes the standby again.
        await w.start("c")
        await w.settle()
        await limiter.check("api", client, 10)
        await trio.sleep(0.3)

        await w.crash("b")
        await trio.sleep(8)

        assert (await limiter.peek("api", client)).remaining == 100 - 3 * 10


async def test_a_standby_reports_its_admissions_after_the_owner_is_reachable_again(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a") as limiter:
        client = owned(w.rules, "tenant", "b")
        await limiter.check("api", client, 10)
        await trio.sleep(0.3)
        cuts = [("client1", "b"), ("a", "b"), ("c", "b")]
        for one, other in cuts:
            w.network.cut(at(one), at(other))
        decision = await limiter.check("api", client, 5)
        for one, other in cuts:
            w.network.heal(at(one), at(other))
        await trio.sleep(5)

        assert decision.source is Source.STANDBY
        assert decision.remaining == 85
        again = await limiter.check("api", client, 0)
        assert (again.source, again.remaining) == (Source.OWNER, 85)


async def test_standby_admissions_of_an_old_window_do_not_count_later(
    autojump_clock: MockClock,
) -> None:
    """limitador#288: hits of the previous window counted in the new window after a recovery."""
    async with world() as w, w.client("a") as limiter:
        client = owned(w.rules, "tenant", "b")
        await limiter.check("api", client, 10)
        await trio.sleep(0.3)
        cuts = [("client1", "b"), ("a", "b"), ("c", "b")]
        for one, other in cuts:
            w.network.cut(at(one), at(other))
        assert (await limiter.check("api", client, 5)).source is Source.STANDBY
        w.clock.time += 60 * 10**9
        async with w.client("b", only=True) as other_limiter:
            assert (await other_limiter.check("api", client, 1)).remaining == 99
        for one, other in cuts:
            w.network.heal(at(one), at(other))
        await trio.sleep(5)

        again = await limiter.peek("api", client)
        assert (again.source, again.remaining) == (Source.OWNER, 99)


async def test_a_leave_during_a_crash_of_another_node_loses_no_check(
    autojump_clock: MockClock,
) -> None:
    """mimir#5978: a leaving member counted as unhealthy, so one more failure stopped all
    requests."""
    async with world(rules=RULES) as w:
        await w.start("d")
        await w.settle()
        async with w.client("a", "b", "c", "d", raise_on_outage=True) as limiter:
            await spend(limiter)
            await trio.sleep(0.3)
            sources: set[Source] = set()

            async def ask() -> None:
                for number in range(3 * len(KEYS)):
                    decision = await limiter.peek("api", KEYS[number % len(KEYS)])
                    sources.add(decision.source)
                    assert decision.remaining == 7
                    await trio.sleep(0.02)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await trio.sleep(0.1)
                await w.crash("b")
                await w.stop("c")

            await w.settle()
            assert sources == {Source.OWNER, Source.STANDBY}
            assert await left(limiter) == {7}


@settings(max_examples=6, deadline=None)
@given(
    loss=st.floats(0, 0.3),
    seed=st.integers(0, 1000),
    leaver=st.sampled_from(NAMES),
)
def test_a_transfer_completes_despite_lost_probes(loss: float, seed: int, leaver: str) -> None:
    async def run() -> None:
        async with world(rules=RULES) as w:
            for one in NAMES:
                for other in NAMES:
                    if one < other:
                        w.network.set_loss(at(one), at(other), loss)
            first = next(name for name in NAMES if name != leaver)
            async with w.client(first) as limiter:
                await spend(limiter)
                await w.stop(leaver)
                with trio.fail_after(30):
                    await w.settle()
                assert await left(limiter) == {7}

    trio.run(run, clock=MockClock(autojump_threshold=0))


def at(name: str) -> tuple[str, int]:
    return (name, 1) if name.startswith("client") else address_of(name)
