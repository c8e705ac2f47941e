"""The scheduler behaves like trio, on small random programs and on selected cases."""

from collections.abc import Awaitable, Callable
from math import inf
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from ringfence import runtime
from simulations.runtimes.scheduler import Scheduler

Main = Callable[[], Awaitable[object]]
Log = list[tuple[float, str]]

_EVENTS = 3
_LONGEST = 50.0


class Boom(Exception):
    """Error that a program raises."""


class Program:
    """Random tasks that wait, start other tasks, set events, cancel scopes and fail.

    Each step begins with a wait of a different length, so that no two events happen at the same
    instant. Trio does not define the order of simultaneous events.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.lengths = Random(seed + 1)
        self.steps = 0

    def draw(self, depth: int) -> list[Any]:
        return [self._step(depth) for _ in range(self.random.randint(1, 3))]

    def _step(self, depth: int) -> tuple[Any, ...]:
        self.steps += 1
        pause = self.lengths.uniform(0.1, 3.0)
        kinds = ["sleep", "set", "wait", "checkpoint", "cancel", "fail"]
        kind = self.random.choice(kinds + ["scope", "group", "start"] * 2 * (depth > 0))
        name = f"{kind}{self.steps}"
        if kind == "scope":
            seconds = self.random.choice([inf, self.lengths.uniform(0.0, 4.0)])
            is_shielded = (
                seconds < inf and self.random.random() < 0.5
            )  # Otherwise it may run forever.
            return kind, name, pause, seconds, is_shielded, self.draw(depth - 1)
        if kind in ("group", "start"):
            tasks = [self.draw(depth - 1) for _ in range(self.random.randint(1, 3))]
            return kind, name, pause, tasks, self.draw(depth - 1)
        return kind, name, pause, self.random.randrange(_EVENTS)


class Interpreter:
    """Interpreter that runs a program on the caller's runtime."""

    def __init__(self) -> None:
        self.log: Log = []
        self.events = [runtime.Event() for _ in range(_EVENTS)]

    def note(self, what: str) -> None:
        self.log.append((round(runtime.current_time(), 6), what))

    async def main(self, program: list[Any]) -> None:
        with runtime.move_on_after(_LONGEST) as scope:
            await self.run(program, [scope])
        self.note(f"end, cut short: {scope.cancelled_caught}")

    async def run(self, program: list[Any], scopes: list[runtime.CancelScope]) -> None:
        for step in program:
            try:
                await self.step(step, scopes)
            except Boom:
                self.note(f"{step[1]} failed")
                raise
            except BaseExceptionGroup as errors:
                is_failure = errors.split(Boom)[0] is not None
                self.note(f"{step[1]} {'failed' if is_failure else 'was cancelled'}")
                raise
            except BaseException:
                self.note(f"{step[1]} was cancelled")
                raise

    async def step(self, step: tuple[Any, ...], scopes: list[runtime.CancelScope]) -> None:
        kind, name, pause = step[:3]
        await runtime.sleep(pause)
        self.note(name)
        match kind:
            case "set":
                self.events[step[3]].set()
            case "wait":
                await self.events[step[3]].wait()
                self.note(f"{name} waited")
            case "checkpoint":
                await runtime.checkpoint()
            case "cancel":
                scopes[step[3] % len(scopes)].cancel()
            case "fail":
                raise Boom
            case "scope":
                with runtime.move_on_after(step[3], shield=step[4]) as scope:
                    await self.run(step[5], [*scopes, scope])
                self.note(f"{name} cancelled: {scope.cancelled_caught}")
            case "group" | "start":
                await self.group(name, step, scopes, is_started=kind == "start")

    async def group(
        self, name: str, step: tuple[Any, ...], scopes: list[runtime.CancelScope], is_started: bool
    ) -> None:
        async with runtime.open_task_group() as tasks:
            inner = [*scopes, tasks.cancel_scope]
            for number, program in enumerate(step[3]):
                if is_started:
                    self.note(await tasks.start(self.begin, f"{name}.{number}", program, inner))
                else:
                    tasks.start_soon(self.run, program, inner)
            await self.run(step[4], inner)
        self.note(f"{name} cancelled: {tasks.cancel_scope.cancelled_caught}")

    async def begin(
        self,
        name: str,
        program: list[Any],
        scopes: list[runtime.CancelScope],
        task_status: runtime.TaskStatus[str],
    ) -> None:
        await runtime.sleep(program[0][2] / 3)
        task_status.started(f"{name} is ready")
        await self.run(program, scopes)


def on_trio(program: list[Any]) -> Log:
    async def main() -> Log:
        interpreter = Interpreter()
        try:
            await interpreter.main(program)
        except* Boom:
            interpreter.note("failed")
        return interpreter.log

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def on_scheduler(program: list[Any]) -> Log:
    found: list[Interpreter] = []

    async def main() -> None:
        found.append(Interpreter())
        try:
            await found[0].main(program)
        except* Boom:
            found[0].note("failed")

    Scheduler().run(main)
    return found[0].log


@settings(max_examples=300)
@given(st.integers(0, 10**9))
def test_programs_behave_as_on_trio(seed: int) -> None:
    program = Program(seed).draw(3)

    assert sorted(on_scheduler(program)) == sorted(on_trio(program))


@given(st.integers(0, 10**9))
def test_equal_programs_have_equal_histories(seed: int) -> None:
    program = Program(seed).draw(3)

    assert on_scheduler(program) == on_scheduler(program)


def test_tasks_run_in_the_order_in_which_they_became_ready() -> None:
    made: list[int] = []

    async def add(number: int) -> None:
        made.append(number)
        await runtime.checkpoint()
        made.append(number + 10)

    async def main() -> None:
        async with runtime.open_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(add, number)

    Scheduler().run(main)

    assert made == [0, 1, 2, 10, 11, 12]


def test_timed_calls_run_in_order_of_time_then_of_scheduling() -> None:
    made: list[tuple[str, float]] = []

    async def main() -> None:
        async with runtime.open_timed_calls() as calls:
            for name, when in (("late", 2.0), ("cancelled", 1.5), ("one", 1.0), ("two", 1.0)):
                timer = calls.call_at(
                    when, lambda name=name: made.append((name, runtime.current_time()))
                )
                if name == "cancelled":
                    timer.cancel()
            calls.call_soon(lambda: made.append(("soon", runtime.current_time())))
            await runtime.sleep(3.0)

    Scheduler().run(main)

    assert made == [("soon", 0.0), ("one", 1.0), ("two", 1.0), ("late", 2.0)]


def test_a_deadlocked_program_raises() -> None:
    async def main() -> None:
        await runtime.Event().wait()

    with pytest.raises(RuntimeError, match="deadlock"):
        Scheduler().run(main)


def test_an_error_of_the_main_task_ends_the_run() -> None:
    async def main() -> None:
        await runtime.sleep(1.0)
        raise Boom

    with pytest.raises(Boom):
        Scheduler().run(main)


def test_a_task_that_ends_before_it_is_started_fails_the_start() -> None:
    async def ends(task_status: runtime.TaskStatus[None]) -> None:
        await runtime.sleep(1.0)

    async def main() -> None:
        async with runtime.open_task_group() as tasks:
            with pytest.raises(RuntimeError, match="before it was started"):
                await tasks.start(ends)

    Scheduler().run(main)


def test_the_clock_of_a_run_is_not_seen_after_it() -> None:
    async def main() -> None:
        await runtime.sleep(5.0)
        assert runtime.current_time() == 5.0

    Scheduler().run(main)

    with pytest.raises(RuntimeError):
        runtime.current_time()
