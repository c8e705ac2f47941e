"""Refunds of borrowed units at their owner: each counts once, on every path."""

import pytest
import trio
from trio.testing import MockClock

from ringfence.limiter import Code
from ringfence.wire import Op, Request, Results
from tests.node.requests.handling.handling_host import SPLIT, A, B, HandlingHost, key_of

SHARED, THEIRS = key_of(A, SPLIT), key_of(B, SPLIT)
HOUR = 3600 * 1_000_000_000


async def borrow(host: HandlingHost, key: bytes = SHARED) -> None:
    """Use up the part of this data center, and borrow three units."""
    host.far.reset_after_ns = HOUR
    host.hold(key)
    spent = host.request(key, costs=[5], hops=2)
    assert isinstance(host.handler.decide_now(spent, spent.batch), Results)
    request = host.request(key, costs=[3])
    [part] = host.parts(request)
    decided = await host.handler.decide(request, part)
    assert decided is not None
    assert decided.outcomes.codes == [Code.ALLOWED]


def refund(host: HandlingHost, seq: int, *, hops: int = 0, as_standby: bool = False) -> Request:
    """Return a refund of all units."""
    return host.request(
        SHARED, op=Op.REFUND, costs=[8], hops=hops, as_standby=as_standby, ids=[(9, seq, 0)]
    )


def decided_now(host: HandlingHost, request: Request) -> list[int]:
    """Decide a refund at once; return the refunded units."""
    results = host.handler.decide_now(request, request.batch)
    if isinstance(results, list):
        [part] = results
        assert part.is_decided
        assert part.results is not None
        return part.results.outcomes.slot_ids
    assert isinstance(results, Results)
    return results.outcomes.slot_ids


async def test_a_refund_waits_for_the_lender_and_counts_its_units(
    autojump_clock: MockClock, host: HandlingHost
) -> None:
    await borrow(host)
    host.freed.clear()
    request = refund(host, 1)
    [part] = host.parts(request)
    assert not part.is_decided

    decided = await host.handler.decide(request, part)

    assert decided is not None
    assert decided.outcomes.slot_ids == [8]
    assert host.far.refunded == [3]
    assert host.used(SHARED) == [0]
    assert host.freed == [SHARED, SHARED]  # After both parts of the refund.


async def test_a_repeated_refund_gives_nothing_back_again(
    autojump_clock: MockClock, host: HandlingHost
) -> None:
    await borrow(host)
    await borrow(host)  # Six units are borrowed now, and three of them remain.
    request = refund(host, 1)
    [part] = host.parts(request)

    repeat = refund(host, 1)
    assert decided_now(host, repeat) == [5]  # The lender has not answered yet.
    await host.handler.decide(request, part)
    assert decided_now(host, repeat) == [8]
    assert host.far.refunded == [3]


async def test_a_refund_without_borrowed_units_is_decided_at_once(
    autojump_clock: MockClock, host: HandlingHost
) -> None:
    await borrow(host)
    request = refund(host, 1)
    request.batch.costs = [5]

    assert decided_now(host, request) == [5]
    assert host.far.refunded == []


async def test_a_refund_at_the_last_hop_or_under_overload_is_decided_here(
    autojump_clock: MockClock, host: HandlingHost
) -> None:
    await borrow(host)
    assert decided_now(host, refund(host, 1, hops=2)) == [5]
    host.handler.waiting = 50_000
    assert decided_now(host, refund(host, 2)) == [0]
    assert host.far.refunded == []


@pytest.mark.parametrize("as_standby", [False, True])
async def test_a_router_and_a_late_shard_also_reach_the_lender(
    autojump_clock: MockClock, host: HandlingHost, *, as_standby: bool
) -> None:
    await borrow(host)
    found: list[object] = []
    if as_standby:
        found.append(await host.decide(refund(host, 1, as_standby=True)))
    else:
        host.handler.ask(refund(host, 1).batch, hops=1, as_standby=False, done=found.append)
        await trio.sleep(1)

    [results] = found
    assert isinstance(results, Results)
    assert results.outcomes.slot_ids == [8]
    assert host.far.refunded == [3]
