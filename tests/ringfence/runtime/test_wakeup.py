from math import inf

import pytest
import trio
import trio.testing

from ringfence.runtime.wakeup import Wakeup


async def test_a_wake_up_before_the_wait_is_not_lost(autojump_clock: object) -> None:
    wakeup = Wakeup()
    wakeup.wake()
    with trio.fail_after(1):
        await wakeup.wait()


async def test_each_wait_needs_its_own_wake_up(autojump_clock: object) -> None:
    wakeup = Wakeup()
    passed: list[int] = []

    async def wait_twice() -> None:
        for number in range(2):
            await wakeup.wait()
            passed.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_twice)
        await trio.testing.wait_all_tasks_blocked()
        wakeup.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert passed == [0]
        wakeup.wake()
    assert passed == [0, 1]


async def test_a_cancelled_wait_leaves_the_wake_up_usable(autojump_clock: object) -> None:
    wakeup = Wakeup()
    with trio.move_on_after(1):
        await wakeup.wait()
    wakeup.wake()
    with trio.fail_after(1):
        await wakeup.wait()


async def test_a_wait_ends_at_its_deadline_which_can_be_moved(autojump_clock: object) -> None:
    wakeup = Wakeup()
    assert wakeup.deadline == -inf
    await wakeup.wait_until(2.0)
    assert trio.current_time() == 2.0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wakeup.wait_until, 9.0)
        await trio.testing.wait_all_tasks_blocked()
        assert wakeup.deadline == 9.0
        wakeup.move_deadline(4.0)
    assert trio.current_time() == 4.0
    wakeup.wake()
    await wakeup.wait_until(9.0)
    assert trio.current_time() == 4.0
    assert wakeup.deadline == -inf


@pytest.mark.parametrize("deadline", [0.0, 5.0, 6.0])
async def test_a_wait_with_a_deadline_can_be_cancelled(
    autojump_clock: object, deadline: float
) -> None:
    rounds = 0

    async def wait_forever() -> None:
        nonlocal rounds
        wakeup = Wakeup()
        while True:
            await wakeup.wait_until(deadline)
            rounds += 1
            await trio.sleep(1)

    with trio.move_on_after(5) as scope:
        await wait_forever()
    assert scope.cancelled_caught
    assert trio.current_time() == 5.0
    assert rounds <= 5
