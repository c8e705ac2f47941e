"""Lock of the admin port, on trio and on the scheduler of the simulator."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import trio
import trio.testing

from node.admin.lock import Lock
from ringfence import runtime
from simulations.runtimes.virtual_time import run_at_level
from simulations.scenarios.scenario import Level

LEVELS: tuple[Level, ...] = ("core", "node")


def run(level: Level, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_at_level(level, main, 1)


@pytest.mark.parametrize("level", LEVELS)
def test_tasks_hold_the_lock_one_after_another_in_fifo_order(level: Level) -> None:
    lock = Lock()
    log: list[str] = []

    async def hold(name: str) -> None:
        async with lock:
            log.append(f"{name} holds")
            await runtime.sleep(1.0)
            log.append(f"{name} ends")

    async def main() -> None:
        async with runtime.open_task_group() as tasks:
            for number, name in enumerate("abc"):
                tasks.start_soon(hold, name)
                await runtime.sleep(0.1 * (number + 1))

    run(level, main)

    assert log == ["a holds", "a ends", "b holds", "b ends", "c holds", "c ends"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_cancelled_waiter_does_not_keep_the_lock(level: Level) -> None:
    lock = Lock()
    log: list[str] = []

    async def hold(name: str, patience: float) -> None:
        with runtime.move_on_after(patience):
            async with lock:
                log.append(name)
                await runtime.sleep(1.0)

    async def main() -> None:
        async with runtime.open_task_group() as tasks:
            tasks.start_soon(hold, "a", 5.0)
            await runtime.sleep(0.1)
            tasks.start_soon(hold, "b", 0.2)
            tasks.start_soon(hold, "c", 5.0)
        async with lock:
            log.append("main")

    run(level, main)

    assert log == ["a", "c", "main"]


async def test_a_waiter_that_is_cancelled_before_it_receives_the_lock_passes_it_on() -> None:
    lock = Lock()
    log: list[str] = []

    async def wait(scope: trio.CancelScope) -> None:
        with scope:
            async with lock:
                log.append("cancelled")

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        async with lock:
            nursery.start_soon(wait, scope)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    async with lock:
        log.append("main")

    assert log == ["main"]


async def test_an_error_inside_releases_the_lock() -> None:
    lock = Lock()

    with pytest.raises(ValueError, match="inside"):
        async with lock:
            raise ValueError("inside")
    with trio.fail_after(1):
        async with lock:
            pass
