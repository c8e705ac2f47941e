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
