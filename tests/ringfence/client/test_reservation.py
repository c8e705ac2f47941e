"""Reservations: the end of the block charges or refunds the difference to the real cost."""

import pytest
import trio

import ringfence
from ringfence import ConfigError
from ringfence.client.decision import UNDECIDED, decide
from ringfence.client.limiter import Limiter
from ringfence.client.reservation import Reservation
from ringfence.rules import RuleSet
from ringfence.wire import Request, Source
from tests.ringfence.client.cluster.fake_cluster import fake_cluster
from tests.ringfence.client.limiters import (
    MINUTE,
    SECOND,
    HandClock,
    described,
    left,
    limiter_of,
    rules_of,
)

USER = {"user": "a"}
HUNDRED = described("user", 100)


@pytest.mark.parametrize(
    ("actual", "expected"), [(30, 70), (20, 80), (0, 100), (100, 0), (250, 0), (None, 70)]
)
async def test_the_real_cost_is_spent_or_the_reserved_units_if_none_was_set(actual, expected):
    async with limiter_of(HUNDRED) as limiter:
        async with limiter.reserve("d", USER, cost=30) as reservation:
            assert reservation
            assert reservation.reserved == 30
            assert await left(limiter, **USER) == 70
            if actual is not None:
                reservation.cost = actual

        assert await left(limiter, **USER) == expected


@pytest.mark.parametrize(
    ("actual", "refunded", "is_allowed"), [(10, 20, True), (90, None, True), (250, None, False)]
)
async def test_the_settlement_is_the_decision_of_the_charge_or_refund(actual, refunded, is_allowed):
    async with limiter_of(HUNDRED) as limiter:
        async with limiter.reserve("d", USER, cost=30) as reservation:
            assert reservation.settlement is None
            reservation.cost = actual

        assert reservation.settlement.refunded == refunded
        assert reservation.settlement.allowed == is_allowed


async def test_without_a_difference_there_is_no_settlement():
    async with limiter_of(HUNDRED) as limiter:
        async with limiter.reserve("d", USER, cost=30) as reservation:
            reservation.cost = 30

        assert reservation.settlement is None


async def test_a_cost_above_the_limit_is_a_debt():
    async with limiter_of(described("user", rate_limit=_bucket_of(100))) as limiter:
        async with limiter.reserve("d", USER, cost=30) as reservation:
            reservation.cost = 250

        denied = await limiter.check("d", USER)

    assert denied.retry_after == pytest.approx(151 * 60 / 100), "a debt of 150, then one unit"


async def test_a_denied_reservation_is_false_and_spends_nothing():
    async with limiter_of(HUNDRED) as limiter:
        await limiter.check("d", USER, 80)

        async with limiter.reserve("d", USER, cost=30) as reservation:
            assert not reservation
            assert reservation.decision.retry_after == 30.0
            assert (reservation.reserved, reservation.cost) == (0, 0)

        assert await left(limiter, **USER) == 20


async def test_a_request_that_runs_without_a_reservation_is_charged_its_whole_cost():
    async with limiter_of(HUNDRED) as limiter:
        await limiter.check("d", USER, 80)
        async with limiter.reserve("d", USER, cost=30) as reservation:
            reservation.cost = 15

        assert await left(limiter, **USER) == 5


def test_units_that_no_node_has_counted_are_not_reserved():
    assert Reservation(decide([UNDECIDED]), 30).reserved == 0


@pytest.mark.parametrize(("actual", "expected"), [(None, 70), (10, 90), (60, 40)])
async def test_a_failed_block_spends_like_a_completed_block(actual, expected):
    async def fail(limiter):
        async with limiter.reserve("d", USER, cost=30) as reservation:
            if actual is not None:
                reservation.cost = actual
            raise ZeroDivisionError

    async with limiter_of(HUNDRED) as limiter:
        with pytest.raises(ZeroDivisionError):
            await fail(limiter)

        assert await left(limiter, **USER) == expected


async def test_a_cost_after_the_block_is_refused():
    async with limiter_of(HUNDRED) as limiter:
        async with limiter.reserve("d", USER, cost=30) as reservation:
            pass

        with pytest.raises(ConfigError, match="must be set inside its block, got 7 after it"):
            reservation.cost = 7
        assert await left(limiter, **USER) == 70


async def test_a_cancelled_block_is_settled():
    async with limiter_of(HUNDRED) as limiter:
        with trio.CancelScope() as scope:
            async with limiter.reserve("d", USER, cost=30) as reservation:
                reservation.cost = 10
                scope.cancel()
                await trio.sleep_forever()

        assert await left(limiter, **USER) == 90


async def test_the_caller_gets_the_error_of_the_block_without_any_node(autojump_clock):
    async with fake_cluster() as fake:
        limiter = Limiter(await fake.joined(), raise_on_outage=True)

        async def fail():
            async with limiter.reserve("d", USER, cost=5) as reservation:
                fake.crash("a", "b", "c")
                reservation.cost = 1
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()


async def test_units_that_were_counted_in_an_outage_are_not_refunded_by_a_node(autojump_clock):
    limit = {"requests_per_unit": 100, "unit": "minute", "on_failure": "local"}
    async with fake_cluster() as fake:
        fake.change_rules(rules_of({"key": "user", "rate_limit": limit}))
        limiter = Limiter(await fake.joined())
        for node in fake.nodes.values():
            node.mute = (Request,)

        async with limiter.reserve("d", USER, cost=30) as reservation:
            assert reservation.decision.source is Source.LOCAL
            for node in fake.nodes.values():
                node.mute = ()
            await limiter.check("d", USER, 50)
            reservation.cost = 0

        assert await left(limiter, **USER) == 50
        for node in fake.nodes.values():
            node.mute = (Request,)
        assert await left(limiter, **USER) == 100


@pytest.mark.parametrize(("actual", "expected"), [(10, 10), (50, 50), (30, 30), (None, None)])
async def test_a_limit_that_no_node_has_counted_is_charged_the_real_cost(
    autojump_clock, actual, expected
):
    async with fake_cluster() as fake:
        fake.change_rules(rules_of(HUNDRED, described("key", 100)))
        limiter = Limiter(await fake.joined())
        for node in fake.nodes.values():
            node.mute = () if node.name == "c" else (Request,)

        both = [USER, {"key": "k1"}]  # Node c is neither owner nor standby of `key`.
        async with limiter.reserve("d", both, cost=30) as reservation:
            sources = [status.source for status in reservation.decision.statuses]
            assert sources == [Source.OWNER, Source.SHED]
            assert reservation.reserved == 30
            for node in fake.nodes.values():
                node.mute = ()
            if actual is not None:
                reservation.cost = actual

        spent = [100 - await left(limiter, **USER), 100 - await left(limiter, key="k1")]
        assert spent == [30 if expected is None else expected, expected or 0]
        if actual is not None:
            settled = [status.source for status in reservation.settlement.statuses]
            assert settled[1] is Source.OWNER


@pytest.mark.parametrize(
    ("actual", "silent", "spent"),
    [
        *((10, "c", [30, 10]), (50, "c", [30, 50]), (50, "ab", [50, 0])),
        *((50, "abc", [30, 0]), (30, "c", [30, 30])),
    ],
)
async def test_a_silent_owner_at_the_end_of_the_block_delays_only_its_own_limit(
    autojump_clock, actual, silent, spent
):
    async with fake_cluster() as fake:
        fake.change_rules(rules_of(HUNDRED, described("key", 100)))
        limiter = Limiter(await fake.joined())
        for node in fake.nodes.values():
            node.mute = () if node.name == "c" else (Request,)

        both = [USER, {"key": "k1"}]
        async with limiter.reserve("d", both, cost=30) as reservation:
            for node in fake.nodes.values():
                node.mute = (Request,) if node.name in silent else ()
            reservation.cost = actual

        for node in fake.nodes.values():
            node.mute = ()
        assert [100 - await left(limiter, **USER), 100 - await left(limiter, key="k1")] == spent
        is_complete = actual == 30
        assert (reservation.settlement is not None) is is_complete


async def test_the_caller_gets_the_error_of_a_refund_beside_a_charge(autojump_clock):
    async with fake_cluster() as fake:
        fake.change_rules(rules_of(HUNDRED, described("key", 100)))
        limiter = Limiter(await fake.joined())
        for node in fake.nodes.values():
            node.mute = () if node.name == "c" else (Request,)

        async def lose_all_nodes():
            async with limiter.reserve("d", [USER, {"key": "k1"}], cost=30) as reservation:
                limiter._dispatcher._raise_on_outage = True
                fake.crash("a", "b", "c")
                reservation.cost = 10

        with pytest.raises(ringfence.PeerUnavailable):
            await lose_all_nodes()


async def test_without_an_answer_nothing_is_reserved_beside_descriptors_without_a_rule(
    autojump_clock,
):
    async with fake_cluster() as fake:
        fake.change_rules(rules_of(HUNDRED))
        limiter = Limiter(await fake.joined())
        for node in fake.nodes.values():
            node.mute = (Request,)

        async with limiter.reserve("d", [USER, {"other": "k"}], cost=30) as reservation:
            assert reservation.decision
            assert reservation.reserved == 0


async def test_every_limit_of_the_request_gets_the_difference():
    async with limiter_of(HUNDRED, described("key", 50)) as limiter:
        both = [USER, {"key": "k"}]
        async with limiter.reserve("d", both, cost=40) as reservation:
            reservation.cost = 45
        assert (await left(limiter, **USER), await left(limiter, key="k")) == (55, 5)

        async with limiter.reserve("d", both, cost=40) as reservation:
            assert not reservation
        assert (await left(limiter, **USER), await left(limiter, key="k")) == (55, 5)


async def test_a_shadow_limit_that_was_not_charged_gets_nothing_back():
    shadow = described("key", 50) | {"shadow_mode": True}
    async with limiter_of(HUNDRED, shadow) as limiter:
        await limiter.check("d", {"key": "k"}, 40)
        async with limiter.reserve("d", [USER, {"key": "k"}], cost=20) as reservation:
            assert reservation.decision.over_shadow
            reservation.cost = 5

        assert (await left(limiter, **USER), await left(limiter, key="k")) == (95, 10)


async def test_units_of_a_later_window_are_not_given_back():
    clock = HandClock()
    async with limiter_of(HUNDRED, clock=clock) as limiter:
        async with limiter.reserve("d", USER, cost=30) as reservation:
            clock.at += MINUTE
            assert await limiter.check("d", USER, 50), "other units, of the next window"
            reservation.cost = 0

        assert await left(limiter, **USER) == 50


async def test_a_clock_that_was_set_back_gives_the_newest_units_back():
    clock = HandClock()
    async with limiter_of(HUNDRED, clock=clock) as limiter:
        async with limiter.reserve("d", USER, cost=30) as reservation:
            clock.at -= SECOND
            reservation.cost = 10

        assert await left(limiter, **USER) == 90


async def test_reservations_of_ad_hoc_limits():
    async with ringfence.local(RuleSet(), clock=HandClock()) as limiter:
        async with limiter.reserve_limit("100/minute", "a", cost=30) as reservation:
            reservation.cost = 10
        assert (await limiter.peek_limit("100/minute", "a")).remaining == 90


@pytest.mark.parametrize("cost", [-1, 1.5, True, None, 2**53])
async def test_an_invalid_cost_is_an_error_and_leaves_the_reserved_units_spent(cost):
    async with limiter_of(HUNDRED) as limiter:
        with pytest.raises(ConfigError, match="cost must be a whole number"):
            limiter.reserve("d", USER, cost=cost)
        with pytest.raises(ConfigError, match="the cost of a reservation must be a whole"):
            async with limiter.reserve("d", USER, cost=30) as reservation:
                reservation.cost = cost

        assert await left(limiter, **USER) == 70


async def test_slots_cannot_be_reserved_and_nothing_is_spent():
    slots = described("job", rate_limit=_bucket_of(2) | {"algorithm": "concurrency"})
    async with limiter_of(HUNDRED, slots) as limiter:
        with pytest.raises(ConfigError, match="reserve must have limits other than concurrency"):
            async with limiter.reserve("d", [USER, {"job": "j"}], cost=1):
                pytest.fail("the block must not run")

        assert await left(limiter, **USER) == 100


def _bucket_of(amount):
    return {"requests_per_unit": amount, "unit": "minute", "algorithm": "token_bucket"}
