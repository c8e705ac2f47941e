"""The budget of hedged checks."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from ringfence.peering.routing.hedging import HedgingBudget
from ringfence.rules import encode_key
from ringfence.wire import Op, Source, empty_results
from tests.ringfence.peering.routing.cluster import LONE, PLAIN, ClientCluster, Cluster, key_of

SECONDS = st.floats(0.0, 10.0, allow_nan=False)


def test_a_budget_has_its_burst_then_a_share_of_the_checks() -> None:
    budget = HedgingBudget(share=0.02, burst=3)
    assert [budget.take(1) for _ in range(4)] == [True, True, True, False]
    budget.checks += 49
    assert not budget.take(1)
    budget.checks += 1
    assert budget.take(1)
    assert not budget.take(1)


def test_a_batch_is_hedged_as_a_whole_or_not_at_all() -> None:
    budget = HedgingBudget(share=0.02, burst=3)
    assert not budget.take(4)
    assert budget.take(3)


def test_a_reset_budget_is_full() -> None:
    budget = HedgingBudget(share=0.02, burst=3)
    budget.checks = 64
    assert budget.take(3)
    budget.reset()
    assert (budget.checks, budget.taken) == (0, 0)
    assert budget.take(3)
    assert not budget.take(1)


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 20)), max_size=50),
    st.floats(0.0, 0.1),
    st.integers(0, 16),
)
def test_hedged_checks_never_exceed_the_burst_and_the_share(
    steps: list[tuple[int, int]], share: float, burst: int
) -> None:
    budget = HedgingBudget(share, burst)
    taken = 0
    for checks, wanted in steps:
        budget.checks += checks
        if budget.take(wanted):
            taken += wanted
        assert taken == budget.taken <= burst + share * budget.checks + 1e-6


async def test_a_hedged_check_has_the_identity_of_the_first_request(
    autojump_clock,
):
    cluster = Cluster(hedge_after=0.007)
    key = key_of("a")
    cluster.owner(key).held_answers = []
    started = trio.current_time()

    results = await cluster.check([key])

    assert trio.current_time() - started < 0.01
    assert results.sources == [Source.STANDBY]
    assert cluster.standby(key).left(key) == 2

    assert cluster.ids_at_standby(key) == [cluster.owner(key).identity]
    cluster.owner(key).release_answers()
    assert len(cluster.owner(key).asked) == 1, "both count one check: nothing is given back"


async def test_an_owner_that_answers_before_the_delay_decides_alone(autojump_clock):
    cluster = Cluster(hedge_after=0.007)
    key = key_of("a")

    results = await cluster.check([key])

    assert results.sources == [Source.OWNER]
    assert cluster.standby(key).asked == []


async def test_a_slow_owner_without_a_standby_is_waited_for(autojump_clock):
    cluster = Cluster(LONE, hedge_after=0.007)
    key = encode_key(PLAIN, ["x"])
    cluster.owner(key).held_answers = []

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def answer_late():
            await trio.sleep(0.015)
            cluster.owner(key).release_answers()

        results = await cluster.check([key], within=0.018)

    assert results.sources == [Source.OWNER]
    assert cluster.left(key) == 2


async def test_the_hedging_delay_follows_the_owners_round_trips(autojump_clock):
    for timeout, expected in ((0.0, 0.01), (0.03, 0.03), (0.5, 0.1)):
        cluster = Cluster(hedge_after=0.1)
        key = key_of("a")
        cluster.owner(key).held_answers = []
        cluster.owner(key).timeout = timeout
        started = trio.current_time()

        assert (await cluster.check([key])).sources == [Source.STANDBY]

        assert trio.current_time() - started == pytest.approx(expected)


@pytest.mark.parametrize("is_lone", [True, False])
async def test_while_all_owners_are_slow_few_checks_are_hedged(autojump_clock, is_lone):
    cluster = ClientCluster(hedge_after=0.1)
    for member in cluster.members.values():
        member.timeout = 0.0
    keys = [encode_key(PLAIN, [str(number)]) for number in range(2000)]
    found = []

    async def check(number, key):
        await trio.sleep(number / 5000)
        if is_lone:
            found.append((await cluster.check_one(key, within=0.25))[0])
        else:
            found.extend((await cluster.check([key], within=0.25)).sources)

    async def answer_late(member):
        while True:
            member.held_answers = []
            await trio.sleep(0.05)
            member.release_answers()

    async with trio.open_nursery() as nursery:
        for member in cluster.members.values():
            nursery.start_soon(answer_late, member)
        async with trio.open_nursery() as asking:
            for number, key in enumerate(keys):
                asking.start_soon(check, number, key)
        nursery.cancel_scope.cancel()

    assert len(found) == 2000
    assert set(found) <= {Source.OWNER, Source.STANDBY}
    asked = [
        as_standby
        for member in cluster.members.values()
        for batch, _, as_standby in member.asked
        if batch.op is Op.CHECK
    ]
    assert 0 < cluster.router.hedging.taken <= 16 + 0.02 * 2000
    assert sum(asked) <= 16 + 0.02 * 2000
    assert cluster.router.hedging.checks == 2000


async def test_the_standby_of_a_lost_owner_needs_no_budget(autojump_clock):
    cluster = Cluster(hedge_after=0.1)
    cluster.members["a"].is_lost = True
    keys = [key_of("a", skip=number) for number in range(100)]

    for key in keys:
        assert (await cluster.check([key])).sources == [Source.STANDBY]

    assert cluster.router.hedging.taken == 0


async def test_without_budget_the_standby_is_asked_when_the_owner_is_lost(
    autojump_clock,
):
    cluster = Cluster(hedge_after=0.01)
    cluster.router.hedging = HedgingBudget(burst=0)
    key = key_of("a")
    owner = cluster.owner(key)
    owner.held_answers = []

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def lose():
            await trio.sleep(0.05)
            assert cluster.standby(key).asked == []
            owner.dones[-1](None)

        results = await cluster.check([key], within=0.25)

    assert results.sources == [Source.STANDBY]


async def test_without_a_standby_no_hedging_budget_is_spent(autojump_clock):
    cluster = Cluster(LONE, hedge_after=0.007)
    key = encode_key(PLAIN, ["x"])
    cluster.owner(key).held_answers = []

    assert (await cluster.check([key], within=0.02)).sources == [Source.POLICY]

    assert cluster.router.hedging.taken == 0
    assert len(cluster.owner(key).asked) == 1


async def test_rows_that_the_owner_has_answered_need_no_hedging_budget(autojump_clock):
    cluster = Cluster(hedge_after=0.01)
    cluster.router.hedging = HedgingBudget(burst=1)
    keys = [key_of("a", standby="b"), key_of("a", standby="b", skip=1)]
    owner = cluster.owner(keys[0])
    owner.held_answers = []

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def answer_one():
            await trio.sleep(0.005)
            owner.on_rows([1], empty_results(1))

        results = await cluster.check(keys, within=0.25)

    assert results.sources == [Source.STANDBY, empty_results(1).sources[0]]
    assert [batch.keys for batch, _, _ in cluster.members["b"].asked] == [keys[:1]]
    assert cluster.router.hedging.taken == 1
