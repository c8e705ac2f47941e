"""Ad-hoc limits, which no rule contains."""

from ringfence.rules import parse_limit
from tests.ringfence.client.limiters import limiter_of


async def test_an_ad_hoc_limit_needs_no_rule():
    async with limiter_of() as limiter:
        decisions = [await limiter.check_limit("2/minute", "user:42") for _ in range(3)]

        assert [decision.allowed for decision in decisions] == [True, True, False]
        assert await limiter.check_limit("2/minute", "user:43")


async def test_ad_hoc_keys_with_different_parts_differ():
    async with limiter_of() as limiter:
        assert await limiter.check_limit("1/minute", "a", "bc")
        assert await limiter.check_limit("1/minute", "ab", "c")
        assert not await limiter.check_limit("1/minute", "a", "bc")


async def test_an_ad_hoc_limit_may_be_a_value():
    async with limiter_of() as limiter:
        await limiter.check_limit("3/minute", "key")

        assert (await limiter.check_limit(parse_limit("3/minute"), "key")).remaining == 1


async def test_an_ad_hoc_counter_can_be_peeked_at_refunded_and_reset():
    async with limiter_of() as limiter:
        await limiter.check_limit("3/minute", "key", cost=3)

        assert not await limiter.check_limit("3/minute", "key", cost=0)
        assert (await limiter.refund_limit("3/minute", "key", cost=2)).remaining == 2
        assert (await limiter.reset_limit("3/minute", "key")).remaining == 3


async def test_many_different_ad_hoc_limits_are_remembered_within_bounds():
    async with limiter_of() as limiter:
        for number in range(1, 3000):
            assert await limiter.check_limit(f"{number}/minute", str(number), cost=number)
        assert not await limiter.check_limit("1/minute", "1")
