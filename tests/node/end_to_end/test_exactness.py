"""Limits of a cluster are exact: in races, and in every worked example."""

from random import Random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from ringfence.client.limiter import Limiter
from ringfence.limiter import Algorithm
from ringfence.rules.loading.yaml_files import load_text
from ringfence.transport.memory import MemoryNetwork
from ringfence.wire import Source
from tests.node.cluster import NAMES, RULES, HandClock, World, key_owned_by, race, world
from tests.ringfence.limiter.vectors.algorithms import CHARGE_VECTORS, VECTORS, Vector

# Races


@pytest.mark.parametrize(
    "only", [False, True], ids=["directly to the owner", "through other nodes"]
)
async def test_exactly_one_of_two_clients_gets_the_last_unit(
    autojump_clock: MockClock, only: bool
) -> None:
    rounds = 300
    async with world() as w, w.client("a", only=only) as one, w.client("b", only=only) as two:
        allowed_counts = [await race([one, two], {"one": str(number)}) for number in range(rounds)]

        assert allowed_counts == [1] * rounds
        assert (w.total("forwarded") > rounds) is only


async def test_exactly_the_limit_of_a_hundred_concurrent_checks_passes(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a", only=True) as one, w.client("c") as two:
        assert await race([one, two] * 50, {"client": "x"}) == 5


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    jitter=st.floats(0, 0.05),
    schedule=st.lists(
        st.tuples(
            st.integers(0, 3),  # the client
            st.integers(0, 2),  # the key
            st.integers(0, 4),  # the cost
            st.floats(0, 0.1),  # the time
        ),
        min_size=1,
        max_size=40,
    ),
)
def test_no_interleaving_admits_more_than_the_limit_or_less_than_requested(
    seed: int, jitter: float, schedule: list[tuple[int, int, int, float]]
) -> None:
    spent = [0, 0, 0]
    denied_costs: list[list[int]] = [[], [], []]

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            network = MemoryNetwork(Random(seed), jitter=jitter)
            w = World(nursery, network, HandClock(), load_text(RULES).rules)
            for name in NAMES:
                await w.start(name)
            await w.settle()
            async with (
                w.client("a") as one,
                w.client("a", only=True) as two,
                w.client("b", only=True) as three,
                w.client("c", only=True) as four,
            ):
                limiters = (one, two, three, four)

                async def send_check(client: int, key: int, cost: int, time: float) -> None:
                    await trio.sleep(time)
                    decision = await limiters[client].check("api", {"client": str(key)}, cost)
                    assert decision.source in (Source.OWNER, Source.CACHE, Source.LEASE)
                    if decision.allowed:
                        spent[key] += cost
                    else:
                        denied_costs[key].append(cost)

                async with trio.open_nursery() as checks:
                    for client, key, cost, time in schedule:
                        checks.start_soon(send_check, client, key, cost, time)
            nursery.cancel_scope.cancel()
        assert w.bugs == []

    trio.run(run, clock=MockClock(autojump_threshold=0))

    for units, costs in zip(spent, denied_costs, strict=True):
        assert units <= 5
        # No check that fits the remaining units was denied.
        assert all(max(cost, 1) > 5 - units for cost in costs)


# Exactness, through the wire


DAY_NS = 86_400 * 10**9
"""Multiple of all periods in the worked examples."""


@pytest.mark.parametrize("algorithm", Algorithm)
async def test_a_cluster_answers_every_worked_example_through_its_client(
    autojump_clock: MockClock, algorithm: Algorithm
) -> None:
    vectors = [each for each in [*VECTORS, *CHARGE_VECTORS] if each.limit.algorithm is algorithm]
    assert vectors
    async with world("a", "b", at=0) as w, w.client("a", only=True) as limiter:
        for number, vector in enumerate(vectors):
            key = key_owned_by("b", vector.limit, number=number)
            await check_example(w, limiter, vector, key, begin_ns=10 * number * DAY_NS)

        steps = sum(len(vector.steps) for vector in vectors)
        assert w.count("b", "checks") + w.count("b", "charges") == steps


async def check_example(
    w: World, limiter: Limiter, vector: Vector, key: str, begin_ns: int
) -> None:
    """Check all decisions of one example that begins at this instant."""
    assert DAY_NS % vector.limit.period_ns == 0
    for number, step in enumerate(vector.steps):
        w.clock.time = begin_ns + step.at_ns
        call = limiter.charge_limit if step.is_charge else limiter.check_limit
        decision = await call(vector.limit, key, cost=step.cost)

        reported = {
            "admitted": decision.allowed,
            "permanent": decision.is_permanent,
            "over_soft": decision.over_soft,
            "remaining": decision.remaining,
            "retry_after": decision.retry_after or 0.0,
            "reset_after": decision.reset_after,
            "delay": decision.delay,
        }
        expected = {
            "admitted": step.is_admitted,
            "permanent": step.is_permanent,
            "over_soft": step.is_over_soft,
            "remaining": step.remaining,
            "retry_after": in_seconds(step.retry_after_ns),
            "reset_after": in_seconds(step.reset_after_ns),
            "delay": in_seconds(step.delay_ns),
        }
        specified = {name: value for name, value in expected.items() if value is not None}
        if vector.limit.algorithm is Algorithm.CONCURRENCY and "retry_after" in specified:
            # The likely time of a free slot is never later than the guaranteed time.
            assert reported["retry_after"] <= specified.pop("retry_after")
        assert {name: reported[name] for name in specified} == specified, (
            f"{vector.name}, step {number}"
        )


def in_seconds(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns / 1e9
