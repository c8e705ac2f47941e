"""Nodes that leave the ring: clients are redirected, and no answer is lost."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from node.node import Node
from ringfence.client.decision import Decision
from ringfence.wire import Source
from tests.node.cluster import HandClock, World, address_of, empty_world, owned, world


async def test_a_draining_node_redirects_all_clients_and_loses_no_answer(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a") as limiter:
        sources: list[Source] = []

        async def ask(number: int) -> None:
            await trio.sleep(number / 1000)
            started = trio.current_time()
            decision = await limiter.check("api", {"tenant": str(number)})
            sources.append(decision.source)
            assert trio.current_time() - started < 0.1

        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(ask, number)
            await trio.sleep(0.15)
            started = trio.current_time()
            await w.stop("b")
            duration = trio.current_time() - started

        assert len(sources) == 300
        assert set(sources) == {Source.OWNER}
        assert duration < 2.0


async def test_a_draining_node_answers_its_forwarded_requests(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a", only=True, answer_timeout=2.0) as limiter:
        w.network.set_delay(address_of("a"), address_of("b"), 0.1)
        decisions: list[Decision] = []

        async def ask() -> None:
            decisions.append(await limiter.check("api", owned(w.rules, "client", "b")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.01)
            await w.stop("a")

        assert decisions[0].source in (Source.OWNER, Source.STANDBY)


async def test_draining_is_bounded_even_if_a_client_stays_connected(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a") as limiter:
        await limiter.check("api", {"client": "x"})
        w.network.cut(("client1", 1), address_of("b"))

        with trio.fail_after(10.1):  # to transfer shards, and then to answer requests in flight
            await w.stop("b")


ACROSS_RULES = """
domain: api
descriptors:
  - key: client
    rate_limit: {unit: minute, requests_per_unit: 5, algorithm: fixed_window}
  - key: shared
    rate_limit: {unit: minute, requests_per_unit: 5, algorithm: fixed_window, scope: global}
"""


@asynccontextmanager
async def a_data_center_with_counters(**counts: int) -> AsyncIterator[World]:
    """Start nodes a and b in dc1 and x in dc2. Nodes of dc1 count keys, by the name of the rule."""
    async with empty_world(rules=ACROSS_RULES) as w:
        for name in ("a", "b"):
            await w.start(name)
        await w.start("x", datacenter="dc2")
        await w.settle()
        async with w.client("a", leases=False) as limiter:
            for rule, count in counts.items():
                for number in range(count):
                    await limiter.check("api", {rule: str(number)})
        yield w


async def stop_together(w: World, *names: str, pause: float = 0.0) -> None:
    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(w.stop, name)
            await trio.sleep(pause)


def fields_of_losses(caplog: pytest.LogCaptureFixture) -> list[tuple[int, int]]:
    """Return the numbers of lost and of global keys in each warning about lost counters."""
    found = [
        re.search(r"counters are lost: lost_keys=(\d+) global_keys=(\d+)", line)
        for line in caplog.messages
    ]
    return [(int(each[1]), int(each[2])) for each in found if each is not None]


@pytest.mark.parametrize("pause", [0.0, 0.02, 0.5])
async def test_all_nodes_of_the_only_data_center_that_stop_together_log_their_lost_counters(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, pause: float
) -> None:
    async with world() as w:
        async with w.client("a") as limiter:
            for number in range(100):
                await limiter.check("api", {"tenant": str(number)})
        await stop_together(w, *w.nodes, pause=pause)

    losses = fields_of_losses(caplog)
    assert sum(lost for lost, _ in losses) == 100
    assert all(lost > 0 and shared == 0 for lost, shared in losses)
    assert "before other members have fetched" not in caplog.text


async def test_a_node_that_stops_during_a_partition_does_not_log_lost_counters(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as w:
        async with w.client("a") as limiter:
            for number in range(20):
                await limiter.check("api", {"tenant": str(number)})
        for other in ("b", "c"):
            w.network.cut(address_of("a"), address_of(other))
        await trio.sleep(20)
        await w.stop("a")

    assert not fields_of_losses(caplog)


async def test_a_data_center_that_stops_logs_which_counters_other_data_centers_have(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_data_center_with_counters(client=30, shared=20) as w:
        await stop_together(w, "a", "b")

    losses = fields_of_losses(caplog)
    assert (sum(lost for lost, _ in losses), sum(shared for _, shared in losses)) == (30, 20)
    assert "; other data centers have the counts of global limits" in caplog.text
    assert "before other members have fetched" not in caplog.text


async def test_a_data_center_that_stops_with_only_counters_of_global_limits_loses_nothing(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_data_center_with_counters(shared=20) as w:
        await stop_together(w, "a", "b")

    assert "counters are lost" not in caplog.text
    assert "before other members have fetched" not in caplog.text


async def test_a_data_center_that_stops_logs_that_it_could_not_send_its_counts(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_data_center_with_counters() as w:
        for name in ("a", "b"):
            w.network.cut(address_of(name), address_of("x"))
        async with w.client("a", leases=False) as limiter:
            for number in range(20):
                await limiter.check("api", {"shared": str(number)})
        await stop_together(w, "a", "b")

    assert "; not all counts of global limits were sent to other data centers" in caplog.text


async def test_a_draining_node_accepts_no_new_clients(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a") as limiter:
        w.network.cut(("client1", 1), address_of("b"))  # This keeps the node draining.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(w.nodes["b"].leave)
            await trio.sleep(3)
            async with w.client("b", "a") as newcomer:
                decision = await newcomer.check("api", owned(w.rules, "client", "b"))

            assert decision.source is Source.OWNER
            assert w.count("b", "refused_draining") > 0
        assert limiter.rules.domains


async def test_checks_of_a_shard_that_moves_back_and_forth_are_always_decided(
    autojump_clock: MockClock,
) -> None:
    async with (
        world(joins=True) as w,
        w.client("a", only=True) as limiter,
        w.client("b", only=True) as other,
    ):
        # Node b connects to a now: with the delay, a handshake takes longer than a check waits.
        await other.check("api", owned(w.rules, "tenant", "a"))
        w.network.set_delay(address_of("a"), address_of("b"), 0.2)  # Gossip through c is faster.
        keys = [owned(w.rules, "tenant", "b", number) for number in range(20)]
        for is_forward_only in (True, False, True):
            await _set_forward_only(w, "b", is_forward_only=is_forward_only)
            decisions = [await limiter.check("api", key) for key in keys]
            assert {each.source for each in decisions} == {Source.OWNER}


async def test_nodes_that_stop_together_do_not_wait_for_each_other(
    autojump_clock: MockClock,
) -> None:
    async with world("a", "b") as w:
        async with w.client("a") as limiter:
            assert (await limiter.check("api", {"client": "c"})).allowed
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for name in ("a", "b"):
                nursery.start_soon(w.stop, name)

        assert trio.current_time() < began + 3


async def _set_forward_only(w: World, name: str, *, is_forward_only: bool) -> None:
    """Remove a member from the ring or add it; wait until the rings of all nodes have changed."""
    gossip = w.nodes[name].cluster.gossip
    assert gossip is not None
    gossip.set_forward_only(is_forward_only)
    with trio.fail_after(30):
        while any(_ring_has(node, name) is is_forward_only for node in w.nodes.values()):  # noqa: ASYNC110
            await trio.sleep(0.001)


def _ring_has(node: Node, name: str) -> bool:
    return any(member.name == name for member in node.cluster.ring.members)


async def test_a_node_hands_over_to_a_member_that_only_forwards_meanwhile(
    autojump_clock: MockClock,
) -> None:
    async with world("a") as w:
        await w.start("b")
        for name in ("x", "y"):
            await w.start(name, datacenter="dc2")
        await w.settle()
        ahead = HandClock()
        ahead.time = w.clock.time + 3600 * 10**9
        w.nodes["b"].clock.host = ahead
        async with w.client("a") as limiter:
            for _ in range(5):
                assert (await limiter.check("api", {"client": "c"})).allowed
            while not w.nodes["b"].membership.me.forward_only:  # noqa: ASYNC110
                await trio.sleep(0.05)
            await w.stop("a")

            assert not (await limiter.check("api", {"client": "c"})).allowed
