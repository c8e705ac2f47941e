"""Resets of keys of which clients hold leases."""

from typing import cast

import pytest
import trio
from trio.testing import MockClock

from node.requests.sessions.caller import Caller
from ringfence.limiter import NS_PER_SECOND
from ringfence.wire import ErrorCode, LeaseGrant, LeaseRequest, Op, Refused, Results
from tests.node.requests.handling.handling_host import LENT, A, Asked, B, HandlingHost, key_of

HOT, COLD, THEIRS = key_of(A, LENT), key_of(A, LENT, number=1), key_of(B, LENT)
ONE, TWO = cast(Caller, "session one"), cast(Caller, "session two")


class Resetting:
    """Reset of `HOT` at an owner whose other clients return leases after some time."""

    def __init__(self, host: HandlingHost) -> None:
        self.host = host
        self.used_before: list[int] = []
        self.granted_while_waiting: list[LeaseGrant] = []
        host.hold(HOT, COLD)

    def lend(self, client: Caller = ONE, want: int = 100, **ended: int) -> LeaseGrant:
        """Request a lease; `ended` has the units spent from leases by name, such as `lease_1`."""
        numbers = [int(name.removeprefix("lease_")) for name in ended]
        request = LeaseRequest(1, HOT, want, numbers, list(ended.values()))
        return self.host.lender.lend(client, request, self.host.clock.time)

    async def give_back(self, seconds: float, client: Caller = ONE, **ended: int) -> None:
        """Return a lease after `seconds`, and try to get another one."""
        await trio.sleep(seconds)
        grant = self.lend(client, **ended)
        self.used_before += self.host.used(HOT)
        self.granted_while_waiting.append(grant)

    async def reset(self, hops: int = 2, deadline_ms: int = 1000) -> Results:
        """Reset `HOT`, of which clients hold leases."""
        request = self.host.request(HOT, op=Op.RESET, costs=[0], hops=hops, deadline_ms=deadline_ms)
        [part] = self.host.parts(request)
        decided = await self.host.handler.decide(request, part)
        assert decided is not None
        return decided


@pytest.fixture
def world(host: HandlingHost) -> Resetting:
    return Resetting(host)


async def test_a_reset_waits_until_all_clients_have_returned_their_leases(
    autojump_clock: MockClock, host: HandlingHost, world: Resetting
) -> None:
    world.lend(ONE)
    world.lend(TWO)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: world.give_back(0.1, ONE, lease_1=60))
        nursery.start_soon(lambda: world.give_back(0.2, TWO, lease_2=70))
        decided = await world.reset()

    assert host.recalled == [(ONE, [HOT]), (TWO, [HOT])]
    assert world.used_before == [60, 130]
    assert (host.used(HOT), decided.outcomes.remaining) == ([0], [1000])
    assert trio.current_time() == pytest.approx(0.2)
    assert host.handler.waiting == 0


async def test_no_units_are_lent_while_a_reset_waits(
    autojump_clock: MockClock, world: Resetting
) -> None:
    world.lend(ONE)
    world.lend(TWO)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: world.give_back(0.1, ONE, lease_1=60))
        nursery.start_soon(lambda: world.give_back(0.2, TWO, lease_2=70))
        await world.reset()

    assert [grant.units for grant in world.granted_while_waiting] == [0, 0]
    assert world.lend(ONE).units == 100


async def test_a_lease_that_is_not_returned_in_time_counts_after_the_reset(
    autojump_clock: MockClock, host: HandlingHost, world: Resetting
) -> None:
    world.lend()

    decided = await world.reset(deadline_ms=400)
    assert decided.outcomes.remaining == [900]
    assert trio.current_time() == pytest.approx(0.3)
    world.lend(want=0, lease_1=60)

    assert host.used(HOT) == [60]


async def test_a_reset_waits_at_most_until_the_leases_end(
    autojump_clock: MockClock, host: HandlingHost, world: Resetting
) -> None:
    world.lend()

    async def pass_time() -> None:
        await trio.sleep(0.99)
        host.clock.time += NS_PER_SECOND

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_time)
        decided = await world.reset(deadline_ms=9000)

    assert (host.used(HOT), decided.outcomes.remaining) == ([0], [1000])
    assert trio.current_time() == pytest.approx(1)


async def test_two_resets_wait_for_the_same_leases(
    autojump_clock: MockClock, host: HandlingHost, world: Resetting
) -> None:
    world.lend()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.reset)
        nursery.start_soon(world.reset)
        nursery.start_soon(lambda: world.give_back(0.1, lease_1=60))

    assert (host.used(HOT), world.lend().units) == ([0], 100)
    assert trio.current_time() == pytest.approx(0.1)
    assert host.recalled == [(ONE, [HOT])]


async def test_a_reset_of_a_counter_that_moves_meanwhile_is_forwarded(
    autojump_clock: MockClock, host: HandlingHost, world: Resetting
) -> None:
    world.lend()

    async def move() -> None:
        await trio.sleep(0.1)
        host.lender.charge_transferred([HOT], host.clock.time)
        host.ownership.release(*host.shards(HOT), host.clock.time)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(move)
        await world.reset(hops=0)

    assert host.router.asked == [Asked([HOT], 1, 0.9)]


async def test_only_keys_of_this_node_with_leases_wait(
    host: HandlingHost, world: Resetting
) -> None:
    world.lend()
    check, peek = host.request(HOT), host.request(HOT, costs=[0])
    cold = host.request(COLD, op=Op.RESET, costs=[0])
    mixed = host.request(HOT, THEIRS, op=Op.RESET, costs=[0, 0])

    for request in (check, peek, cold):
        assert isinstance(host.handler.decide_now(request, request.batch), Results)
    parts = host.parts(mixed)

    assert [(part.rows, part.is_decided) for part in parts] == [([0], False), ([1], False)]
    assert host.used(HOT) == [1]


async def test_a_reset_is_refused_when_too_many_requests_wait(
    host: HandlingHost, world: Resetting
) -> None:
    world.lend()
    host.handler.waiting = 50_000
    request = host.request(HOT, op=Op.RESET, costs=[0])

    refused = host.handler.decide_now(request, request.batch)

    assert isinstance(refused, Refused)
    assert refused.code == ErrorCode.OVERLOADED
