"""Times at which a task that works in rounds wakes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from node.context.round_timer import RoundTimer
from tests.node.cluster import owned, world

NEVER = float("inf")


@asynccontextmanager
async def rounds_of(timer: RoundTimer, idle_pause: float = NEVER) -> AsyncIterator[list[float]]:
    """Run rounds with pauses of 1 s; yield the times of the rounds so far."""
    rounds: list[float] = []

    async def run() -> None:
        while True:
            await timer.wait(1.0, idle_pause)
            rounds.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield rounds
        nursery.cancel_scope.cancel()


async def test_no_round_follows_without_work(autojump_clock: object) -> None:
    async with rounds_of(RoundTimer()) as rounds:
        await trio.sleep(100)
    assert rounds == []


async def test_work_starts_a_round_that_is_a_pause_after_the_last_one(
    autojump_clock: object,
) -> None:
    timer = RoundTimer()
    async with rounds_of(timer) as rounds:
        await trio.sleep(5)
        timer.add_work()
        await trio.sleep(0.25)
        assert rounds == [5.0]
        timer.add_work()
        timer.add_work()
        await trio.sleep(5)
        assert rounds == [5.0, 6.0]


async def test_an_urgent_round_follows_immediately(autojump_clock: object) -> None:
    timer = RoundTimer()
    async with rounds_of(timer) as rounds:
        await trio.sleep(5)
        timer.add_work()
        await trio.sleep(0.25)
        timer.start_now()
        await trio.sleep(5)
    assert rounds == [5.0, 5.25]


async def test_work_that_is_added_during_a_round_is_for_the_next_one(
    autojump_clock: object,
) -> None:
    timer, rounds = RoundTimer(), []
    timer.add_work()
    await timer.wait(1.0)
    timer.add_work()
    rounds.append(trio.current_time())
    await timer.wait(1.0)
    rounds.append(trio.current_time())
    with trio.move_on_after(50) as scope:
        await timer.wait(1.0)
    assert rounds == [1.0, 2.0]
    assert scope.cancelled_caught


async def test_a_round_without_work_follows_after_the_idle_pause(autojump_clock: object) -> None:
    async with rounds_of(RoundTimer(), idle_pause=7.0) as rounds:
        await trio.sleep(22)
    assert rounds == [7.0, 14.0, 21.0]


async def test_the_tasks_of_idle_nodes_do_not_wake(autojump_clock: object) -> None:
    async with world("a", "b", "c") as w, w.client("b", leases=False) as limiter:
        await limiter.check("api", owned(w.rules, "client", "a"))
        w.clock.time += 3600 * 10**9  # The counter, its replica and the first transfers expire.
        await trio.sleep(10)
        rounds: list[str] = []
        for name, node in w.nodes.items():
            handoff = node.shards.handoff
            handoff._expire = noting(rounds, name, handoff._expire)  # type: ignore[method-assign]
        await trio.sleep(600)
        assert rounds == []

        await w.start("d")
        await trio.sleep(1)
        assert set(rounds) == {"a", "b", "c"}


def noting(rounds: list[str], name: str, call: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        rounds.append(name)
        call()

    return run
