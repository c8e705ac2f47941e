"""Corrections after a response, when time has passed since the check."""

from contextlib import nullcontext
from typing import Any

import pytest

import ringfence
import ringfence.blocking
from ringfence.client.decision import UNDECIDED, decide
from ringfence.integrations._core.asgi_request import AsgiRequest
from ringfence.integrations._core.effects import Charge, Check, Refund
from ringfence.integrations._core.policy import Policy, settle
from ringfence.integrations._core.request_state import RequestState
from ringfence.integrations._core.runner import (
    OutageTracker,
    performer,
    run_steps,
    run_steps_blocking,
)
from ringfence.integrations._core.settings import Response, Settings
from ringfence.rules import RuleSet
from tests.ringfence.integrations.asgi.client import scope_of


class Clock:
    """Time of the limiter in nanoseconds, and of the policy in seconds."""

    def __init__(self) -> None:
        self.seconds = 30.0

    def now(self) -> int:
        return round(self.seconds * 1e9)

    def __call__(self) -> float:
        return self.seconds


RULES = {
    "domain": "d",
    "descriptors": [
        {
            "key": "path",
            "rate_limit": {"unit": "minute", "requests_per_unit": 100, "algorithm": "fixed_window"},
        }
    ],
}
COUNTER = "d", {"path": "/"}


def policy_with(clock: Clock) -> Policy:
    """Return a policy that reserves 30 units for each request; its final cost is 10."""
    settings = Settings(domain="d", keys="path", cost=30, cost_after=lambda request, response: 10)
    return Policy(settings, "app", clock=clock)


def state_of_a_request() -> RequestState:
    return RequestState(AsgiRequest(scope_of("/")))


IN_TIME_OR_LATE = pytest.mark.parametrize(("seconds", "expected"), [(1, 40), (60, 50)])
"""Seconds until the response, and the units left after its refund if others use 50."""


@IN_TIME_OR_LATE
def test_a_refund_after_a_response_leaves_the_units_of_a_later_window(
    seconds: int, expected: int
) -> None:
    clock, outages = Clock(), OutageTracker()
    policy, state = policy_with(clock), state_of_a_request()
    with ringfence.blocking.local(RULES, clock=clock) as limiter:
        run_steps_blocking(policy.admit(state, limiter), limiter, outages)
        clock.seconds += seconds
        assert limiter.check(*COUNTER, cost=50)
        run_steps_blocking(settle(state, Response(200, {}), limiter), limiter, outages)

        assert limiter.peek(*COUNTER).remaining == expected


@IN_TIME_OR_LATE
async def test_a_refund_of_an_async_limiter_leaves_them_too(seconds: int, expected: int) -> None:
    clock, outages = Clock(), OutageTracker()
    policy, state = policy_with(clock), state_of_a_request()
    async with ringfence.local(RULES, clock=clock) as limiter:
        perform = performer(limiter)
        await run_steps(policy.admit(state, limiter), perform, outages)
        clock.seconds += seconds
        assert await limiter.check(*COUNTER, cost=50)
        await run_steps(settle(state, Response(200, {}), limiter), perform, outages)

        assert (await limiter.peek(*COUNTER)).remaining == expected


def test_the_refund_of_a_first_limit_has_the_age_of_its_check_when_a_second_one_denies() -> None:
    clock = Clock()
    settings = Settings(limit=["100/minute", "10/minute"], keys="path", cost=20)
    steps = Policy(settings, "app", clock=clock).admit(state_of_a_request(), None)
    with ringfence.blocking.local(RuleSet()) as limiter:
        next(steps)
        clock.seconds += 1.5
        steps.send(limiter.check_limit("100/minute", "a", cost=20))
        refund = steps.send(limiter.check_limit("10/minute", "a", cost=20))

    assert isinstance(refund, Refund)
    assert (refund.cost, refund.age) == (20, 1.5)


async def test_a_first_limit_that_no_node_decided_gets_no_refund_when_a_second_one_denies() -> None:
    settings = Settings(limit=["100/minute", "10/minute"], keys="path", cost=20)
    steps = Policy(settings, "app", clock=Clock()).admit(state_of_a_request(), None)
    async with ringfence.local(RuleSet()) as limiter:
        perform = performer(limiter)
        first = next(steps)
        assert isinstance(first, Check)
        await perform(Charge(first.ask, 50))  # The units of other requests.
        second = steps.send(decide([UNDECIDED]))
        refund = steps.send(await perform(second))

        assert isinstance(refund, Refund)
        await perform(refund)
        now = await perform(Check(first.ask, 0))

    assert now is not None
    assert now.remaining == 50


@pytest.mark.parametrize(
    ("reported", "expected"),
    [(10, [("Refund", 20), ("Charge", 10)]), (50, [("Charge", 20), ("Charge", 50)]),
     (30, [("Charge", 30)]), (0, [("Refund", 30)]), (None, [])],
)  # fmt: skip
def test_a_limit_that_no_node_has_counted_is_charged_the_final_cost(
    reported: int | None, expected: list[tuple[str, int]]
) -> None:
    keys: list[Any] = [{"path": lambda _: "/"}, {"user": lambda _: "ada"}]
    settings = Settings(domain="d", keys=keys, cost=30, cost_after=lambda *_: reported)
    state, owner = state_of_a_request(), object()
    steps = Policy(settings, "app", clock=Clock()).admit(state, owner)
    next(steps)
    with ringfence.blocking.local(RULES) as limiter, pytest.raises(StopIteration):
        steps.send(decide([limiter.check(*COUNTER, cost=30).statuses[0], UNDECIDED]))

    effects: list[Any] = [*settle(state, Response(200, {}), owner)]

    assert [(type(each).__name__, each.cost) for each in effects] == expected
    charged = [each.ask.descriptors for each in effects if isinstance(each, Charge)]
    assert charged[-1:] == ([[{"user": "ada"}]] if reported else [])


def test_a_request_pays_once_for_equal_limits() -> None:
    settings = Settings(limit=["5/minute", "5 per minute", "9/minute"], keys="path")
    steps = Policy(settings, "app", clock=Clock()).admit(state_of_a_request(), None)

    with ringfence.blocking.local(RuleSet()) as limiter:
        first = next(steps)
        second = steps.send(limiter.check_limit("5/minute", "a"))
        with pytest.raises(StopIteration):
            steps.send(limiter.check_limit("9/minute", "a"))

    assert isinstance(first, Check)
    assert isinstance(second, Check)
    assert first.ask != second.ask


@pytest.mark.parametrize("option", ["cost_after", "deduct_when"])
def test_an_error_of_the_application_does_not_keep_the_slot_of_another_limit(option: str) -> None:
    def fail(*_: object) -> Any:
        raise ZeroDivisionError

    options: dict[str, Any] = {option: fail}
    settings = Settings(limit=["9/year", "1 concurrent ttl 1h"], keys="path", **options)
    policy, outages, owner = Policy(settings, "app"), OutageTracker(), object()
    with ringfence.blocking.local(RuleSet()) as limiter:
        for _ in range(2):
            state = state_of_a_request()
            assert run_steps_blocking(policy.admit(state, owner), limiter, outages) is None
            for error in (pytest.raises(ZeroDivisionError), nullcontext()):
                with error:
                    run_steps_blocking(settle(state, Response(200, {}), owner), limiter, outages)


def test_a_refund_beside_a_slot_leaves_a_shadow_rule_that_was_over_its_limit() -> None:
    rules = {
        "domain": "d",
        "descriptors": [
            {
                "key": "job",
                "rate_limit": {"unit": "hour", "requests_per_unit": 9, "algorithm": "concurrency"},
            },
            {
                "key": "tenant",
                "shadow_mode": True,
                "rate_limit": {
                    "unit": "year",
                    "requests_per_unit": 4,
                    "algorithm": "fixed_window",
                },
            },
        ],
    }
    keys: Any = [{"job": lambda _: "j"}, {"tenant": lambda _: "t"}]
    settings = Settings(domain="d", keys=keys, cost=4, deduct_when=lambda response: False)
    policy, outages = Policy(settings, "app"), OutageTracker()
    state = state_of_a_request()
    with ringfence.blocking.local(rules) as limiter:
        limiter.check("d", {"tenant": "t"}, 4)
        run_steps_blocking(policy.admit(state, None), limiter, outages)
        run_steps_blocking(settle(state, Response(200, {}), None), limiter, outages)

        assert limiter.peek("d", {"tenant": "t"}).remaining == 0
        assert limiter.peek("d", {"job": "j"}).remaining == 9
