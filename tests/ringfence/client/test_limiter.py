"""Decisions that an application receives for its checks."""

from math import inf, nan

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.client.decision import UNDECIDED, decide
from ringfence.errors import ConfigError
from ringfence.limiter import Algorithm, Limit
from ringfence.rules import Descriptor
from ringfence.wire import Source
from tests.ringfence.client.limiters import SECOND, HandClock, described, left, limited, limiter_of

# -- one descriptor --------------------------------------------------------------------------------


async def test_a_limit_admits_its_amount_and_states_when_more_is_free():
    clock = HandClock()
    async with limiter_of(described("user", 2), clock=clock) as limiter:
        decisions = [await limiter.check("d", {"user": "a"}) for _ in range(3)]
        clock.at += 30 * SECOND
        later = await limiter.check("d", {"user": "a"})

    assert [decision.allowed for decision in decisions] == [True, True, False]
    assert [decision.remaining for decision in decisions] == [1, 0, 0]
    assert decisions[2].retry_after == 30.0
    assert decisions[0].limit == 2
    assert decisions[0].source is Source.OWNER
    assert decisions[0].rule is not None
    assert later


async def test_each_value_has_its_own_counter():
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


async def test_entries_are_matched_in_their_order():
    nested = described("tenant", descriptors=[described("user", 1)])
    async with limiter_of(nested) as limiter:
        met = await limiter.check("d", {"tenant": "t", "user": "u"})
        missed = await limiter.check("d", {"user": "u", "tenant": "t"})

    assert met.source is Source.OWNER
    assert missed.source is Source.NO_RULE


@pytest.mark.parametrize(
    ("domain", "descriptors"),
    [("other", {"user": "a"}), ("d", {"path": "/"})],
)
async def test_a_request_without_a_matching_rule_is_allowed(domain, descriptors):
    async with limiter_of(described("user", 0)) as limiter:
        decision = await limiter.check(domain, descriptors)

    assert decision
    assert decision.source is Source.NO_RULE
    assert (decision.limit, decision.remaining, decision.rule) == (None, None, None)
    assert len(decision.statuses) == 1


async def test_an_unlimited_rule_is_matched_and_named():
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


async def test_a_cost_over_the_limit_is_denied_permanently():
    async with limiter_of(described("user", 5)) as limiter:
        decision = await limiter.check("d", {"user": "a"}, cost=6)

    assert decision.is_permanent
    assert decision.retry_after is None


async def test_a_peek_spends_nothing_and_returns_the_decision_of_a_check():
    async with limiter_of(described("user", 1)) as limiter:
        assert (await limiter.peek("d", {"user": "a"})).remaining == 1
        assert await limiter.check("d", {"user": "a"})
        assert not await limiter.peek("d", {"user": "a"})


async def test_a_refund_returns_at_most_the_units_in_use():
    async with limiter_of(described("user", 5)) as limiter:
        await limiter.check("d", {"user": "a"}, cost=4)

        assert (await limiter.refund("d", {"user": "a"}, 3)).remaining == 4
        assert (await limiter.refund("d", {"user": "a"}, 99)).remaining == 5


async def test_a_refund_states_how_many_units_it_gave_back():
    rules = [
        described("user", 5),
        described("job", 5),
        described("free", rate_limit={"unlimited": True}),
    ]
    async with limiter_of(*rules) as limiter:
        await limiter.check("d", {"user": "a"}, cost=3)
        refunds = [await limiter.refund("d", {"user": "a"}, cost) for cost in (2, 4, 1, 0)]
        least = await limiter.refund("d", [{"user": "a"}, {"job": "a"}])
        unmatched = await limiter.refund("d", {"other": "a"})
        unlimited = await limiter.refund("d", {"free": "a"})
        ad_hoc = await limiter.refund_limit("5/minute", "a")
        check = await limiter.check("d", {"user": "a"})

    assert [refund.refunded for refund in refunds] == [2, 1, 0, 0]
    assert (least.refunded, ad_hoc.refunded) == (0, 0)
    assert [unmatched.refunded, unlimited.refunded, check.refunded] == [None] * 3
    assert refunds[0].statuses[0].refunded == 2
    assert repr(refunds[0]).startswith("Decision(allowed, refunded 2, 4 of 5 left")
    assert refunds[0].slots is None


async def test_a_refund_of_a_decision_returns_its_charged_units():
    user, tenant = {"user": "a"}, {"tenant": "t"}
    async with limiter_of(
        described("user", 5), described("tenant", 1, shadow_mode=True)
    ) as limiter:
        await limiter.check("d", [user, tenant])
        over_shadow = await limiter.check("d", [user, tenant])
        denied = await limiter.check("d", user, 4)

        for decision in (over_shadow, denied, decide([UNDECIDED])):
            await limiter.refund("d", [user, tenant][: len(decision.statuses)], decision=decision)

        assert (await left(limiter, **user), await left(limiter, **tenant)) == (4, 0)
        with pytest.raises(ConfigError, match="decision must be what a check returned, got 7"):
            await limiter.refund("d", user, decision=7)


async def test_a_refund_of_a_decision_of_another_request_gives_nothing_back():
    async with limiter_of(described("user", 5), described("tenant", 5)) as limiter:
        await limiter.check("d", {"user": "a"}, 3)
        other = await limiter.check("d", {"tenant": "t"}, 3)
        both = await limiter.check("d", [{"user": "a"}, {"tenant": "t"}])

        for decision in (other, both):
            refund = await limiter.refund("d", {"user": "a"}, decision=decision, timeout=0.5)
            assert refund.limit is None

        assert await left(limiter, user="a") == 1


async def test_a_refund_with_an_age_leaves_the_units_of_a_later_window():
    clock = HandClock()
    async with limiter_of(described("user", 5), clock=clock) as limiter:
        await limiter.check("d", {"user": "a"}, 2)
        clock.at += 40 * SECOND  # The next window has begun 10 seconds before.
        await limiter.check("d", {"user": "a"}, 2)

        assert (await limiter.refund("d", {"user": "a"}, 2, age=10.5)).remaining == 3
        assert (await limiter.refund("d", {"user": "a"}, 2, age=inf)).remaining == 3
        assert (await limiter.refund("d", {"user": "a"}, 1, age=9.5)).remaining == 4
        assert (await limiter.refund("d", {"user": "a"}, 2)).remaining == 5

        await limiter.check_limit("5/minute", "a", cost=2)
        assert (await limiter.refund_limit("5/minute", "a", cost=2, age=10.5)).remaining == 3
        assert (await limiter.refund_limit("5/minute", "a", cost=2, age=1)).remaining == 5
        for age in (-1, nan, "1", True):
            with pytest.raises(ConfigError, match="age must be a duration"):
                await limiter.refund("d", {"user": "a"}, 2, age=age)


async def test_a_reset_removes_the_counter():
    async with limiter_of(described("user", 1)) as limiter:
        await limiter.check("d", {"user": "a"})

        assert await limiter.reset("d", {"user": "a"})
        assert await limiter.check("d", {"user": "a"})


async def test_a_descriptor_may_have_its_own_cost():
    async with limiter_of(described("user", 9), described("tenant", 9)) as limiter:
        user = Descriptor((("user", "a"),), cost=5)
        tenant = Descriptor((("tenant", "t"),), cost=0)

        decision = await limiter.check("d", [user, tenant], cost=2)
        assert [status.remaining for status in decision.statuses] == [4, 9]
        assert [status.remaining for status in (await limiter.peek("d", [user])).statuses] == [4]


async def test_a_descriptor_may_have_its_own_limit():
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
    assert sources == [Source.NO_RULE, Source.OWNER, Source.NO_RULE]
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


async def test_a_denied_request_refunds_the_charges_of_its_shadow_rules():
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


async def test_requests_that_spent_quotas_deny_are_not_charged():
    async with limiter_of(*with_quotas()) as limiter:
        request = [{"user": "a"}, {"tenant": "t"}, {"path": "/"}]
        for _ in range(4):
            await limiter.check("d", request)

        assert await left(limiter, path="/") == 7


async def test_a_plain_denial_outweighs_a_quota_that_is_left():
    async with limiter_of(*with_quotas()) as limiter:
        assert not await limiter.check("d", [{"tenant": "t"}, {"path": "/"}], cost=10)
        assert await left(limiter, tenant="t") == 2


async def test_a_replaced_rule_is_neither_checked_nor_charged():
    general = described("user", rate_limit=limited(1, name="general"))
    special = described("plan", rate_limit=limited(3, replaces=[{"name": "general"}]))
    async with limiter_of(general, special) as limiter:
        both = [{"user": "a"}, {"plan": "gold"}]
        decisions = [await limiter.check("d", both) for _ in range(4)]

        assert [decision.allowed for decision in decisions] == [True, True, True, False]
        assert [status.source for status in decisions[0].statuses] == [
            Source.NO_RULE,
            Source.OWNER,
        ]
        assert await left(limiter, user="a") == 1


async def test_a_counter_matched_twice_is_charged_twice_or_never():
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
    assert [decision.source for decision in decisions] == [Source.OWNER] * 4 + [Source.NO_RULE]


async def test_each_of_many_requests_is_allowed_or_denied_separately():
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
def test_concurrent_checks_have_the_results_of_single_ones(rows):
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
