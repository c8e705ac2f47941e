"""The limiter in this process answers every worked example."""

import pytest

from ringfence.limiter import Algorithm
from tests.ringfence.client.limiters import SECOND, HandClock, limiter_of
from tests.ringfence.limiter.vectors.algorithms import CHARGE_VECTORS, VECTORS, Vector


@pytest.mark.parametrize("vector", [*VECTORS, *CHARGE_VECTORS], ids=lambda vector: vector.name)
async def test_the_local_limiter_answers_every_worked_example(vector: Vector):
    clock = HandClock()
    async with limiter_of(clock=clock) as limiter:
        for number, step in enumerate(vector.steps):
            clock.at = step.at_ns
            ask = limiter.charge_limit if step.is_charge else limiter.check_limit
            decision = await ask(vector.limit, "key", cost=step.cost)

            reported = {
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
                # The limiter estimates when a slot is free: not later than the last possible time.
                assert reported["retry"] <= expected.pop("retry")
            assert {name: reported[name] for name in expected} == expected, f"step {number}: {step}"


def in_ns(seconds):
    return round(seconds * SECOND)
