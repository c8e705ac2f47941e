"""Answers of a node to queries about the cluster and about itself."""

from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from hashring import SHARDS, shard_of
from tests.node.cluster import counter, owned, world


async def test_each_member_is_described_as_the_asked_node_sees_it(
    autojump_clock: MockClock,
) -> None:
    async with world("a", "b", joins=True) as w:
        await trio.sleep(3)
        node = w.nodes["a"]
        message = node.queries.peers(7)
        mine, other = cast(list[dict[str, Any]], message.plain)

    assert message.seq == 7
    assert (mine["name"], other["name"]) == ("a", "b")
    assert [(row["host"], row["port"]) for row in (mine, other)] == [("a", 7101), ("b", 7101)]
    assert [row["datacenter"] for row in (mine, other)] == ["dc1"] * 2
    assert [row["state"] for row in (mine, other)] == ["alive"] * 2
    assert [row["weight"] for row in (mine, other)] == [1.0] * 2
    assert mine["owned_shards"] + other["owned_shards"] == SHARDS
    assert [row["state_for_s"] for row in (mine, other)] == pytest.approx([3.8, 3.1], abs=0.5)
    assert (mine["rtt_ms"], other["rtt_ms"]) == (None, pytest.approx(1.0))
    assert (mine["clock_offset_ms"], mine["clock_suspect"]) == (0.0, False)
    assert (other["clock_offset_ms"], other["clock_suspect"]) == (None, None)


async def test_a_member_that_died_has_been_dead_for_some_seconds(
    autojump_clock: MockClock,
) -> None:
    async with world("a", "b", joins=True) as w:
        node = w.nodes["a"]
        alive = cast(list[dict[str, Any]], node.queries.peers(1).plain)[1]
        await w.crash("b")
        with trio.fail_after(60):
            while w.count("a", "held_shards") < SHARDS:  # noqa: ASYNC110
                await trio.sleep(0.1)
        await trio.sleep(10)
        dead = cast(list[dict[str, Any]], node.queries.peers(1).plain)[1]

    assert (alive["state"], dead["state"]) == ("alive", "dead")
    assert dead["owned_shards"] == 0
    assert dead["state_for_s"] == pytest.approx(10.5, abs=0.5)


async def test_a_node_knows_the_used_units_of_the_keys_that_it_holds(
    autojump_clock: MockClock,
) -> None:
    async with world("a", "b") as w:
        names = ("a", "b")
        mine = owned(w.rules, "client", "a", names=names)
        theirs = owned(w.rules, "client", "b", names=names)
        async with w.client("a", "b") as limiter:
            for descriptor in (mine, theirs):
                await limiter.check("api", descriptor, 2)
        node = w.nodes["a"]
        keys = [counter(w.rules, "client", each["client"]) for each in (mine, theirs)]

        used = [node.queries.used(key) for key in keys]
        held, states = node.queries.held_map(), node.queries.held_states()

    assert used == [2, None]
    assert [held[shard_of(key)] for key in keys] == [1, 0]
    assert bool(states[shard_of(keys[0])])
    assert not states[shard_of(keys[1])]


async def test_counters_and_denied_keys_of_any_member_can_be_queried(
    autojump_clock: MockClock,
) -> None:
    async with world("a", "b", joins=True) as w:
        names = ("a", "b")
        theirs = owned(w.rules, "client", "b", names=names)
        for node in w.nodes.values():
            node.queries.measure()
        await trio.sleep(5)
        async with w.client("a", "b", denials=0) as limiter:
            while (await limiter.check("api", theirs)).allowed:
                pass
        queries = w.nodes["a"].queries
        own, other = await queries.counters_of("a"), await queries.counters_of("b")
        lists = [await queries.throttled_of(name, 5) for name in ("a", "b")]
        unknown = await queries.counters_of("c"), await queries.throttled_of("c", 5)

    assert own is not None
    assert other is not None
    assert own["keys"] == 0
    assert other["keys"] == 1
    assert own["held_shards"] + other["held_shards"] == SHARDS
    assert unknown == (None, None)
    assert [each and each.denied for each in lists] == [0, 1]
    assert [each and each.counting_s for each in lists] == [5, 5]
    assert [each and each.keys for each in lists] == [
        [],
        [counter(w.rules, "client", theirs["client"])],
    ]
