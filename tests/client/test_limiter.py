from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import ringfence
from ringfence.client.limiter import Limiter
from ringfence.errors import AccessDenied, ConfigError, PeerUnavailable
from ringfence.limiter import Algorithm, Code, Engine, Limit, Outcome
from ringfence.peering.engine_choice import decide_by, engine_rules
from ringfence.rules import Descriptor, RuleSet, parse_limit
from ringfence.rules.loading.mapping import load_mapping
from ringfence.wire import Batch, Op, Results, Source
from tests.vectors.algorithms import CHARGE_VECTORS, VECTORS, Vector

SECOND = 1_000_000_000
MINUTE = 60 * SECOND


class HandClock:
    """Time that a test moves, in the middle of a minute to begin with."""

    def __init__(self):
        self.at = 30 * SECOND

    def now(self):
        return self.at


class TrioClock:
    """trio's virtual time as the limiter's."""

    def now(self):
        return round(trio.current_time() * SECOND)


def limited(amount, **more):
    return {"requests_per_unit": amount, "unit": "minute", "algorithm": "fixed_window"} | more


def described(key, amount=None, **more):
    """One line of a rule file, for any value of `key`."""
    value = {} if amount is None else {"rate_limit": limited(amount)}
    return {"key": key} | value | more


def rules_of(*descriptors):
    return load_mapping({"domain": "d", "descriptors": list(descriptors)}).rules


@asynccontextmanager
async def limiter_of(*descriptors, clock=None):
    async with ringfence.local(rules_of(*descriptors), clock=clock or HandClock()) as limiter:
        yield limiter


async def left(limiter, **entries):
    return (await limiter.peek("d", entries)).remaining


# -- one descriptor --------------------------------------------------------------------------------


async def test_a_limit_admits_its_amount_and_tells_when_there_is_more():
    clock = HandClock()
    async with limiter_of(described("user", 2), clock=clock) as limiter:
        decisions = [await limiter.check("d", {"user": "a"}) for _ in range(3)]
        clock.at += 30 * SECOND
        later = await limiter.check("d", {"user": "a"})

    assert [decision.allowed for decision in decisions] == [True, True, False]
    assert [decision.remaining for decision in decisions] == [1, 0, 0]
    assert decisions[2].retry_after == 30.0
    assert decisions[0].limit == 2
    assert decisions[0].source is Source.LOCAL
    assert decisions[0].rule is not None
    assert later


async def test_values_are_counted_apart():
    async with limiter_of(described("user", 1)) as limiter:
        assert await limiter.check("d", {"user": "a"})
        assert await limiter.check("d", {"user": "b"})
        assert not await limiter.check("d", {"user": "a"})


@pytest.mark.parametrize(
    "descriptors",
    [
        {"user": "a"},
        [{"user": "a"}],
        [[("user", "a")]],
        Descriptor((("user", "a"),)),
        (Descriptor((("user", "a"),)),),
    ],
)
async def test_a_descriptor_can_be_written_in_several_ways(descriptors):
    async with limiter_of(described("user", 5)) as limiter:
        assert (await limiter.check("d", descriptors)).remaining == 4
        assert await left(limiter, user="a") == 4


async def test_entries_are_met_in_their_order():
    nested = described("tenant", descriptors=[described("user", 1)])
    async with limiter_of(nested) as limiter:
        met = await limiter.check("d", {"tenant": "t", "user": "u"})
        missed = await limiter.check("d", {"user": "u", "tenant": "t"})

    assert met.source is Source.LOCAL
    assert missed.source is Source.NO_RULE


@pytest.mark.parametrize(
    ("domain", "descriptors"),
    [("other", {"user": "a"}), ("d", {"path": "/"})],
)
async def test_what_meets_no_rule_is_allowed(domain, descriptors):
    async with limiter_of(described("user", 0)) as limiter:
        decision = await limiter.check(domain, descriptors)

    assert decision
    assert decision.source is Source.NO_RULE
    assert (decision.limit, decision.remaining, decision.rule) == (None, None, None)
    assert len(decision.statuses) == 1


async def test_an_unlimited_rule_is_met_and_named():
    free = described("user", rate_limit={"unlimited": True})
    async with limiter_of(free) as limiter:
        decision = await limiter.check("d", {"user": "a"})

    assert decision
    assert decision.limit is None
    assert decision.rule is not None


async def test_a_check_of_several_units_spends_them_all():
    async with limiter_of(described("user", 5)) as limiter:
        assert (await limiter.check("d", {"user": "a"}, cost=3)).remaining == 2
        assert not await limiter.check("d", {"user": "a"}, cost=3)
        assert await left(limiter, user="a") == 2


async def test_a_cost_over_the_limit_is_denied_for_good():
    async with limiter_of(described("user", 5)) as limiter:
        decision = await limiter.check("d", {"user": "a"}, cost=6)

    assert decision.is_permanent
    assert decision.retry_after is None


async def test_a_peek_spends_nothing_and_says_what_a_check_would_meet():
    async with limiter_of(described("user", 1)) as limiter:
        assert (await limiter.peek("d", {"user": "a"})).remaining == 1
        assert await limiter.check("d", {"user": "a"})
        assert not await limiter.peek("d", {"user": "a"})


async def test_a_refund_gives_back_and_never_passes_empty():
    async with limiter_of(described("user", 5)) as limiter:
        await limiter.check("d", {"user": "a"}, cost=4)

        assert (await limiter.refund("d", {"user": "a"}, 3)).remaining == 4
        assert (await limiter.refund("d", {"user": "a"}, 99)).remaining == 5


async def test_a_reset_forgets_the_counter():
    async with limiter_of(described("user", 1)) as limiter:
        await limiter.check("d", {"user": "a"})

        assert await limiter.reset("d", {"user": "a"})
        assert await limiter.check("d", {"user": "a"})


async def test_a_descriptor_may_bring_a_cost_of_its_own():
    async with limiter_of(described("user", 9), described("tenant", 9)) as limiter:
        user = Descriptor((("user", "a"),), cost=5)
        tenant = Descriptor((("tenant", "t"),), cost=0)

        decision = await limiter.check("d", [user, tenant], cost=2)
        assert [status.remaining for status in decision.statuses] == [4, 9]
        assert [status.remaining for status in (await limiter.peek("d", [user])).statuses] == [4]


async def test_a_descriptor_may_bring_a_limit_of_its_own():
    async with limiter_of(described("user", 1)) as limiter:
        own = Descriptor((("user", "a"),), limit=Limit(3, 60, Algorithm.FIXED_WINDOW))

        decisions = [await limiter.check("d", own) for _ in range(4)]
        assert [decision.allowed for decision in decisions] == [True, True, True, False]
        assert decisions[0].limit == 3
        assert await limiter.check("d", {"user": "a"})


# -- several descriptors ---------------------------------------------------------------------------


async def test_a_request_spends_on_all_its_counters_or_on_none():
    async with limiter_of(described("user", 5), described("tenant", 1)) as limiter:
        both = [{"user": "a"}, {"tenant": "t"}]

        assert await limiter.check("d", both)
        denied = await limiter.check("d", both)

        assert not denied
        assert [status.allowed for status in denied.statuses] == [True, False]
        assert denied.retry_after == 30.0
        assert await left(limiter, user="a") == 4


async def test_a_descriptor_without_a_rule_keeps_its_place_among_the_statuses():
    async with limiter_of(described("user", 5)) as limiter:
        decision = await limiter.check("d", [{"path": "/"}, {"user": "a"}, {"path": "/"}])

    sources = [status.source for status in decision.statuses]
    assert sources == [Source.NO_RULE, Source.LOCAL, Source.NO_RULE]
    assert decision.remaining == 4


async def test_a_shadow_rule_counts_and_reports_but_never_denies():
    async with limiter_of(
        described("user", 5), described("tenant", 1, shadow_mode=True)
    ) as limiter:
        both = [{"user": "a"}, {"tenant": "t"}]
        first, second = [await limiter.check("d", both) for _ in range(2)]

        assert first
        assert not first.over_shadow
        assert second
        assert second.over_shadow
        assert await left(limiter, user="a") == 3


async def test_a_denied_request_gives_back_what_its_shadow_rules_were_charged():
    async with limiter_of(
        described("user", 1), described("tenant", 9, shadow_mode=True)
    ) as limiter:
        both = [{"user": "a"}, {"tenant": "t"}]
        for _ in range(3):
            await limiter.check("d", both)

        assert await left(limiter, tenant="t") == 8


def with_quotas():
    return (
        described("user", 1, rate_limit=limited(1), quota_mode=True),
        described("tenant", 2, rate_limit=limited(2), quota_mode=True),
        described("path", 9),
    )


async def test_quota_rules_deny_together_only():
    async with limiter_of(*with_quotas()) as limiter:
        request = [{"user": "a"}, {"tenant": "t"}, {"path": "/"}]
        decisions = [await limiter.check("d", request) for _ in range(4)]

    assert [decision.allowed for decision in decisions] == [True, True, False, False]


async def test_what_spent_quotas_deny_is_charged_nowhere():
    async with limiter_of(*with_quotas()) as limiter:
        request = [{"user": "a"}, {"tenant": "t"}, {"path": "/"}]
        for _ in range(4):
            await limiter.check("d", request)

        assert await left(limiter, path="/") == 7


async def test_a_plain_denial_outweighs_a_quota_that_is_left():
    async with limiter_of(*with_quotas()) as limiter:
        assert not await limiter.check("d", [{"tenant": "t"}, {"path": "/"}], cost=10)
        assert await left(limiter, tenant="t") == 2


async def test_a_replaced_rule_is_neither_asked_nor_charged():
    general = described("user", rate_limit=limited(1, name="general"))
    special = described("plan", rate_limit=limited(3, replaces=[{"name": "general"}]))
    async with limiter_of(general, special) as limiter:
        both = [{"user": "a"}, {"plan": "gold"}]
        decisions = [await limiter.check("d", both) for _ in range(4)]

        assert [decision.allowed for decision in decisions] == [True, True, True, False]
        assert [status.source for status in decisions[0].statuses] == [
            Source.NO_RULE,
            Source.LOCAL,
        ]
        assert await left(limiter, user="a") == 1


async def test_one_counter_that_is_met_twice_is_charged_twice_or_not_at_all():
    async with limiter_of(described("user", 3)) as limiter:
        twice = [{"user": "a"}, {"user": "a"}]

        assert await limiter.check("d", twice)
        assert not await limiter.check("d", twice)
        assert await left(limiter, user="a") == 1


# -- many requests ---------------------------------------------------------------------------------


async def test_many_requests_are_decided_as_one_after_the_other():
    async with limiter_of(described("user", 3)) as limiter:
        requests = [{"user": name} for name in "abab"] + [{"path": "/"}]
        decisions = await limiter.check_many("d", requests, [2, 1, 2, 2, 1])

    assert [decision.allowed for decision in decisions] == [True, True, False, True, True]
    assert [decision.source for decision in decisions] == [Source.LOCAL] * 4 + [Source.NO_RULE]


async def test_each_of_many_requests_stands_or_falls_for_itself():
    async with limiter_of(described("user", 1), described("tenant", 9)) as limiter:
        request = [{"user": "a"}, {"tenant": "t"}]
        first, second, third = await limiter.check_many("d", [request, request, {"tenant": "t"}])

        assert [first.allowed, second.allowed, third.allowed] == [True, False, True]
        assert await left(limiter, tenant="t") == 7


async def test_no_requests_get_no_decisions():
    async with limiter_of(described("user", 1)) as limiter:
        assert await limiter.check_many("d", []) == []


async def test_costs_must_be_as_many_as_requests():
    async with limiter_of(described("user", 1)) as limiter:
        with pytest.raises(ConfigError, match="each of 1 requests, got 2"):
            await limiter.check_many("d", [{"user": "a"}], [1, 2])


ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from("st"), st.integers(0, 4)), max_size=12
)


@given(ROWS)
@settings(max_examples=25, deadline=None)
def test_many_checks_at_once_are_the_same_as_each_alone(rows):
    async def run():
        rules = described("user", 6), described("tenant", 9)
        requests = [[{"user": user}, {"tenant": tenant}] for user, tenant, _ in rows]
        costs = [cost for *_, cost in rows]
        async with limiter_of(*rules) as one, limiter_of(*rules) as other:
            together = await one.check_many("d", requests, costs)
            alone = [
                await other.check("d", request, cost)
                for request, cost in zip(requests, costs, strict=True)
            ]
        assert together == alone

    trio.run(run)


# -- wrong arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", [-1, 2**53, 1.0, True, "1", None])
async def test_a_cost_that_is_none_is_told_to_its_caller(cost):
    async with limiter_of(described("user", 1)) as limiter:
        for call in (
            lambda: limiter.check("d", {"user": "a"}, cost),
            lambda: limiter.refund("d", {"user": "a"}, cost),
            lambda: (
                limiter.check("d", [Descriptor((("user", "a"),), cost=cost)])
                if cost is not None
                else limiter.check("d", {"user": "a"}, None)
            ),
            lambda: limiter.check_limit("1/s", "key", cost=cost),
        ):
            with pytest.raises(ConfigError, match="whole number"):
                await call()


@pytest.mark.parametrize(
    ("descriptors", "words"),
    [
        ("user", "must be a mapping or a list, got 'user'"),
        ([("user", "a")], "write several descriptors as a list of mappings"),
        ([[("user", "a", "b")]], "must be a list of \\(key, value\\) pairs"),
        ({"user": 42}, "entry 'user' must be text, got 42; write '42'"),
        ({"path": 42}, "must be text"),
        ({"user": None}, "must be text"),
        ({7: "a"}, "must be text"),
        (Descriptor((("user", 42),), limit=Limit(1, 1)), "must be text"),
        (5, "must be a mapping or a list, got 5"),
        (None, "must be a mapping or a list, got None"),
        ([5], "must be a mapping or a list"),
        ([[("user", "a"), 5]], "must be a mapping or a list"),
        ({}, "must have an entry"),
        ([], "must have an entry"),
        ([{}], "must have an entry"),
    ],
)
async def test_descriptors_that_make_no_sense_are_told_to_their_caller(descriptors, words):
    async with limiter_of(described("user", 1)) as limiter:
        with pytest.raises(ConfigError, match=words):
            await limiter.check("d", descriptors)


@pytest.mark.parametrize("domain", [None, 7, ["d"], b"d", ""])
async def test_a_domain_that_is_not_text_is_an_error(domain):
    async with limiter_of(described("user", 1)) as limiter:
        for ask in (limiter.check, limiter.peek, limiter.acquire, limiter.charge):
            with pytest.raises(ConfigError, match="domain must be text"):
                await ask(domain, {"user": "a"})
        with pytest.raises(ConfigError, match="domain must be text"):
            await limiter.check_many(domain, [{"user": "a"}])


async def test_a_value_that_is_not_text_is_told_even_where_no_rule_could_apply():
    async with limiter_of(described("user", 1)) as limiter:
        with pytest.raises(ConfigError, match="must be text"):
            await limiter.check("other", {"user": 42})


async def test_one_of_several_descriptors_may_be_empty():
    async with limiter_of(described("user", 5)) as limiter:
        decision = await limiter.check("d", [{}, {"user": "a"}])

    assert [status.remaining for status in decision.statuses] == [None, 4]


@pytest.mark.parametrize("requests", [5, None, {"user": "a"}, "user"])
async def test_many_requests_are_a_list(requests):
    async with limiter_of(described("user", 5)) as limiter:
        with pytest.raises(ConfigError, match="requests must be a list"):
            await limiter.check_many("d", requests)


@pytest.mark.parametrize("max_wait", ["1", None, float("nan"), -1, True])
async def test_how_long_to_wait_is_a_number_of_seconds(max_wait):
    async with limiter_of(described("user", 5)) as limiter:
        with pytest.raises(ConfigError, match=r"max_wait must be a duration"):
            await limiter.acquire("d", {"user": "a"}, max_wait=max_wait)


async def test_only_a_decision_can_be_released():
    async with limiter_of(described("user", 5)) as limiter:
        with pytest.raises(ConfigError, match="got None"):
            await limiter.release(None)


@pytest.mark.parametrize("limit", [5, None, []])
async def test_an_ad_hoc_limit_is_text_or_a_limit(limit):
    async with limiter_of() as limiter:
        with pytest.raises(ConfigError, match="limit must be text"):
            await limiter.check_limit(limit, "key")


@pytest.mark.parametrize("key", [(), (42,), ("a", None)])
async def test_an_ad_hoc_limit_needs_a_key_of_text(key):
    async with limiter_of() as limiter:
        with pytest.raises(ConfigError, match="key must be one or more texts"):
            await limiter.check_limit("5/s", *key)


async def test_an_ad_hoc_limit_that_nobody_understands_is_told():
    async with limiter_of() as limiter:
        with pytest.raises(ConfigError):
            await limiter.check_limit("a few per minute", "key")


# -- ad-hoc limits ---------------------------------------------------------------------------------


async def test_an_ad_hoc_limit_needs_no_rule():
    async with limiter_of() as limiter:
        decisions = [await limiter.check_limit("2/minute", "user:42") for _ in range(3)]

        assert [decision.allowed for decision in decisions] == [True, True, False]
        assert await limiter.check_limit("2/minute", "user:43")


async def test_the_parts_of_an_ad_hoc_key_cannot_be_shifted():
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


# -- the worked examples ---------------------------------------------------------------------------


@pytest.mark.parametrize("vector", [*VECTORS, *CHARGE_VECTORS], ids=lambda vector: vector.name)
async def test_the_local_limiter_answers_every_worked_example(vector: Vector):
    clock = HandClock()
    async with limiter_of(clock=clock) as limiter:
        for number, step in enumerate(vector.steps):
            clock.at = step.at_ns
            ask = limiter.charge_limit if step.is_charge else limiter.check_limit
            decision = await ask(vector.limit, "key", cost=step.cost)

            told = {
                "allowed": decision.allowed,
                "permanent": decision.is_permanent,
                "soft": decision.over_soft,
                "remaining": decision.remaining,
                "retry": None if decision.retry_after is None else in_ns(decision.retry_after),
                "reset": in_ns(decision.reset_after),
                "delay": in_ns(decision.delay),
            }
            stated = {
                "allowed": step.is_admitted,
                "permanent": step.is_permanent,
                "soft": step.is_over_soft,
                "remaining": step.remaining,
                "retry": None if step.is_permanent else step.retry_after_ns,
                "reset": step.reset_after_ns,
                "delay": step.delay_ns,
            }
            expected = {name: value for name, value in stated.items() if value is not None}
            if vector.limit.algorithm is Algorithm.CONCURRENCY and "retry" in expected:
                # When a slot is likely to be free: never later than when one must be.
                assert told["retry"] <= expected.pop("retry")
            assert {name: told[name] for name in expected} == expected, f"step {number}: {step}"


def in_ns(seconds):
    return round(seconds * SECOND)


# -- turns and places ------------------------------------------------------------------------------


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
        begun = trio.current_time()
        turns = []

        async def take():
            assert await limiter.acquire("d", {"user": "a"}, max_wait=10)
            turns.append(round(trio.current_time() - begun, 3))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(take)

    assert turns == [0.0, 1.0, 2.0]


async def test_a_turn_that_comes_too_late_is_left_to_others(autojump_clock):
    async with limiter_of(described("user", **queue(1, 3)), clock=TrioClock()) as limiter:
        for _ in range(2):
            await limiter.check("d", {"user": "a"})

        denied = await limiter.acquire("d", {"user": "a"}, max_wait=1.5)

        assert not denied
        assert denied.retry_after == pytest.approx(2.0)
        assert denied.delay == 0.0
        assert await left(limiter, user="a") == 1


async def test_a_waiter_that_is_cancelled_leaves_the_queue(autojump_clock):
    async with limiter_of(described("user", **queue(1, 3)), clock=TrioClock()) as limiter:
        for _ in range(2):
            await limiter.check("d", {"user": "a"})

        with trio.move_on_after(0.5) as scope:
            await limiter.acquire("d", {"user": "a"}, max_wait=10)

        assert scope.cancelled_caught
        assert await left(limiter, user="a") == 1


async def test_acquire_asks_again_when_the_denial_said_so(autojump_clock):
    bucket = {"rate_limit": limited(60, algorithm="token_bucket", burst=1)}
    async with limiter_of(described("user", **bucket), clock=TrioClock()) as limiter:
        begun = trio.current_time()
        for _ in range(3):
            assert await limiter.acquire("d", {"user": "a"}, max_wait=5)

    assert trio.current_time() - begun == pytest.approx(2.0, abs=0.001)


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
        begun = trio.current_time()
        denied = await limiter.acquire("d", {"user": "a"}, max_wait=0.5)

    assert not denied
    assert trio.current_time() == begun


async def test_acquire_does_not_wait_for_what_never_comes(autojump_clock):
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


async def test_what_has_no_places_cannot_be_held_and_is_not_charged():
    async with limiter_of(described("user", 5)) as limiter:
        for entries in ({"user": "a"}, {"path": "/"}):
            with pytest.raises(ConfigError, match="must have a rule with algorithm concurrency"):
                async with limiter.hold("d", entries):
                    raise AssertionError
        assert await left(limiter, user="a") == 5


async def test_only_ones_own_place_is_released_and_only_once():
    async with limiter_of(described("job", **places(2))) as limiter:
        first = await limiter.check("d", {"job": "x"})
        await limiter.check("d", {"job": "x"})

        await limiter.release(first)
        await limiter.release(first)

        assert await left(limiter, job="x") == 1


async def test_there_is_nothing_to_release_without_a_place():
    async with limiter_of(described("user", 5)) as limiter:
        decision = await limiter.check("d", {"user": "a"})
        await limiter.release(decision)

        assert decision.leases is None
        assert await left(limiter, user="a") == 4


async def test_a_denied_request_holds_no_place():
    async with limiter_of(described("job", **places(2)), described("user", 1)) as limiter:
        both = [{"job": "x"}, {"user": "a"}]
        await limiter.check("d", both)
        denied = await limiter.check("d", both)

        assert not denied
        assert denied.leases is None
        assert await left(limiter, job="x") == 1


async def test_a_turn_given_up_releases_its_own_place_and_nobody_elses(autojump_clock):
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
        begun = trio.current_time()

        assert await limiter.acquire("d", {"job": "x"}, max_wait=100)
        assert trio.current_time() - begun == pytest.approx(60)


# -- an owner elsewhere ----------------------------------------------------------------------------


class Elsewhere:
    """A decider whose owner may have other rules than the client, and may be out of reach."""

    def __init__(self, known, held):
        self.rules = known
        self._held = held
        self._engine = Engine(max_keys=1000)
        self._engine.set_rules(engine_rules(held.rules()))
        self.is_lost = False
        self.denial = None
        self.knows_rules = True
        self.refusal = None
        self.refreshed = 0

    async def decide(self, batch, vetoes, within):
        await trio.lowlevel.checkpoint()
        verdicts = Results(decide_by(self._engine, batch, 30 * SECOND), [Source.OWNER] * len(batch))
        if self.is_lost:
            verdicts.put(0, Outcome(Code.ALLOWED, 9, 9), Source.POLICY)
        verdicts.refusal = self.denial
        return verdicts

    async def ask(self, key, cost, within):
        verdicts = await self.decide(Batch(Op.CHECK, [key], [cost]), None, None)
        if verdicts.refusal is not None:
            raise verdicts.refusal
        return verdicts.row(0)

    async def refresh_rules(self):
        self.refreshed += 1
        self.rules = self._held

    def time(self):
        return 0.0

    def refund(self, batch, rows, verdicts, asked_at):
        back = replace(batch.take(rows), op=Op.REFUND, groups=[])
        decide_by(self._engine, back, 30 * SECOND)

    def outage(self):
        return self.refusal


OLD = described("user", 5), described("old", 5)
NEW = described("user", 5), described("new", 5)


async def test_an_owner_with_newer_rules_makes_the_client_fetch_them():
    decider = Elsewhere(rules_of(*OLD), rules_of(*NEW))
    limiter = Limiter(decider)

    dropped = await limiter.check("d", {"old": "a"})
    added = await limiter.check("d", {"new": "a"})

    assert dropped
    assert dropped.source is Source.NO_RULE
    assert added.remaining == 4
    assert decider.refreshed == 1


async def test_an_owner_with_older_rules_counts_by_the_limit_that_comes_along():
    class Ahead(Elsewhere):
        async def refresh_rules(self):
            self.refreshed += 1

    limiter = Limiter(Ahead(rules_of(*NEW), rules_of(*OLD)))

    decisions = [await limiter.check("d", {"new": "a"}) for _ in range(6)]

    assert [decision.remaining for decision in decisions] == [4, 3, 2, 1, 0, 0]
    assert not decisions[5]
    assert not any(status.is_unknown for each in decisions for status in each.statuses)


class AheadForGood(Elsewhere):
    """The client's rules are newer, and nobody has newer ones."""

    async def refresh_rules(self):
        self.refreshed += 1


async def test_what_stands_beside_an_unknown_rule_is_charged_once():
    limiter = Limiter(AheadForGood(rules_of(*NEW), rules_of(*OLD)))
    both = [{"user": "a"}, {"new": "a"}]

    decision = await limiter.check("d", both)

    assert [status.remaining for status in decision.statuses] == [4, 4]


async def test_what_stands_beside_an_unknown_rule_is_refunded_once():
    limiter = Limiter(AheadForGood(rules_of(*NEW), rules_of(*OLD)))
    both = [{"user": "a"}, {"new": "a"}]
    await limiter.check("d", both, cost=4)

    decision = await limiter.refund("d", both)

    assert [status.remaining for status in decision.statuses] == [2, 2]


async def test_only_requests_with_unknown_rules_are_asked_again():
    decider = AheadForGood(rules_of(*NEW), rules_of(*OLD))
    limiter = Limiter(decider)

    decisions = await limiter.check_many("d", [{"user": "a"}, {"new": "a"}, {"user": "a"}])

    assert [decision.remaining for decision in decisions] == [4, 4, 3]
    assert decider.refreshed == 1


async def test_rules_that_a_client_brings_along_keep_shadow_and_quota_apart():
    shadowed = rules_of(described("user", 5), described("new", 1, shadow_mode=True))
    limiter = Limiter(Elsewhere(shadowed.as_carried(), RuleSet()))
    both = [{"user": "a"}, {"new": "a"}]

    decisions = [await limiter.check("d", both) for _ in range(3)]

    assert [decision.over_shadow for decision in decisions] == [False, True, True]
    assert [decision.statuses[0].remaining for decision in decisions] == [4, 3, 2]


async def test_rules_that_a_client_brings_along_charge_nothing_when_they_deny():
    own = rules_of(described("user", 9), described("new", 9, shadow_mode=True), described("few", 1))
    limiter = Limiter(Elsewhere(own.as_carried(), RuleSet()))
    request = [{"user": "a"}, {"new": "a"}, {"few": "a"}]

    for _ in range(3):
        await limiter.check("d", request)

    assert await left(limiter, user="a") == 8
    assert await left(limiter, new="a") == 8


# -- outages ---------------------------------------------------------------------------------------


async def test_an_outage_is_a_decision_unless_asked_otherwise():
    decider = Elsewhere(rules_of(*OLD), rules_of(*OLD))
    decider.is_lost = True

    assert (await Limiter(decider).check("d", {"user": "a"})).source is Source.POLICY
    with pytest.raises(PeerUnavailable):
        await Limiter(decider, raise_on_outage=True).check("d", {"user": "a"})


async def test_an_outage_that_is_a_refusal_says_why():
    decider = Elsewhere(rules_of(*OLD), rules_of(*OLD))
    decider.is_lost = True
    decider.refusal = AccessDenied("the token lacks the scope 'reset'")

    with pytest.raises(AccessDenied, match="scope"):
        await Limiter(decider, raise_on_outage=True).reset("d", {"user": "a"})


async def test_what_the_token_may_not_do_is_denied_and_never_an_outage():
    decider = Elsewhere(rules_of(*OLD), rules_of(*OLD))
    decider.is_lost = True
    decider.denial = AccessDenied("the token lacks the scope 'check'")
    limiter = Limiter(decider)
    user = {"user": "a"}

    for call in (
        limiter.check("d", user),
        limiter.check_many("d", [user, user]),
        limiter.peek("d", user),
        limiter.refund("d", user),
        limiter.reset("d", user),
        limiter.acquire("d", user),
        limiter.check_limit("5/s", "key"),
        limiter.refund_limit("5/s", "key"),
        limiter.reset_limit("5/s", "key"),
    ):
        with pytest.raises(AccessDenied, match="the scope 'check'"):
            await call


async def test_before_any_rule_is_known_no_decision_says_that_none_applies():
    decider = Elsewhere(RuleSet(), RuleSet())
    decider.knows_rules = False

    decision = await Limiter(decider).check("d", {"user": "a"})

    assert decision
    assert decision.source is Source.POLICY
    with pytest.raises(PeerUnavailable, match="has sent its rules"):
        await Limiter(decider, raise_on_outage=True).check("d", {"user": "a"})
    async with Limiter(decider).hold("d", {"job": "a"}) as held:
        assert held


async def test_a_limiter_is_of_no_use_after_its_block():
    async with limiter_of(described("user", 5)) as limiter:
        decision = await limiter.check("d", {"user": "a"})

    for call in (
        limiter.check("d", {"user": "a"}),
        limiter.check("d", {"path": "/"}),
        limiter.check_limit("5/s", "key"),
        limiter.release(decision),
    ):
        with pytest.raises(ConfigError, match="limiter must be open"):
            await call


async def test_a_check_that_raises_has_charged_nothing():
    decider = Elsewhere(rules_of(*OLD), rules_of(*OLD))
    limiter = Limiter(decider, raise_on_outage=True)
    decider.is_lost = True
    with pytest.raises(PeerUnavailable):
        await limiter.check_many("d", [{"user": "a"}, {"user": "b"}])
    decider.is_lost = False

    assert await left(limiter, user="b") == 5


# -- living together -------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", ["d", "other"])
async def test_a_task_that_checks_in_a_loop_lets_others_run(domain):
    has_run = trio.Event()

    async def other():
        has_run.set()

    async with limiter_of(described("user", 1)) as limiter, trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(1000):
            await limiter.check(domain, {"user": "a"})
        assert has_run.is_set()


@pytest.mark.parametrize("domain", ["d", "other"])
async def test_a_task_that_checks_in_a_loop_can_be_cancelled(domain):
    async with limiter_of(described("user", 1)) as limiter:
        with trio.fail_after(5), trio.CancelScope() as scope:
            scope.cancel()
            while True:
                await limiter.check(domain, {"user": "a"})
