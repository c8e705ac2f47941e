"""Leases of hot keys from owner to client, over an in-memory network."""

import trio
from trio.testing import MockClock

from ringfence.client.limiter import Limiter
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import Source
from tests.node.cluster import address_of, of, owned, world

HOT = """
domain: api
descriptors:
  - key: client
    rate_limit: {unit: minute, requests_per_unit: 5, algorithm: fixed_window}
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 10000, algorithm: token_bucket}
  - key: window
    rate_limit: {unit: minute, requests_per_unit: 10000, algorithm: sliding_window}
  - key: small
    rate_limit: {unit: minute, requests_per_unit: 127, algorithm: token_bucket}
  - key: exact
    rate_limit: {unit: minute, requests_per_unit: 10000, algorithm: token_bucket, leases: false}
  - key: shadowed
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 10000, algorithm: token_bucket}
"""


async def heat(limiter: Limiter, descriptors: dict[str, str], times: int = 40) -> list[Source]:
    """Check a key until it is hot and its lease has arrived."""
    sources = []
    for _ in range(times):
        sources.append((await limiter.check("api", descriptors)).source)
    await trio.sleep(0.02)
    return sources


async def test_checks_of_a_hot_key_are_decided_in_the_client(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=HOT) as w, w.client() as limiter:
        tenant = owned(w.rules, "tenant", "a")
        await heat(limiter, tenant)
        checks_before = w.count("a", "checks")

        many = await limiter.check_many("api", [tenant] * 20)
        now = limiter.check_now("api", tenant)

        assert {decision.source for decision in many} == {Source.LEASE}
        assert all(of(many))
        assert now is not None
        assert now.allowed
        assert now.limit == 10000
        assert w.count("a", "leases") >= 1
        assert w.count("a", "checks") == checks_before


async def test_spent_lease_units_count_and_the_rest_is_returned(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=HOT) as w, w.client() as limiter, w.client(leases=False) as other:
        window = owned(w.rules, "window", "a")
        await heat(limiter, window, times=50)
        remaining_while_leased = (await other.peek("api", window)).remaining
        await trio.sleep(3)

        assert remaining_while_leased is not None
        assert remaining_while_leased < 10000 - 50 - 8
        assert (await other.peek("api", window)).remaining == 10000 - 50


async def test_a_paused_owner_gets_reports_as_soon_as_an_idle_client_reaches_it_again(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=HOT, joins=True) as w, w.client() as limiter, w.client() as other:
        window, owner = owned(w.rules, "window", "b"), address_of("b")
        await heat(limiter, window, times=50)
        w.network.pause(owner)
        w.network.reset(("client1", 1), owner)  # Before the client has reported its leases.
        await trio.sleep(18)
        w.network.resume(owner)
        await trio.sleep(18)

        # The client detects at 25.4 s that the owner is back. It repeats the report at 24.75 s and
        # at 32.75 s. The owner no longer accepts the second one.
        assert (await other.peek("api", window)).remaining == 10000 - 50


async def test_an_owner_gets_reports_as_soon_as_the_network_to_an_idle_client_is_healed(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=HOT) as w, w.client() as limiter, w.client(leases=False) as other:
        window, ends = owned(w.rules, "window", "b"), (("client1", 1), address_of("b"))
        await heat(limiter, window, times=50)
        w.network.cut(*ends)
        w.network.reset(*ends)  # Otherwise the first report would arrive late.
        await trio.sleep(10)
        w.network.heal(*ends)
        await trio.sleep(4)  # The next repetition of the report would be 3 s later.

        assert (await other.peek("api", window)).remaining == 10000 - 50


async def test_a_report_to_a_crashed_owner_delays_no_return_of_another_lease(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=HOT) as w, w.client() as limiter, w.client(leases=False) as other:
        await heat(limiter, owned(w.rules, "tenant", "b"))
        await w.crash("b")
        await trio.sleep(9)  # The next repetition of the report is several seconds later.
        window = owned(w.rules, "window", "a")
        await heat(limiter, window, times=50)
        await trio.sleep(2)

        assert (await other.peek("api", window)).remaining == 10000 - 50


async def test_cancelled_checks_spend_no_units_of_a_lease(autojump_clock: MockClock) -> None:
    async with world(rules=HOT) as w, w.client(leases=False) as other:
        window = owned(w.rules, "window", "a")
        async with w.client() as limiter:
            await heat(limiter, window, times=50)
            for _ in range(5):
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await limiter.check("api", window, cost=7)
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await limiter.check_many("api", [window] * 3, 2)
            now = limiter.check_now("api", window)
            assert now is not None
            assert now.source is Source.LEASE

        assert (await other.peek("api", window)).remaining == 10000 - 51


async def test_a_client_that_closes_returns_the_rest_of_its_leases(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=HOT) as w, w.client(leases=False) as other:
        window = owned(w.rules, "window", "a")
        async with w.client() as limiter:
            await heat(limiter, window, times=50)

        assert (await other.peek("api", window)).remaining == 10000 - 50


async def test_leases_that_are_requested_while_a_client_closes_are_returned(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=HOT) as w, w.client(leases=False) as other:
        window = owned(w.rules, "window", "a")
        async with w.client() as limiter:
            for _ in range(40):  # Without a pause: the answer to the request has not arrived.
                await limiter.check("api", window)

        assert (await other.peek("api", window)).remaining == 10000 - 40


async def test_a_jump_of_the_owners_clock_does_not_end_leases(autojump_clock: MockClock) -> None:
    async with world(rules=HOT) as w, w.client() as limiter, w.client(leases=False) as other:
        window = owned(w.rules, "window", "a")
        await heat(limiter, window, times=50)
        w.clock.time += 20 * 10**9  # Still in the same minute.
        assert (await other.peek("api", window)).remaining != 10000 - 50
        await trio.sleep(3)

        assert (await other.peek("api", window)).remaining == 10000 - 50


async def test_units_leased_to_a_client_that_crashes_count_as_spent(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=HOT) as w, w.client(leases=False) as other:
        window = owned(w.rules, "window", "a")
        async with w.client() as limiter:
            await heat(limiter, window, times=50)
            w.network.crash(("client2", 1))
        await trio.sleep(2)

        remaining = (await other.peek("api", window)).remaining
        assert remaining is not None
        assert 10000 - 2 * 320 <= remaining < 10000 - 50


async def test_rules_can_forbid_leases_and_small_limits_and_shadow_rules_have_none(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=HOT) as w, w.client() as limiter, w.client(leases=False) as unsubscribed:
        for key in ("exact", "shadowed", "small"):
            sources = await heat(limiter, owned(w.rules, key, "a"))
            sources += await heat(limiter, owned(w.rules, key, "a"))
            assert set(sources) == {Source.OWNER}
        sources = await heat(unsubscribed, owned(w.rules, "tenant", "a"), times=80)

        assert set(sources) == {Source.OWNER}
        assert w.total("leases") == 0


async def test_requests_with_several_limits_are_sent_to_the_owner(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=HOT) as w, w.client() as limiter:
        both = [owned(w.rules, "tenant", "a"), owned(w.rules, "client", "a")]
        await heat(limiter, both[0])
        decisions = [await limiter.check("api", both) for _ in range(6)]

        assert of(decisions) == [True] * 5 + [False]
        assert {decision.source for decision in decisions} == {Source.OWNER}


async def test_four_clients_with_leases_spend_exactly_the_limit(
    autojump_clock: MockClock,
) -> None:
    rules = HOT.replace("10000", "2000").replace("unit: minute", "unit: day")
    async with (
        world(rules=rules) as w,
        w.client() as one,
        w.client() as two,
        w.client("b") as three,
        w.client("c") as four,
    ):
        window = owned(w.rules, "window", "a")
        sources: list[Source] = []

        async def spend(limiter: Limiter) -> None:
            for _ in range(1500):
                decision = await limiter.check("api", window)
                if decision.allowed:
                    sources.append(decision.source)
                await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            for limiter in (one, two, three, four):
                nursery.start_soon(spend, limiter)

        assert len(sources) == 2000
        assert sources.count(Source.LEASE) > 500


async def test_a_changed_rule_recalls_leases(autojump_clock: MockClock) -> None:
    async with world(rules=HOT) as w, w.client() as limiter:
        tenant = owned(w.rules, "tenant", "a")
        await heat(limiter, tenant)
        zero_limits = load_text(
            HOT.replace("requests_per_unit: 10000", "requests_per_unit: 0")
        ).rules
        for node in w.nodes.values():
            node.change_rules(zero_limits)
        await trio.sleep(0.05)

        assert not (await limiter.check("api", tenant)).allowed
        assert w.count("a", "leases_recalled") == 1


async def test_after_a_reset_only_units_count_that_were_spent_afterwards(
    autojump_clock: MockClock,
) -> None:
    async with (
        world(rules=HOT) as w,
        w.client() as one,
        w.client("b") as two,
        w.client("b", only=True, leases=False) as other,
    ):
        window = owned(w.rules, "window", "a")
        for limiter in (one, two):
            await heat(limiter, window, times=60)
        assert (await other.reset("api", window)).remaining == 10000
        sources = [(await limiter.check("api", window)).source for limiter in (one, two)]
        await trio.sleep(2)

        assert set(sources) == {Source.OWNER}
        assert (await other.peek("api", window)).remaining == 10000 - 2


async def test_a_reset_by_the_client_with_the_lease_leaves_a_new_counter(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=HOT) as w, w.client() as limiter:
        window = owned(w.rules, "window", "a")
        await heat(limiter, window, times=60)
        await limiter.reset("api", window)

        assert (await limiter.peek("api", window)).remaining == 10000


async def test_after_a_crash_of_the_owner_the_standby_counts_leased_units(
    autojump_clock: MockClock,
) -> None:
    async with world(rules=HOT) as w, w.client() as limiter, w.client(leases=False) as other:
        window = owned(w.rules, "window", "a")
        await heat(limiter, window)
        remaining_while_leased = (await other.peek("api", window)).remaining
        await trio.sleep(0.15)
        await w.crash("a")
        await trio.sleep(6)

        remaining = (await other.peek("api", window)).remaining
        assert remaining_while_leased is not None
        assert remaining is not None
        assert remaining <= remaining_while_leased
        assert (await limiter.check("api", window)).source is not Source.LEASE


async def test_a_new_owner_lends_units_and_the_returned_owner_counts_what_was_spent_of_them(
    autojump_clock: MockClock,
) -> None:
    rules = HOT.replace("unit: minute", "unit: day")
    async with world(rules=rules) as w, w.client() as limiter, w.client(leases=False) as other:
        window = owned(w.rules, "window", "b")
        before = await heat(limiter, window)
        w.network.pause(address_of("b"))
        during = await heat(limiter, window)  # This requests a lease from the paused owner.
        await trio.sleep(3)  # The owner is declared dead.
        during += await heat(limiter, window, times=80)
        granted = w.count("a", "leases") + w.count("c", "leases")
        w.network.resume(address_of("b"))
        await trio.sleep(40)  # The client reports its leases for 32 s.

        assert Source.LEASE in during
        assert granted
        peek = await other.peek("api", window)
        assert peek.source is Source.OWNER
        assert peek.remaining == 10000 - len(before) - len(during)


async def test_a_counter_that_moves_contains_exactly_what_was_spent_of_its_leases(
    autojump_clock: MockClock,
) -> None:
    async with world("a", rules=HOT) as w, w.client("a") as limiter:
        window = owned(w.rules, "window", "b")
        sources: list[Source] = []

        async def check_all_the_time() -> None:
            while True:
                decision = await limiter.check("api", window)
                assert decision.allowed
                sources.append(decision.source)
                await trio.sleep(0.002)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(check_all_the_time)
            await trio.sleep(0.5)
            for name in ("b", "c"):
                await w.start(name)
                await trio.sleep(1)
            await w.stop("b")
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        await w.settle()
        await trio.sleep(2)

        assert sources.count(Source.LEASE) > len(sources) / 2
        assert (await limiter.peek("api", window)).remaining == 10000 - len(sources)


async def test_a_counter_whose_leases_cannot_be_returned_moves_soon_and_counts_them_as_spent(
    autojump_clock: MockClock,
) -> None:
    async with world("a", rules=HOT) as w, w.client("a", leases=False) as other:
        window = owned(w.rules, "window", "b")
        async with w.client("a") as limiter:
            await heat(limiter, window)
            left = (await other.peek("api", window)).remaining
            w.network.crash(("client2", 1))
            await w.start("b")
            with trio.fail_after(1):
                await w.settle()

        assert left is not None
        assert left < 10000 - 40
        assert w.count("b", "keys_pulled") == 1
        assert (await other.peek("api", window)).remaining == left
