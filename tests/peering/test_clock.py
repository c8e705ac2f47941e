import asyncio
import time

import trio

from ringfence.peering.clock import SystemClock, loop_time


def test_the_clock_starts_from_the_wall_clock():
    assert abs(SystemClock().now() - time.time_ns()) < 1_000_000_000


def test_the_clock_never_goes_back():
    clock = SystemClock()
    readings = [clock.now() for _ in range(1000)]

    assert readings == sorted(readings)


def test_the_loop_is_asked_for_its_time_in_its_tasks_and_in_its_callbacks():
    async def of_asyncio():
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        found = []
        loop.call_soon(lambda: (found.append(loop_time()), told.set()))
        await told.wait()
        return abs(loop.time() - loop_time()), abs(loop.time() - found[0])

    async def of_trio():
        return abs(trio.current_time() - loop_time())

    assert max(*asyncio.run(of_asyncio()), trio.run(of_trio)) < 1.0
