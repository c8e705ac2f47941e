"""Waits for slots of concurrency limits over three nodes: in order, bounded and always answered."""

from contextlib import asynccontextmanager

import pytest
import trio

import ringfence
from hashring import shard_of
from node.config.access import Access
from ringfence.errors import ConfigError
from ringfence.peering.slot_queue import MAX_PER_CONNECTION
from ringfence.settings.token_file import Scope, TokenEntry
from ringfence.wire import Source, token_digest
from tests.node.cluster import (
    NAMES,
    World,
    address_of,
    counter,
    empty_world,
    owned,
    ring_of,
    world,
)

RULES = """
domain: api
descriptors:
  - key: job
    rate_limit: {unit: minute, requests_per_unit: 2, algorithm: concurrency}
  - key: alone
    rate_limit: {unit: minute, requests_per_unit: 1, algorithm: concurrency}
  - key: brief
    rate_limit: {unit: second, requests_per_unit: 1, algorithm: concurrency}
  - key: tokens
    rate_limit: {unit: minute, requests_per_unit: 9, algorithm: fixed_window}
"""


class Watch:
    """Recorder of the number of slot holders and of their order."""

    def __init__(self):
        self.now = self.most = 0
        self.order = []

    async def work(self, limiter, entries, name, seconds, max_wait=10):
        async with limiter.hold("api", entries, max_wait=max_wait):
            self.now += 1
            self.most = max(self.most, self.now)
            self.order.append(name)
            await trio.sleep(seconds)
            self.now -= 1


async def run_time(w: World) -> None:
    """Make the nodes' clock follow virtual time."""
    started, started_wall = trio.current_time(), w.clock.time
    while True:
        await trio.sleep(0.02)
        w.clock.time = started_wall + round((trio.current_time() - started) * 1e9)


@pytest.mark.parametrize("only", [False, True])
async def test_fifty_tasks_share_two_slots_without_losing_time(autojump_clock, only):
    async with world(rules=RULES) as w, w.client("a", only=only) as limiter:
        entries, watch = owned(w.rules, "job", "b"), Watch()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(watch.work, limiter, entries, number, 0.1)

        assert watch.most == 2
        assert len(watch.order) == 50
        assert trio.current_time() - began == pytest.approx(2.5, rel=0.1)
        assert w.total("slot_waiters") == 0


async def test_waiters_of_several_clients_get_slots_in_order_of_arrival(autojump_clock):
    async with world(rules=RULES) as w, w.client() as one, w.client() as other:
        entries, watch = owned(w.rules, "alone", "b"), Watch()
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(watch.work, (one, other)[number % 2], entries, number, 0.3)
                await trio.sleep(0.02)

        assert watch.order == list(range(20))


async def test_a_check_does_not_overtake_waiters(autojump_clock):
    async with world(rules=RULES) as w, w.client() as limiter:
        entries, watch = owned(w.rules, "alone", "b"), Watch()
        async with trio.open_nursery() as nursery:
            async with limiter.hold("api", entries):
                nursery.start_soon(watch.work, limiter, entries, "waiter", 1)
                await trio.sleep(0.1)
            denied = await limiter.check("api", entries)
            await trio.sleep(0.1)

            assert not denied
            assert watch.order == ["waiter"]


async def test_a_waiter_that_gives_up_leaves_the_queue(autojump_clock):
    async with world(rules=RULES) as w, w.client() as limiter:
        entries = owned(w.rules, "alone", "b")
        async with limiter.hold("api", entries):
            began = trio.current_time()
            with pytest.raises(ringfence.SlotUnavailable) as raised:
                async with limiter.hold("api", entries, max_wait=0.5):
                    raise AssertionError
            assert trio.current_time() - began == pytest.approx(0.5, abs=0.05)
            assert isinstance(raised.value, ringfence.RingfenceError)
            assert not raised.value.decision

            with trio.move_on_after(0.5):
                await limiter.acquire("api", entries)
            await trio.sleep(0.05)
            assert w.total("slot_waiters") == 0
        assert await limiter.check("api", entries)


async def test_with_raise_on_denied_off_the_block_gets_the_denial(autojump_clock):
    async with world(rules=RULES) as w, w.client() as limiter:
        entries = owned(w.rules, "alone", "b")
        async with (
            limiter.hold("api", entries) as held,
            limiter.hold("api", entries, max_wait=0, raise_on_denied=False) as denied,
        ):
            assert held
            assert not denied


async def test_a_stream_longer_than_the_period_keeps_its_slot(autojump_clock):
    async with world(rules=RULES) as w, w.client() as limiter, w.client() as other:
        w.nursery.start_soon(run_time, w)
        entries = owned(w.rules, "brief", "b")
        async with limiter.hold("api", entries):
            for _ in range(8):
                await trio.sleep(0.5)
                assert not await other.check("api", entries)
        assert await other.check("api", entries)
        assert w.total("renewals") >= 8


async def test_a_killed_holders_slot_is_free_after_its_period(autojump_clock):
    async with world(rules=RULES) as w, w.client() as other:
        w.nursery.start_soon(run_time, w)
        entries = owned(w.rules, "brief", "b")
        async with w.client() as holder:
            assert await holder.acquire("api", entries)  # and no renewal, since the holder is gone
        began = trio.current_time()
        async with other.hold("api", entries, max_wait=10):
            assert trio.current_time() - began == pytest.approx(1.0, abs=0.1)


async def test_a_slot_is_kept_when_its_owner_dies(autojump_clock):
    async with world(rules=RULES) as w, w.client() as limiter, w.client() as other:
        w.nursery.start_soon(run_time, w)
        entries = owned(w.rules, "alone", "b")
        async with limiter.hold("api", entries):
            await trio.sleep(0.3)
            await w.crash("b")
            for _ in range(7):
                await trio.sleep(10)
                denied = await other.check("api", entries)
                assert not denied
                assert denied.source is not ringfence.Source.POLICY
        await trio.sleep(0.1)
        assert await other.check("api", entries)


async def test_a_release_without_a_reachable_node_is_sent_after_reconnection(
    autojump_clock,
):
    async with world(rules=RULES) as w, w.client() as limiter, w.client() as other:
        entries = owned(w.rules, "alone", "b")
        async with limiter.hold("api", entries):
            for name in NAMES:
                w.network.cut(("client1", 1), address_of(name))
        await trio.sleep(15)
        assert not await other.check("api", entries)
        for name in NAMES:
            w.network.heal(("client1", 1), address_of(name))
        await trio.sleep(8)
        assert await other.check("api", entries)


async def test_after_a_crash_of_the_owner_the_standby_serves_the_waiters(autojump_clock):
    async with world(rules=RULES) as w, w.client() as limiter:
        entries, watch = owned(w.rules, "job", "b"), Watch()
        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(watch.work, limiter, entries, number, 1.0, 60)
            await trio.sleep(0.5)
            await w.crash("b")

        assert watch.most == 2
        assert len(watch.order) == 6


async def test_a_waiter_is_served_after_its_shard_moved(autojump_clock):
    async with world("a", "c", rules=RULES) as w, w.client() as limiter:
        entries, watch = owned(w.rules, "job", "b"), Watch()
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(watch.work, limiter, entries, number, 2.0, 60)
            await trio.sleep(0.5)
            await w.start("b")
            await w.settle()

        assert watch.most == 2
        assert len(watch.order) == 10
        shard = shard_of(counter(w.rules, *next(iter(entries.items()))))
        assert ring_of(NAMES).owner(shard) == "b"
        assert w.nodes["b"].shards.ownership.held[shard]


async def test_a_repeated_release_frees_one_slot(autojump_clock):
    async with world(rules=RULES) as w, w.client() as limiter:
        entries = owned(w.rules, "job", "b")
        first = await limiter.acquire("api", entries)
        await limiter.acquire("api", entries)
        await limiter.release(first)
        await limiter.release(first)
        assert (await limiter.peek("api", entries)).remaining == 1


async def test_slots_are_released_when_the_client_closes(autojump_clock):
    async with world(rules=RULES) as w, w.client() as other:
        entries = owned(w.rules, "job", "b")
        async with w.client() as limiter:
            decision = await limiter.acquire("api", entries)
            limiter.keep(decision)
            await limiter.release_held()
        assert (await other.peek("api", entries)).remaining == 2


async def test_waiters_of_one_connection_are_bounded_and_all_served(autojump_clock):
    async with world(rules=RULES) as w, w.client() as limiter:
        entries, watch = owned(w.rules, "alone", "b"), Watch()
        waiting = MAX_PER_CONNECTION + 5
        async with trio.open_nursery() as nursery, limiter.hold("api", entries):
            for number in range(waiting):
                nursery.start_soon(watch.work, limiter, entries, number, 0.0, 60)
            await trio.sleep(1)
            assert w.count("b", "slot_waiters") == MAX_PER_CONNECTION
            assert w.count("b", "slot_waiters_refused") >= 5

        assert len(watch.order) == waiting
        assert watch.most == 1


async def test_a_denial_estimates_when_a_slot_is_free(autojump_clock):
    async with world(rules=RULES) as w, w.client() as limiter:
        entries = owned(w.rules, "job", "b")
        async with limiter.hold("api", entries):
            await trio.sleep(4)
        async with limiter.hold("api", entries), limiter.hold("api", entries):
            denied = await limiter.check("api", entries)
            assert denied.retry_after == pytest.approx(2, rel=0.1)  # of two slots held for 4 s each


async def test_ad_hoc_limits_support_hold_and_peek(autojump_clock):
    async with world(rules=RULES) as w, w.client() as limiter:
        async with limiter.hold_limit("1 concurrent", "user:1"):
            assert (await limiter.peek_limit("1 concurrent", "user:1")).remaining == 0
            with pytest.raises(ringfence.SlotUnavailable):
                async with limiter.hold_limit("1 concurrent", "user:1", max_wait=0.2):
                    raise AssertionError
        assert (await limiter.peek_limit("1 concurrent", "user:1")).remaining == 1
        with pytest.raises(ringfence.ConfigError, match="must have a concurrency limit"):
            async with limiter.hold_limit("1/s", "user:1"):
                raise AssertionError


async def test_a_limiter_that_closes_ends_its_waits_and_keeps_no_slot(autojump_clock):
    limit, blocks, ended = "1 concurrent ttl 60s", [], []

    async def work(limiter, name):
        try:
            async with limiter.hold_limit(limit, "k", max_wait=30):
                blocks.append(name)
                await trio.sleep(3)
        except ConfigError:
            ended.append(name)

    async with world() as w, w.client() as limiter, w.client() as other, trio.open_nursery() as n:
        for name in ("first", "second", "third"):
            n.start_soon(work, limiter, name)
            await trio.sleep(0.1)
        await limiter.aclose()

        assert (blocks, sorted(ended)) == (["first"], ["second", "third"])
        free = await other.check_limit(limit, "k")
        assert free.allowed
        assert free.source is Source.OWNER


@asynccontextmanager
async def world_of_token(*scopes):
    """Run three nodes; the token of their clients has these scopes."""
    async with empty_world(rules=RULES) as w:
        token = TokenEntry(token_digest(b""), frozenset(scopes))
        w.access = Access((b"k" * 32,), "ringfence", {"app": token})
        await w.start_together(NAMES)
        await w.settle()
        yield w


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("scopes", [(Scope.CHECK,), (Scope.CHECK, Scope.REFUND)])
async def test_the_log_names_refunds_that_a_node_refuses_after_a_restart(
    autojump_clock, caplog, scopes, restarts
):
    async with world_of_token(*scopes) as w, w.client("a") as limiter:
        job, tokens = owned(w.rules, "job", "b"), owned(w.rules, "tokens", "b")
        async with limiter.hold("api", job), limiter.reserve("api", tokens, cost=4) as reserved:
            reserved.cost = 1
            if restarts:
                await w.stop("b")
                await w.start("b")
                await w.settle()

        warnings = [r.getMessage() for r in caplog.records if "refund refused" in r.message]
        is_lost = restarts and len(scopes) == 1
        assert (await limiter.peek("api", job)).remaining == (1 if is_lost else 2)
        assert (await limiter.peek("api", tokens)).remaining == (5 if is_lost else 8)
        named = ("units of rule api > tokens", "slots of rule api > job") if is_lost else ()
        for name, warning in zip(named, warnings, strict=True):
            assert name in warning
            assert "add-token keys NAME:check,refund" in warning


async def test_the_log_names_slots_that_a_node_does_not_release(autojump_clock, caplog):
    async with world_of_token(Scope.CHECK) as w, w.client("a") as limiter:
        async with limiter.hold("api", owned(w.rules, "job", "b")):
            await w.stop("b")
            await trio.sleep(0.5)

        assert "slots of rule api > job stay in use" in caplog.text


async def test_a_slot_that_is_held_for_long_is_released(autojump_clock):
    async with world_of_token(Scope.CHECK) as w, w.client("a") as limiter:
        w.nursery.start_soon(run_time, w)
        job = owned(w.rules, "brief", "b")
        async with limiter.hold("api", job):
            await trio.sleep(5)

        assert (await limiter.peek("api", job)).remaining == 1
