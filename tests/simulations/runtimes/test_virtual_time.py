"""Virtual time of trio: waits take no real time, and the clock makes the timed calls itself."""

from collections.abc import Awaitable, Callable
from time import monotonic

import pytest

from ringfence import runtime
from simulations.runtimes.virtual_time import open_timed_calls, run_at_level
from simulations.scenarios.scenario import Level

LEVELS: tuple[Level, ...] = ("core", "node")

Log = list[tuple[str, float]]


def run(level: Level, main: Callable[[Log], Awaitable[None]]) -> Log:
    """Run `main` at a level; return its log."""
    log: Log = []

    async def logged() -> None:
        await main(log)

    run_at_level(level, logged, 1)
    return log


def note(log: Log, name: str) -> None:
    log.append((name, runtime.current_time()))


@pytest.mark.parametrize("level", LEVELS)
def test_timed_calls_and_sleeping_tasks_run_in_order_of_time(level: Level) -> None:
    async def main(log: Log) -> None:
        async with open_timed_calls() as calls:
            for name, when in (("late", 2.0), ("cancelled", 1.5), ("one", 1.0), ("two", 1.0)):
                planned = calls.call_at(when, lambda name=name: note(log, name))
                if name == "cancelled":
                    planned.cancel()
            calls.call_soon(lambda: note(log, "soon"))
            await runtime.sleep(1.25)
            note(log, "task")
            await runtime.sleep(1.75)
            note(log, "end")

    assert run(level, main) == [
        ("soon", 0.0),
        ("one", 1.0),
        ("two", 1.0),
        ("task", 1.25),
        ("late", 2.0),
        ("end", 3.0),
    ]


@pytest.mark.parametrize("level", LEVELS)
def test_a_timed_call_wakes_a_task_before_later_calls(level: Level) -> None:
    async def main(log: Log) -> None:
        event = runtime.Event()
        async with open_timed_calls() as calls:
            calls.call_at(1.0, event.set)
            calls.call_at(2.0, lambda: note(log, "later"))
            await event.wait()
            note(log, "woken")
            calls.call_at(0.5, lambda: note(log, "overdue"))
            await runtime.sleep(5.0)

    assert run(level, main) == [("woken", 1.0), ("overdue", 1.0), ("later", 2.0)]


@pytest.mark.parametrize("level", LEVELS)
def test_a_timed_call_can_cancel_a_scope_and_start_a_task(level: Level) -> None:
    async def main(log: Log) -> None:
        async def started() -> None:
            note(log, "started")

        async with open_timed_calls() as calls, runtime.open_task_group() as tasks:
            with runtime.move_on_after(60.0) as scope:
                calls.call_at(1.0, scope.cancel)
                await runtime.sleep(60.0)
            note(log, "cancelled")
            calls.call_at(2.0, lambda: tasks.start_soon(started))
            await runtime.sleep(3.0)

    assert run(level, main) == [("cancelled", 1.0), ("started", 2.0)]


@pytest.mark.parametrize("level", LEVELS)
def test_a_day_of_calls_takes_no_real_time(level: Level) -> None:
    async def main(log: Log) -> None:
        async with open_timed_calls() as calls:

            def again() -> None:
                calls.call_at(runtime.current_time() + 60.0, again)

            again()
            await runtime.sleep(86_400.0)
            note(log, "end")

    began = monotonic()
    assert run(level, main) == [("end", 86_400.0)]
    assert monotonic() - began < 60.0
