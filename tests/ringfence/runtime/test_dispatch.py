import asyncio

import anyio
import pytest
import trio

from ringfence import runtime

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


def test_current_time_is_that_of_the_loop_in_tasks_and_in_callbacks():
    async def of_asyncio():
        loop, called = asyncio.get_running_loop(), asyncio.Event()
        found = []
        loop.call_soon(lambda: (found.append(runtime.current_time()), called.set()))
        await called.wait()
        return abs(loop.time() - runtime.current_time()), abs(loop.time() - found[0])

    async def of_trio():
        return abs(trio.current_time() - runtime.current_time())

    assert max(*asyncio.run(of_asyncio()), trio.run(of_trio)) < 1.0


@BACKENDS
def test_an_event_wakes_all_tasks_that_wait_in_their_order(backend):
    async def run():
        event, woken = runtime.Event(), []

        async def wait(number):
            await event.wait()
            woken.append(number)

        async with runtime.open_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(wait, number)
                await anyio.wait_all_tasks_blocked()
            assert woken == []
            event.set()
            event.set()
        return sorted(woken)

    assert anyio.run(run, backend=backend) == [0, 1, 2]


@BACKENDS
def test_waiting_for_a_set_event_lets_other_tasks_run(backend):
    async def run():
        event, seen = runtime.Event(), []
        event.set()
        async with runtime.open_task_group() as tasks:
            tasks.start_soon(runtime.checkpoint)
            tasks.start_soon(runtime.sleep, 0)

            async def other():
                seen.append("other")

            tasks.start_soon(other)
            while not seen:
                await event.wait()
        return event.is_set()

    assert anyio.run(run, backend=backend)


@BACKENDS
def test_a_cancelled_wait_leaves_the_event_to_others(backend):
    async def run():
        event, woken = runtime.Event(), []

        async def wait():
            await event.wait()
            woken.append(True)

        async with runtime.open_task_group() as tasks:
            with runtime.move_on_after(0) as scope:
                await event.wait()
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            event.set()
        return scope.cancelled_caught, woken

    assert anyio.run(run, backend=backend) == (True, [True])


@BACKENDS
@pytest.mark.parametrize("seconds", [-1.0, 0.0])
def test_a_time_limit_without_time_ends_at_the_first_wait(backend, seconds):
    async def run():
        with runtime.move_on_after(seconds) as scope:
            await runtime.sleep(60)
        return scope.cancelled_caught

    assert anyio.run(run, backend=backend)


@BACKENDS
def test_another_thread_can_make_a_call_in_the_loop(backend):
    async def run():
        event = runtime.Event()
        call = runtime.thread_safe_caller()
        await anyio.to_thread.run_sync(call, event.set)
        with anyio.fail_after(30):
            await event.wait()

    anyio.run(run, backend=backend)
