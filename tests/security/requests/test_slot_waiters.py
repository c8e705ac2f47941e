"""P7: waiting checks are bounded; a waiter that never takes its slot causes a short delay."""

import pytest
import trio

from ringfence.peering.slot_queue import MAX_PER_CONNECTION
from ringfence.wire import Batch, Op
from tests.node.cluster import counter, owned, world
from tests.node.end_to_end.test_slots import RULES, run_time


async def send_forged_tickets(limiter, key, tickets):
    """Send checks as a client would that waits for many slots and takes none."""
    for start in range(0, len(tickets), 500):
        chunk = tickets[start : start + 500]
        batch = Batch(Op.CHECK, [key] * len(chunk), [1] * len(chunk), slot_ids=chunk)
        await limiter._decider.decide(batch, lambda _: True, None)


async def test_one_connection_cannot_fill_the_queue_of_waiters(autojump_clock):
    async with world(rules=RULES) as w, w.client() as hostile, w.client() as other:
        entries = owned(w.rules, "alone", "b")
        key = counter(w.rules, *next(iter(entries.items())))
        slot = await other.check("api", entries)

        await send_forged_tickets(hostile, key, list(range(1, 3000)))

        assert w.count("b", "slot_waiters") == MAX_PER_CONNECTION
        with trio.fail_after(1):
            assert not await other.acquire("api", entries, max_wait=0.5)
        await other.release(slot)


async def test_a_waiter_that_never_takes_its_slot_delays_others_by_one_second(autojump_clock):
    async with world(rules=RULES) as w, w.client() as hostile, w.client() as other:
        w.nursery.start_soon(run_time, w)
        entries = owned(w.rules, "alone", "b")
        key = counter(w.rules, *next(iter(entries.items())))
        slot = await other.check("api", entries)
        await send_forged_tickets(hostile, key, [1, 2])
        await other.release(slot)

        started = trio.current_time()
        assert await other.acquire("api", entries, max_wait=10)
        assert trio.current_time() - started == pytest.approx(2.0, abs=0.3)


async def test_tickets_for_limits_without_slots_block_no_client(autojump_clock):
    async with world() as w, w.client(denials=0, leases=False) as hostile, w.client() as other:
        entries = owned(w.rules, "client", "b")
        key = counter(w.rules, *next(iter(entries.items())))

        await send_forged_tickets(hostile, key, list(range(1, 8)))

        assert w.count("b", "slot_waiters") == 0
        assert not await other.check("api", entries)
