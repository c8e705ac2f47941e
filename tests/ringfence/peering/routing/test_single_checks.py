"""Single checks, which leave in frames with others, and overload."""

import asyncio

import pytest
import trio

from ringfence.limiter import Code
from ringfence.rules import encode_key
from ringfence.wire import Source
from tests.ringfence.peering.routing.cluster import DENY, LOCAL, LONE, PLAIN, ClientCluster, key_of


@pytest.mark.parametrize("is_lone", [True, False])
async def test_a_shed_check_is_decided_by_the_failure_policy_at_once(autojump_clock, is_lone):
    cluster = ClientCluster(hedge_after=0.1)
    plain, deny, alone = key_of("a"), key_of("a", DENY), key_of("a", LOCAL)
    cluster.members["a"].sheds = True
    found = []
    for key in (plain, deny, alone):
        if is_lone:
            found.append(await cluster.check_one(key, within=0.25))
        else:
            results = await cluster.check([key], within=0.25)
            found.append((results.sources[0], results.outcomes.codes[0]))

    assert found == [
        (Source.SHED, Code.ALLOWED),
        (Source.SHED, Code.DENIED),
        (Source.LOCAL, Code.ALLOWED),
    ]
    assert trio.current_time() < 0.01
    assert cluster.standby(plain).asked == []


async def test_a_caller_that_checks_in_a_loop_lets_other_tasks_run_while_its_checks_are_shed(
    autojump_clock,
):
    cluster = ClientCluster()
    cluster.members["a"].sheds = True
    key, has_run = key_of("a"), trio.Event()

    async def run_other_task():
        has_run.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_other_task)
        for _ in range(3):
            await cluster.check_one(key)

        assert has_run.is_set()


async def test_at_the_deadline_busy_and_lost_owners_have_different_sources(autojump_clock):
    for answers_others, source in ((True, Source.SHED), (False, Source.POLICY)):
        cluster = ClientCluster(LONE, hedge_after=0.1)
        owner = cluster.members["a"]
        owner.held_answers, owner.answers_others = [], answers_others
        key = encode_key(PLAIN, ["x"])

        assert (await cluster.check_one(key, within=0.25))[0] is source
        assert (await cluster.check([key], within=0.25)).sources == [source]


async def test_the_standby_decides_a_single_check_of_a_slow_owner(autojump_clock):
    cluster = ClientCluster(hedge_after=0.007)
    key = key_of("a")
    cluster.owner(key).held_answers = []
    started = trio.current_time()

    assert await cluster.check_one(key) == (Source.STANDBY, Code.ALLOWED)

    assert trio.current_time() - started < 0.01
    cluster.owner(key).release_answers()
    assert len(cluster.owner(key).asked) == 1, "both count one check: nothing is given back"
    assert cluster.ids_at_standby(key) == [cluster.owner(key).identity]


async def test_a_single_check_is_decided_by_its_deadline_and_stays_counted(
    autojump_clock,
):
    cluster = ClientCluster(hedge_after=0.007)
    key = key_of("a")
    for member in (cluster.owner(key), cluster.standby(key)):
        member.held_answers = []
    started = trio.current_time()

    assert await cluster.check_one(key, within=0.018) == (Source.POLICY, Code.ALLOWED)

    assert trio.current_time() - started == pytest.approx(0.018)
    cluster.owner(key).release_answers()
    assert cluster.owner(key).left(key) == 2


async def test_a_deadline_before_the_hedging_delay_prevents_hedging(autojump_clock):
    cluster = ClientCluster(hedge_after=0.007)
    key = key_of("a")
    cluster.owner(key).held_answers = []

    started = trio.current_time()

    assert await cluster.check_one(key, within=0.002) == (Source.POLICY, Code.ALLOWED)

    assert trio.current_time() - started == pytest.approx(0.002)
    assert cluster.standby(key).asked == []


async def test_another_checks_short_deadline_does_not_cause_hedging(autojump_clock):
    cluster = ClientCluster(hedge_after=0.007)
    key = key_of("a")
    cluster.owner(key).held_answers = []
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def mark_late_then_answer():
            await trio.sleep(0.001)
            cluster.owner(key).pending.mark_late()
            await trio.sleep(0.003)
            cluster.owner(key).release_answers()

        source, _ = await cluster.check_one(key)

    assert source == Source.OWNER
    assert cluster.standby(key).asked == []
    assert cluster.owner(key).left(key) == 2


def test_a_charge_reported_outside_of_an_asyncio_task_is_refunded():
    async def main():
        cluster = ClientCluster()
        key = key_of("a")
        cluster.owner(key).held_answers = []
        waiting = asyncio.ensure_future(cluster.check_one(key))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        asyncio.get_running_loop().call_soon(cluster.owner(key).release_answers)
        await asyncio.sleep(0)
        return cluster.owner(key).left(key)

    assert asyncio.run(main()) == 3
