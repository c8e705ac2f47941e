"""Limits that three data centers divide: refunds of borrowed units, and parts of no units."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from ringfence.client.limiter import Limiter
from tests.node.cluster import World, address_of, empty_world

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
RTT = 0.08
NODES = {"e1": "eu", "u1": "us", "a1": "ap"}
ALGORITHMS = ("fixed_window", "sliding_window", "sliding_window_log", "token_bucket")
RULES = """
domain: api
descriptors:
  - key: one
    rate_limit: {unit: hour, requests_per_unit: 1, algorithm: fixed_window, global: {mode: split}}
  - key: seconds
    rate_limit: {period: 10s, requests_per_unit: 2, algorithm: fixed_window, global: {mode: split}}
  - key: near
    rate_limit: {unit: hour, requests_per_unit: 1, algorithm: fixed_window}
""" + "".join(
    f"""
  - key: {name}
    rate_limit: {{unit: hour, requests_per_unit: 300, algorithm: {name}, global: {{mode: split}}}}
"""
    for name in ALGORITHMS
)


@asynccontextmanager
async def three_datacenters() -> AsyncIterator[tuple[World, Limiter, list[Limiter]]]:
    """Run the data centers; yield their network, a client of `eu`, and one of each of them."""
    async with empty_world(rules=RULES) as w:
        for name, datacenter in NODES.items():
            await w.start(name, datacenter=datacenter)
        for one in NODES:
            for other in NODES:
                if one != other:
                    w.network.set_delay(address_of(one), address_of(other), RTT / 2)
        await w.settle()
        async with w.client("e1") as eu, w.client("u1") as us, w.client("a1") as ap:
            yield w, eu, [eu, us, ap]


async def remaining(limiters: list[Limiter], key: str) -> list[int | None]:
    """Return the units that each data center has left."""
    return [(await each.peek("api", {key: "x"})).remaining for each in limiters]


@pytest.mark.parametrize("key", ALGORITHMS)
async def test_a_refund_gives_units_back_to_the_data_center_that_lent_them(
    autojump_clock: MockClock, key: str
) -> None:
    async with three_datacenters() as (_, eu, limiters):
        assert (await eu.check("api", {key: "x"}, cost=30)).allowed
        assert (await eu.check("api", {key: "x"}, cost=80)).allowed
        assert sorted(await remaining(limiters, key)) == [20, 70, 100]

        refunded = await eu.refund("api", {key: "x"}, cost=80)

        assert sum(await remaining(limiters, key)) == 300 - 30
        assert refunded.refunded == 80
        assert (await eu.refund("api", {key: "x"}, cost=300)).refunded == 30
        assert await remaining(limiters, key) == [100, 100, 100]


async def test_a_refund_frees_no_units_that_other_data_centers_counted_for_themselves(
    autojump_clock: MockClock,
) -> None:
    async with three_datacenters() as (_, eu, limiters):
        target = {"fixed_window": "x"}
        for each in limiters[1:]:
            assert (await each.check("api", target, cost=60)).allowed
        await eu.check("api", target, cost=70)
        assert (await eu.check("api", target, cost=40)).allowed

        assert (await eu.refund("api", target, cost=300)).refunded == 110

        assert await remaining(limiters, "fixed_window") == [100, 40, 40]
        assert (await eu.refund("api", target, cost=300)).refunded == 0


async def test_a_reservation_that_needs_nothing_gives_borrowed_units_back(
    autojump_clock: MockClock,
) -> None:
    async with three_datacenters() as (_, eu, limiters):
        await eu.check("api", {"fixed_window": "x"}, cost=30)
        async with eu.reserve("api", {"fixed_window": "x"}, 80) as reservation:
            reservation.cost = 0

        assert sum(await remaining(limiters, "fixed_window")) == 270


async def test_a_denied_request_gives_borrowed_units_back(autojump_clock: MockClock) -> None:
    async with three_datacenters() as (_, eu, limiters):
        await eu.check("api", {"fixed_window": "x"}, cost=30)
        await eu.check("api", {"near": "x"})

        both = [[("fixed_window", "x")], [("near", "x")]]
        assert not (await eu.check("api", both, cost=80)).allowed
        await trio.sleep(1)

        assert sum(await remaining(limiters, "fixed_window")) == 270


async def test_a_refund_gives_nothing_to_a_later_window_of_the_lender(
    autojump_clock: MockClock,
) -> None:
    async with three_datacenters() as (w, eu, limiters):
        await eu.check("api", {"fixed_window": "x"}, cost=30)
        await eu.check("api", {"fixed_window": "x"}, cost=80)
        w.clock.time += HOUR
        for each in limiters:
            assert (await each.check("api", {"fixed_window": "x"}, cost=90)).allowed

        assert (await eu.refund("api", {"fixed_window": "x"}, cost=110)).refunded == 90

        assert await remaining(limiters, "fixed_window") == [100, 10, 10]


async def test_a_part_of_nothing_denies_until_the_window_ends(autojump_clock: MockClock) -> None:
    async with three_datacenters() as (_, _, limiters):
        allowed = 0
        for _ in range(3):
            for each in limiters:
                decision = await each.check("api", {"one": "x"})
                peek = await each.peek("api", {"one": "x"})
                allowed += decision.allowed
                for denied in (peek, *([] if decision.allowed else [decision])):
                    assert not denied.allowed
                    assert not denied.is_permanent
                    assert denied.retry_after is not None
                    assert 0 < denied.retry_after <= 3600
        assert allowed == 1

        for each in limiters:
            assert (await each.check("api", {"one": "y"}, cost=2)).is_permanent
            charged = await each.charge("api", {"one": "z"})
            assert not charged.is_permanent


async def test_a_task_waits_for_units_when_its_data_center_has_no_part(
    autojump_clock: MockClock,
) -> None:
    async with three_datacenters() as (w, _, limiters):
        acquired: list[bool] = []

        async def acquire(limiter: Limiter) -> None:
            acquired.append(bool(await limiter.acquire("api", {"seconds": "x"}, max_wait=12)))

        for each in limiters:
            while (await each.check("api", {"seconds": "x"})).allowed:
                pass
            async with trio.open_nursery() as nursery:
                nursery.start_soon(acquire, each)
                await trio.sleep(1)
                w.clock.time += 10 * SECOND

        assert acquired == [True] * 3
