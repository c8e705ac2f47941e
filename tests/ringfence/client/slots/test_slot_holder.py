"""Waits for a turn in a queue, and held slots."""

import msgspec
import pytest
import trio

import ringfence
from ringfence.errors import ConfigError
from ringfence.rules import RuleSet
from tests.ringfence.client.limiters import TrioClock, described, left, limited, limiter_of


def queue(amount, burst):
    return {
        "rate_limit": {
            "requests_per_unit": amount,
            "unit": "second",
            "algorithm": "leaky_bucket",
            "mode": "queue",
            "burst": burst,
        }
    }


async def test_acquire_waits_for_its_turn_in_a_queue(autojump_clock):
    async with limiter_of(described("user", **queue(1, 3)), clock=TrioClock()) as limiter:
        started = trio.current_time()
        turns = []

        async def take():
            assert await limiter.acquire("d", {"user": "a"}, max_wait=10)
            turns.append(round(trio.current_time() - started, 3))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(take)

    assert turns == [0.0, 1.0, 2.0]


async def test_acquire_returns_no_delay_after_its_wait_and_its_decision_can_be_refunded(
    autojump_clock,
):
    async with limiter_of(described("user", **queue(1, 3)), clock=TrioClock()) as limiter:
        await limiter.check("d", {"user": "a"})
        started = trio.current_time()

        decision = await limiter.acquire("d", {"user": "a"}, max_wait=10)

        assert trio.current_time() - started == pytest.approx(1.0)
        assert decision.allowed
        assert [decision.delay, decision.statuses[0].delay] == [0.0, 0.0]
        assert (await limiter.refund("d", {"user": "a"}, decision=decision)).refunded == 1


async def test_a_waiter_that_gives_up_leaves_its_turn_to_others(autojump_clock):
    async with limiter_of(described("user", **queue(1, 3)), clock=TrioClock()) as limiter:
        for _ in range(2):
            await limiter.check("d", {"user": "a"})

        denied = await limiter.acquire("d", {"user": "a"}, max_wait=1.5)

        assert not denied
        assert denied.retry_after == pytest.approx(2.0)
        assert denied.delay == 0.0
        [status] = denied.statuses
        assert (status.allowed, status.retry_after, status.delay) == (
            False,
            denied.retry_after,
            0.0,
        )
        assert await left(limiter, user="a") == 1


async def test_a_waiter_that_is_cancelled_leaves_the_queue(autojump_clock):
    async with limiter_of(described("user", **queue(1, 3)), clock=TrioClock()) as limiter:
        for _ in range(2):
            await limiter.check("d", {"user": "a"})

        with trio.move_on_after(0.5) as scope:
            await limiter.acquire("d", {"user": "a"}, max_wait=10)

        assert scope.cancelled_caught
        assert await left(limiter, user="a") == 1


async def test_acquire_checks_again_after_retry_after(autojump_clock):
    bucket = {"rate_limit": limited(60, algorithm="token_bucket", burst=1)}
    async with limiter_of(described("user", **bucket), clock=TrioClock()) as limiter:
        started = trio.current_time()
        for _ in range(3):
            assert await limiter.acquire("d", {"user": "a"}, max_wait=5)

    assert trio.current_time() - started == pytest.approx(2.0, abs=0.001)


async def test_acquire_waits_under_ad_hoc_limits_as_under_rules(autojump_clock):
    async with ringfence.local(RuleSet(), clock=TrioClock()) as limiter:
        began = trio.current_time()
        for _ in range(3):
            assert await limiter.acquire_limit("1/s token_bucket", "a", max_wait=5)
        assert trio.current_time() - began == pytest.approx(2)
        assert await limiter.acquire_limit("1/s queue burst 2", "a", max_wait=0)
        late = await limiter.acquire_limit("1/s queue burst 2", "a", max_wait=0.5)
        assert (late.allowed, late.retry_after) == (False, pytest.approx(1))
        assert (await limiter.check_limit("1/s queue burst 2", "a")).delay == pytest.approx(1)


async def test_an_ad_hoc_place_that_came_too_late_is_released(autojump_clock):
    async with ringfence.local(RuleSet(), clock=TrioClock()) as limiter:
        held = await limiter.acquire_limit("1 concurrent", "a")
        assert not await limiter.acquire_limit("1 concurrent", "a", max_wait=0.5)
        await limiter.release(held)
        assert await limiter.acquire_limit("1 concurrent", "a")


async def test_acquire_gives_up_at_once_when_the_wait_would_be_too_long(autojump_clock):
    bucket = {"rate_limit": limited(60, algorithm="token_bucket", burst=1)}
    async with limiter_of(described("user", **bucket), clock=TrioClock()) as limiter:
        await limiter.check("d", {"user": "a"})
        started = trio.current_time()
        denied = await limiter.acquire("d", {"user": "a"}, max_wait=0.5)

    assert not denied
    assert trio.current_time() == started


async def test_acquire_does_not_wait_for_a_cost_that_never_passes(autojump_clock):
    async with limiter_of(described("user", 5), clock=TrioClock()) as limiter:
        assert (await limiter.acquire("d", {"user": "a"}, 6, max_wait=1e9)).is_permanent


def places(amount):
    return {"rate_limit": limited(amount, algorithm="concurrency")}


async def test_a_place_is_held_while_the_block_runs():
    async with limiter_of(described("job", **places(1))) as limiter:
        async with limiter.hold("d", {"job": "x"}) as held:
            assert held
            with pytest.raises(ringfence.SlotUnavailable, match="a slot must be free"):
                async with limiter.hold("d", {"job": "x"}, max_wait=0):
                    raise AssertionError
            unlucky = limiter.hold("d", {"job": "x"}, max_wait=0, raise_on_denied=False)
            async with unlucky as second:
                assert not second
        assert await left(limiter, job="x") == 1


async def test_a_place_is_given_back_when_the_block_fails():
    async with limiter_of(described("job", **places(1))) as limiter:
        with pytest.raises(ZeroDivisionError):
            async with limiter.hold("d", {"job": "x"}):
                raise ZeroDivisionError
        assert await left(limiter, job="x") == 1


async def test_a_place_is_given_back_when_the_block_is_cancelled(autojump_clock):
    async with limiter_of(described("job", **places(1)), clock=TrioClock()) as limiter:
        with trio.move_on_after(1):
            async with limiter.hold("d", {"job": "x"}):
                await trio.sleep_forever()
        assert await left(limiter, job="x") == 1


async def test_a_limit_without_slots_cannot_be_held_and_is_not_charged():
    async with limiter_of(described("user", 5)) as limiter:
        for entries in ({"user": "a"}, {"path": "/"}):
            with pytest.raises(ConfigError, match="must have a rule with algorithm concurrency"):
                async with limiter.hold("d", entries):
                    raise AssertionError
        assert await left(limiter, user="a") == 5


async def test_a_decision_releases_only_its_own_slot_and_only_once():
    async with limiter_of(described("job", **places(2))) as limiter:
        first = await limiter.check("d", {"job": "x"})
        await limiter.check("d", {"job": "x"})

        await limiter.release(first)
        await limiter.release(first)

        assert await left(limiter, job="x") == 1


async def test_a_release_returns_the_units_that_are_free_again():
    async with limiter_of(described("job", **places(3))) as limiter:
        held = await limiter.check("d", {"job": "j"}, cost=2)

        assert [await limiter.release(held) for _ in range(2)] == [2, 0]


async def test_another_process_can_renew_and_release():
    clock = TrioClock()
    async with limiter_of(described("job", **places(2)), clock=clock) as limiter:
        held = await limiter.check("d", {"job": "j"})
        request = msgspec.structs.replace(held.slots)

        assert held.slot_period == 60.0
        assert await limiter.renew(request) == 60.0
        assert [await limiter.release(request) for _ in range(2)] == [1, 0]
        assert await limiter.renew(request) == 0.0
        assert (await limiter.check_limit("5/s", "a")).slot_period == 0.0


async def test_there_is_nothing_to_release_without_a_place():
    async with limiter_of(described("user", 5)) as limiter:
        decision = await limiter.check("d", {"user": "a"})
        await limiter.release(decision)

        assert decision.slots is None
        assert await left(limiter, user="a") == 4


async def test_a_denied_request_holds_no_place():
    async with limiter_of(described("job", **places(2)), described("user", 1)) as limiter:
        both = [{"job": "x"}, {"user": "a"}]
        await limiter.check("d", both)
        denied = await limiter.check("d", both)

        assert not denied
        assert denied.slots is None
        assert await left(limiter, job="x") == 1


async def test_a_given_up_turn_releases_only_its_own_slot(autojump_clock):
    rules = described("job", **places(9)), described("user", **queue(1, 9))
    async with limiter_of(*rules, clock=TrioClock()) as limiter:
        both = [{"job": "x"}, {"user": "a"}]
        for _ in range(3):
            await limiter.check("d", both)

        assert not await limiter.acquire("d", both, max_wait=1)
        assert await left(limiter, job="x") == 6
        assert await left(limiter, user="a") == 6


async def test_waiting_for_a_place_ends_when_its_holder_is_lost(autojump_clock):
    async with limiter_of(described("job", **places(1)), clock=TrioClock()) as limiter:
        await limiter.check("d", {"job": "x"})
        started = trio.current_time()

        assert await limiter.acquire("d", {"job": "x"}, max_wait=100)
        assert trio.current_time() - started == pytest.approx(60)
