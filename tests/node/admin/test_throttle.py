"""A pace: some at once, then so many a second, each in its turn."""

import trio
from trio.testing import MockClock

from node.admin.throttle import Throttle


async def test_a_burst_passes_at_once_and_the_rest_at_the_rate(autojump_clock: MockClock) -> None:
    pace = Throttle(10.0, 5)
    passed: list[float] = []
    began = trio.current_time()
    for _ in range(8):
        await pace.turn()
        passed.append(round(trio.current_time() - began, 6))

    assert passed == [0, 0, 0, 0, 0, 0.1, 0.2, 0.3]


async def test_rest_brings_the_burst_back_and_no_more(autojump_clock: MockClock) -> None:
    pace = Throttle(10.0, 2)
    for _ in range(2):
        await pace.turn()
    await trio.sleep(60)
    began = trio.current_time()
    for _ in range(3):
        await pace.turn()

    assert round(trio.current_time() - began, 6) == 0.1


async def test_whoever_asks_often_does_not_pass_those_who_wait(autojump_clock: MockClock) -> None:
    pace = Throttle(100.0, 1)
    turns: list[str] = []

    async def ask(name: str, times: int) -> None:
        for _ in range(times):
            await pace.turn()
            turns.append(name)

    async with trio.open_nursery() as nursery:
        for name, times in (("a", 20), ("b", 20), ("c", 3)):
            nursery.start_soon(ask, name, times)

    assert sorted(turns[:9]) == ["a"] * 3 + ["b"] * 3 + ["c"] * 3
