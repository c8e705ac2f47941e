"""Denial caches of clients, and early ends of denials by owners, over an in-memory network."""

import trio
from trio.testing import MockClock

from ringfence.client.limiter import Limiter
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import Source
from tests.node.cluster import NAMES, RULES, of, owned, world


async def spend(limiter: Limiter, descriptors: dict[str, str], times: int = 6) -> None:
    """Check until the limit of 5 is exhausted and a check is denied."""
    for _ in range(times):
        await limiter.check("api", descriptors)


async def test_a_cached_denial_is_repeated_without_a_request(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client() as limiter:
        client = owned(w.rules, "client", "a")
        await spend(limiter, client)
        checks_before = w.count("a", "checks")

        repeated = [await limiter.check("api", client) for _ in range(20)]
        many = await limiter.check_many("api", [client, {"client": "other"}, client])

        assert {decision.source for decision in repeated} == {Source.CACHE}
        assert [decision.source for decision in many] == [Source.CACHE, Source.OWNER, Source.CACHE]
        assert of(many) == [False, True, False]
        assert w.count("a", "checks") - checks_before <= 1
        assert (await limiter.check("api", [client])).source is Source.CACHE
        now = limiter.check_now("api", client)
        assert now is not None
        assert now.retry_after is not None
        assert 0 < now.retry_after <= 30
        assert limiter.check_now("api", {"client": "other"}) is None


async def test_after_the_end_of_a_denial_a_check_is_sent_again(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client() as limiter:
        client = owned(w.rules, "client", "a")
        await spend(limiter, client)
        w.clock.time += 30 * 10**9
        await trio.sleep(30)

        assert (await limiter.check("api", client)).allowed


async def test_a_client_without_a_denial_cache_sends_each_check(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client(denials=0) as limiter:
        client = owned(w.rules, "client", "a")
        await spend(limiter, client, times=10)

        assert w.count("a", "checks") == 10
        assert (await limiter.check("api", client)).source is Source.OWNER


async def test_a_refund_by_another_client_ends_a_denial_immediately(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client() as one, w.client("b", only=True) as two:
        client = owned(w.rules, "client", "a")
        await spend(one, client)
        await two.refund("api", client, 2)
        await trio.sleep(0.01)

        assert of([await one.check("api", client) for _ in range(3)]) == [True, True, False]


async def test_a_reset_through_any_node_ends_a_denial_immediately(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("b", only=True) as limiter:
        client = owned(w.rules, "client", "a")
        await spend(limiter, client)
        await limiter.reset("api", client)

        assert (await limiter.check("api", client)).allowed


async def test_a_raised_limit_ends_denials_immediately(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as limiter:
        client = owned(w.rules, "client", "a")
        await spend(limiter, client)
        raised = load_text(RULES.replace("requests_per_unit: 5", "requests_per_unit: 7")).rules
        for node in w.nodes.values():
            node.change_rules(raised)
        await trio.sleep(0.01)

        assert (await limiter.check("api", client)).allowed


async def test_a_denial_forwarded_by_a_nonowner_is_not_cached(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("b", only=True) as limiter:
        client = owned(w.rules, "client", "a")
        await spend(limiter, client)
        await trio.sleep(0.01)

        assert (await limiter.check("api", client)).source is Source.OWNER


async def test_after_a_counter_moves_checks_are_sent_to_its_new_owner(
    autojump_clock: MockClock,
) -> None:
    async with world("a") as w, w.client("a") as limiter:
        client = owned(w.rules, "client", "b")
        await spend(limiter, client)
        for name in NAMES[1:]:
            await w.start(name)
        await w.settle()
        await trio.sleep(15)

        first = await limiter.check("api", client)
        assert (first.allowed, first.source) == (False, Source.OWNER)
        async with w.client("c") as other:
            await other.reset("api", client)
        await trio.sleep(0.01)
        assert (await limiter.check("api", client)).allowed


async def test_a_lost_connection_drops_its_cached_denials(autojump_clock: MockClock) -> None:
    async with world() as w, w.client() as limiter:
        client = owned(w.rules, "client", "a")
        await spend(limiter, client)
        await w.crash("a")
        await limiter.check("api", owned(w.rules, "client", "a", 1))
        await trio.sleep(40)

        assert (await limiter.check("api", client)).source is not Source.CACHE
