"""Partial answers: decided rows do not wait for undecided rows in a data center 40 ms away."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice

import pytest
import trio
from trio.testing import MockClock

from hashring import shard_of
from node.requests.request_parts import Part
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.limiter import Code, Outcomes
from ringfence.wire import Batch, Op, Request, Results, Source
from tests.node.cluster import World, address_of, counter, world

DELAY = 0.04
NODES = {"e1": "eu", "e2": "eu", "u1": "us"}
RULES = """
domain: api
descriptors:
  - key: near
    rate_limit: {unit: minute, requests_per_unit: 600, algorithm: fixed_window, leases: false}
  - key: home
    rate_limit: {unit: minute, requests_per_unit: 600, global: {mode: home, home: us}}
  - key: split
    rate_limit: {unit: minute, requests_per_unit: 10, global: {mode: split}}
"""


@asynccontextmanager
async def far_apart(
    only: str = "", standby_after: float | None = None
) -> AsyncIterator[tuple[World, Limiter]]:
    """Run two data centers and a client of one; with `only`, that node receives every request."""
    async with world("e1", rules=RULES) as w:
        await w.stop("e1")
        for name, datacenter in NODES.items():
            await w.start(name, datacenter=datacenter)
        for name in ("e1", "e2"):
            w.network.set_delay(address_of(name), address_of("u1"), DELAY)
        await w.settle()
        seeds = [only] if only else ["e1", "e2"]
        async with w.client(
            *seeds, only=bool(only), standby_after=standby_after, denials=0, leases=False
        ) as limiter:
            await limiter.check("api", {"home": "warm"})
            yield w, limiter


def held_by(w: World, name: str, key: str, count: int) -> list[str]:
    """Return values whose counters a node holds."""
    held_shards = w.nodes[name].shards.ownership.held
    values = (f"{name}{number}" for number in range(10_000))
    held = (v for v in values if held_shards[shard_of(counter(w.rules, key, v))])
    return list(islice(held, count))


class Timed:
    """Concurrent checks with the duration of each in ms."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.took: dict[str, list[float]] = {}
        self.decisions: list[Decision] = []

    async def check(self, key: str, value: str) -> None:
        started = trio.current_time()
        self.decisions.append(await self.limiter.check("api", {key: value}))
        self.took.setdefault(key, []).append((trio.current_time() - started) * 1000)


@pytest.mark.parametrize("only", ["", "e1"])
async def test_local_checks_do_not_wait_for_a_remote_check_in_their_frame(
    autojump_clock: MockClock, only: str
) -> None:
    async with far_apart(only) as (w, limiter):
        timed = Timed(limiter)
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(timed.check, "near", str(number))
                if number == 10:
                    nursery.start_soon(timed.check, "home", "x")

        assert max(timed.took["near"]) < 5
        assert 2 * DELAY * 1000 <= timed.took["home"][0] < 100
        assert {decision.source for decision in timed.decisions} == {Source.OWNER}
        assert w.total("checks") == 22


async def test_an_exhausted_key_sent_to_another_data_center_delays_no_other(
    autojump_clock: MockClock,
) -> None:
    async with far_apart("e1") as (w, limiter):
        for _ in range(5):
            assert (await limiter.check("api", {"split": "x"})).allowed
        timed = Timed(limiter)
        async with trio.open_nursery() as nursery:
            for value in held_by(w, "e1", "near", 20):
                nursery.start_soon(timed.check, "near", value)
            nursery.start_soon(timed.check, "split", "x")

        assert max(timed.took["near"]) < 5
        assert timed.took["split"][0] >= 2 * DELAY * 1000
        assert all(decision.allowed for decision in timed.decisions), "the other part has units"
        assert w.total("borrowed") == 1


async def test_a_hedged_check_counts_once_if_its_own_part_has_units_again(
    autojump_clock: MockClock,
) -> None:
    async with far_apart(standby_after=DELAY / 2) as (w, limiter):
        for _ in range(5):
            assert (await limiter.check("api", {"split": "x"})).allowed
        timed = Timed(limiter)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timed.check, "split", "x")
            await trio.sleep(DELAY / 4)
            await limiter.refund("api", {"split": "x"})
        await trio.sleep(1)

        assert timed.decisions[0].allowed
        key = counter(w.rules, "split", "x")
        assert sum(w.nodes[name].queries.used(key) or 0 for name in NODES) == 5


async def test_an_owner_that_is_asked_as_the_standby_also_borrows(
    autojump_clock: MockClock,
) -> None:
    """The caller has an older ring: in it, this node is the standby, and another one the owner."""
    async with far_apart("e1") as (w, limiter):
        await w.stop("e2")
        for _ in range(5):
            assert (await limiter.check("api", {"split": "x"})).allowed
        handler = w.nodes["e1"].handler
        batch = Batch(Op.CHECK, [counter(w.rules, "split", "x")], [1], ids=[(1, 1, 0)])
        request = Request(1, 0, 1000, 0, True, batch)
        parts = handler.decide_now(request, batch)

        assert isinstance(parts, list)
        [short] = parts
        assert not short.is_decided
        assert short.results is not None
        assert await handler.decide(request, short) is short.results
        assert short.results.outcomes.codes == [Code.ALLOWED]
        assert w.total("borrowed") == 1

        batch.ids = [(1, 2, 0)]  # Decided as after the node has acquired the shard.
        acquired = await handler.decide(request, Part(None, batch))
        assert acquired is not None
        assert acquired.outcomes.codes == [Code.ALLOWED]
        assert w.total("borrowed") == 2


async def test_a_standby_borrows_only_for_the_keys_that_it_owns(autojump_clock: MockClock) -> None:
    async with far_apart("e1") as (w, limiter):
        theirs = held_by(w, "e2", "split", 1)[0]
        ours = held_by(w, "e1", "split", 1)[0]
        both = w.nodes["e1"].handler.placement.ring
        await w.stop("e2")
        for value in [ours, theirs] * 5:
            assert (await limiter.check("api", {"split": value})).allowed
        handler = w.nodes["e1"].handler
        handler.placement.ring = both  # Node e1 holds the shard of e2 in its place.
        keys = [counter(w.rules, "split", value) for value in (ours, theirs)]
        batch = Batch(Op.CHECK, keys, [1, 1], ids=[(1, 1, row) for row in range(2)])
        parts = handler.decide_now(Request(1, 0, 1000, 0, True, batch), batch)

        assert isinstance(parts, list)
        assert [(part.rows, part.is_decided) for part in parts] == [([1], True), ([0], False)]


async def test_a_standby_waits_for_each_owner_apart(autojump_clock: MockClock) -> None:
    """The owners wait half a second for units, which is longer than the owners of a group may
    need."""
    async with far_apart("e1") as (w, limiter):
        await w.start("e3", datacenter="eu")
        await w.settle()
        values = [held_by(w, name, "split", 1)[0] for name in ("e1", "e2")]
        for value in values * 5:
            assert (await limiter.check("api", {"split": value})).allowed
        for name in ("e1", "e2", "e3"):
            w.network.cut(address_of(name), address_of("u1"))
        handler, found = w.nodes["e3"].handler, list[Results | None]()
        ids = [(1, 1, row) for row in range(2)]
        keys = [counter(w.rules, "split", value) for value in values]
        batch = Batch(Op.CHECK, keys, [1, 1], ids=ids)
        request = Request(1, 0, 1000, 0, True, batch)

        async def decide(part: Part) -> None:
            found.append(await handler.decide(request, part))

        parts = handler.decide_now(request, batch)
        assert isinstance(parts, list)
        async with trio.open_nursery() as nursery:
            for part in parts:
                nursery.start_soon(decide, part)

        assert [each and each.outcomes.codes for each in found] == [[Code.DENIED]] * 2
        assert [each and each.sources for each in found] == [[Source.OWNER]] * 2


async def test_a_key_with_all_parts_exhausted_is_denied_immediately(
    autojump_clock: MockClock,
) -> None:
    async with far_apart("e1") as (_, limiter):
        await limiter.check_many("api", [{"split": "x"}] * 11)
        await limiter.check("api", {"split": "x"})
        timed = Timed(limiter)
        await timed.check("split", "x")

        assert not timed.decisions[0].allowed
        assert timed.took["split"][0] < 5


async def test_a_group_waits_as_a_whole_and_is_charged_atomically(
    autojump_clock: MockClock,
) -> None:
    async with far_apart() as (_, limiter):
        timed = Timed(limiter)
        groups: list[bool] = []

        async def both() -> None:
            decision = await limiter.check("api", [{"near": "g"}, {"home": "g"}])
            groups.append(decision.allowed)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(both)
            for number in range(20):
                nursery.start_soon(timed.check, "near", str(number))

        assert groups == [True]
        assert (await limiter.peek("api", {"near": "g"})).remaining == 599
        assert (await limiter.peek("api", {"home": "g"})).remaining == 599


@pytest.mark.parametrize("broken_after_ms", [1, 30, 60, 100])
async def test_a_repeated_frame_gets_all_its_answers_and_counts_once(
    autojump_clock: MockClock, broken_after_ms: int
) -> None:
    async with far_apart("e1") as (w, limiter):
        timed = Timed(limiter)
        near = held_by(w, "e1", "near", 5)
        async with trio.open_nursery() as nursery:
            for value in near:
                nursery.start_soon(timed.check, "near", value)
            nursery.start_soon(timed.check, "home", "x")
            await trio.sleep(broken_after_ms / 1000)
            w.network.reset(("client1", 1), address_of("e1"))

        assert {decision.source for decision in timed.decisions} == {Source.OWNER}
        for value in near:
            assert (await limiter.peek("api", {"near": value})).remaining == 599
        assert (await limiter.peek("api", {"home": "x"})).remaining == 599


async def test_rows_of_other_members_are_forwarded_side_by_side(autojump_clock: MockClock) -> None:
    async with far_apart("e1") as (w, limiter):
        w.network.set_delay(address_of("e1"), address_of("e2"), 0.01)
        timed = Timed(limiter)
        ours, theirs = held_by(w, "e1", "near", 3), held_by(w, "e2", "near", 3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timed.check, "home", "x")
            for value in (*ours, *theirs):
                nursery.start_soon(timed.check, "near", value)

        assert sorted(round(ms, -1) for ms in timed.took["near"]) == [0, 0, 0, 20, 20, 20]


async def test_a_rejected_part_leaves_other_parts_decided(autojump_clock: MockClock) -> None:
    async with far_apart("e1") as (w, limiter):
        w.network.cut(address_of("e1"), address_of("u1"))
        w.network.cut(address_of("e2"), address_of("u1"))
        timed = Timed(limiter)
        async with trio.open_nursery() as nursery:
            for value in held_by(w, "e1", "near", 20):
                nursery.start_soon(timed.check, "near", value)
            nursery.start_soon(timed.check, "home", "x")

        assert max(timed.took["near"]) < 5
        assert len(timed.decisions) == 21


def test_a_part_is_split_into_final_and_short_rows() -> None:
    columns = [[number] * 4 for number in range(7)]
    columns[2] = [10, 11, 12, 13]
    batch = Batch(Op.CHECK, [b"%08d" % number for number in range(4)], [1, 2, 3, 4])
    part = Part([3, 5, 7, 9], batch, Results(Outcomes(*columns), [0] * 4))

    final, short = part.split([1, 2])

    assert (final.rows, short.rows) == ([3, 9], [5, 7])
    assert (final.is_decided, short.is_decided) == (True, False)
    assert (final.batch.costs, short.batch.costs) == ([1, 4], [2, 3])
    assert final.results is not None
    assert final.results.outcomes.remaining == [10, 13]
    assert part.split([]) == [part]
    [every] = part.split([0, 1, 2, 3])
    assert every.is_short
