import time

import anyio
import pytest
from limits import parse
from limits.aio.strategies import STRATEGIES, MovingWindowRateLimiter
from limits.errors import StorageError
from limits.storage import storage_from_string

import ringfence
from ringfence.errors import PeerUnavailable
from ringfence.integrations.limits import AsyncRingfenceStorage
from ringfence.rules import RuleSet

BACKENDS = ("asyncio", "trio")
every_backend = pytest.mark.parametrize("backend", BACKENDS)
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values())


def run(backend, test):
    """Run a test in a new event loop with a storage that was created outside of it."""
    storage = storage_from_string("async+ringfence+local://")
    try:
        anyio.run(test, storage, backend=backend)
    finally:
        storage.close()


async def count_allowed_hits(limiter, item, times, key="a"):
    allowed = []

    async def hit():
        allowed.append(await limiter.hit(item, key))

    async with anyio.create_task_group() as tasks:
        for _ in range(times):
            tasks.start_soon(hit)
    return sum(allowed)


@every_backend
@every_strategy
def test_a_hundred_concurrent_tasks_get_exactly_the_limit(strategy, backend):
    async def test(storage):
        limiter, item = strategy(storage), parse("5/year")

        assert await count_allowed_hits(limiter, item, 100) == 5
        assert not await limiter.test(item, "a")
        assert (await limiter.get_window_stats(item, "a")).remaining == 0
        await limiter.clear(item, "a")
        assert (await limiter.get_window_stats(item, "a")).remaining == 5
        assert await limiter.hit(item, "a", cost=5)
        await storage.reset()
        assert await limiter.test(item, "a", cost=5)

    run(backend, test)


@every_backend
def test_a_hit_of_a_million_units_takes_less_than_2_s(backend):
    async def test(storage):
        limiter, million = MovingWindowRateLimiter(storage), parse("1000000/day")
        began = time.process_time()

        assert await limiter.hit(million, "a", cost=1_000_000)
        assert not await limiter.hit(million, "a")

        assert time.process_time() - began < 2

    run(backend, test)


@every_backend
def test_the_state_of_a_window_can_be_read(backend):
    async def test(storage):
        key = "LIMITER/a/5/1/minute"
        assert await storage.check()
        assert await storage.get_expiry(key) == pytest.approx(time.time(), abs=20)
        assert await storage.incr(key, 60, 3) == 3
        assert await storage.get(key) == 3
        expiry = await storage.get_expiry(key)
        assert expiry == pytest.approx(time.time() + 60, abs=20)
        assert await storage.get_expiry(key) == pytest.approx(expiry, abs=1)
        await storage.acquire_entry(key, 5, 60, 2)
        assert await storage.get_moving_window(key, 5, 60) == (
            pytest.approx(time.time(), abs=20),
            2,
        )

    run(backend, test)


@every_backend
def test_a_cancelled_call_ends_and_leaves_the_storage_usable(backend):
    async def test(storage):
        for _ in range(2):  # In the first round, the storage has not connected yet.
            with anyio.CancelScope() as scope:
                scope.cancel()
                await storage.incr("k/1/1/minute", 60)
            assert scope.cancelled_caught
            assert await storage.incr("other/1/1/minute", 60)

    run(backend, test)


def test_one_storage_serves_several_event_loops():
    async def count(storage, expected):
        assert await storage.incr("k/1/1/minute", 60) == expected

    storage = storage_from_string("async+ringfence+local://")
    try:
        for expected, backend in enumerate(BACKENDS * 2, 1):
            anyio.run(count, storage, expected, backend=backend)
    finally:
        storage.close()


@every_strategy
async def test_the_storage_accepts_a_limiter_of_the_running_event_loop(strategy):
    async with ringfence.local(RuleSet()) as limiter:
        storage = AsyncRingfenceStorage(limiter=limiter)

        assert await count_allowed_hits(strategy(storage), parse("5/year"), 100) == 5
        storage.close()
        assert (await limiter.check_limit("1/s", "a")).allowed


@every_backend
@every_strategy
def test_all_storages_of_a_cluster_share_one_limit(strategy, backend, cluster):
    async def test():
        storages = [storage_from_string(f"async+{cluster.url}") for _ in range(2)]
        item, key = parse("5/hour"), f"{strategy.__name__} on {backend}"
        try:
            allowed = [await count_allowed_hits(strategy(each), item, 20, key) for each in storages]
        finally:
            for each in storages:
                each.close()
        assert allowed == [5, 0]

    anyio.run(test, backend=backend)


@every_backend
def test_an_outage_raises_an_error_if_configured(backend):
    async def test():
        storage = storage_from_string(
            "async+ringfence://127.0.0.1:9",
            connect_timeout=0.05,
            raise_on_outage=True,
            wrap_exceptions=True,
        )
        assert not await storage.check()
        with pytest.raises(StorageError) as caught:
            await storage.get("k/1/1/minute")
        assert isinstance(caught.value.storage_error, PeerUnavailable)
        storage.close()

    anyio.run(test, backend=backend)
