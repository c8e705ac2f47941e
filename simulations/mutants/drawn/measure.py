"""Measure of the unit tests and of the simulator by drawn mutants."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from time import monotonic
from typing import TypeVar

from msgspec import Struct

from ringfence.errors import ConfigError
from simulations.mutants.drawn.equivalents import reason_of
from simulations.mutants.drawn.line_map import LineMap
from simulations.mutants.drawn.sample import PACKAGES, ROOT, DrawnMutant
from simulations.mutants.drawn.server import TEST_LIBRARIES, Kill, Server

__all__ = ["Measured", "measure_simulator", "measure_tests", "record_tests"]

_MARGIN_S = 10.0
_TIMES = 10.0
"""A mutated test, or run, may need so many times its processor time, plus the margin."""
_BATCH = 12
"""Test files of one process that records lines; the map is saved after each process."""


class Measured(Struct, frozen=True):
    """Result of one drawn mutant."""

    mutant: DrawnMutant
    kill: Kill | None
    """The test or run that detected it; None for a survivor."""
    equivalent: str | None
    """Reason why no test can detect it; None for a mutant that tests should detect."""
    tried: int
    """Number of tests or runs."""
    seconds: float
    """Wall time."""


ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
OnMeasured = Callable[[Measured], None]


def measure_tests(
    mutants: Sequence[DrawnMutant], tests: LineMap, jobs: int, on_measured: OnMeasured
) -> list[Measured]:
    """Run for each mutant the tests that it can affect, until one fails."""

    def run(server: Server, mutant: DrawnMutant) -> tuple[Kill | None, int]:
        names = tests.tests_for(mutant)
        if not names:
            return None, 0
        files = list(dict.fromkeys(name.partition("::")[0] for name in names))
        limits = {name: _TIMES * tests.seconds[name] + _MARGIN_S for name in names}
        fields: dict[str, object] = {
            "tests": names,
            "files": [file for file in files if (ROOT / file).is_file()],
            "limits": limits,
        }
        started: list[str] = []
        kill = server.request("test", mutant, fields, lambda reply: _note(reply, started))
        return kill, len(started)

    return _measure(mutants, run, jobs, on_measured, TEST_LIBRARIES)


def measure_simulator(
    mutants: Sequence[DrawnMutant],
    runs: Sequence[str],
    jobs: int,
    on_measured: OnMeasured,
) -> tuple[list[Measured], list[Kill]]:
    """Run the simulator with each mutant until a run has a violation.

    First all runs take place without a mutant, and their lines are recorded. Runs that fail there
    are left out; they are the second result. With a mutant, only runs take place that execute its
    line, the fastest first.
    """
    recorded, false_alarms = _record_runs(runs, jobs)

    def run(server: Server, mutant: DrawnMutant) -> tuple[Kill | None, int]:
        names = recorded.tests_for(mutant, is_exact=True)
        if not names:
            return None, 0
        started: list[str] = []
        limits = {name: _TIMES * recorded.seconds[name] + _MARGIN_S for name in names}
        fields = {"runs": names, "limits": limits}
        kill = server.request(
            "simulate", mutant, fields, lambda reply: _note(reply, started), is_pure=True
        )
        return kill, len(started)

    return _measure(mutants, run, jobs, on_measured), false_alarms


def _record_runs(runs: Sequence[str], jobs: int) -> tuple[LineMap, list[Kill]]:
    recorded = LineMap()
    false_alarms: list[Kill] = []
    lock = Lock()

    def record(server: Server, part: Sequence[str]) -> None:
        seconds: dict[str, float] = {}

        def note(reply: dict[str, object]) -> None:
            if "test" in reply:
                seconds[str(reply["test"])] = float(str(reply["seconds"]))
            elif "false_alarm" in reply:
                false_alarms.append(Kill(str(reply["false_alarm"]), str(reply["text"])))

        fields = {"runs": part, "packages": PACKAGES, "output": str(server.lines_file)}
        kill = server.request("record_runs", None, fields, note, is_pure=True)
        if kill is not None:
            raise ConfigError(f"simulations must run without a mutant, got {kill.text!r}")
        with lock:
            recorded.add(seconds, server.read_lines(), ())

    _in_parallel(_batches(runs, max(1, -(-len(runs) // jobs))), record, jobs)
    return recorded, false_alarms


def record_tests(
    file: Path, paths: Sequence[str], jobs: int, on_batch: Callable[[int], None] = lambda done: None
) -> LineMap:
    """Run the tests of some files, and record in the map which lines each of them runs.

    Tests that fail are left out. `on_batch` receives the number of recorded tests so far.
    """
    tests = LineMap.load(file)
    lock = Lock()

    def record(server: Server, batch: Sequence[str]) -> None:
        seconds: dict[str, float] = {}

        def note(reply: dict[str, object]) -> None:
            if "test" in reply:
                seconds[str(reply["test"])] = float(str(reply["seconds"]))

        fields = {"files": batch, "packages": PACKAGES, "output": str(server.lines_file)}
        kill = server.request("record", None, fields, note)
        if kill is not None:
            raise ConfigError(f"tests must run without a mutant, got {kill.text!r} in {batch}")
        with lock:
            tests.add(seconds, server.read_lines(), batch)
            tests.save(file)
            on_batch(len(tests.seconds))

    _in_parallel(_batches(_test_files(paths), _BATCH), record, jobs, TEST_LIBRARIES)
    return tests


def _test_files(paths: Sequence[str]) -> list[str]:
    found: list[str] = []
    for path in paths:
        place = ROOT / path
        files = sorted(place.rglob("test_*.py")) if place.is_dir() else [place]
        found += [file.relative_to(ROOT).as_posix() for file in files]
    return found


def _batches(files: Sequence[str], size: int) -> list[list[str]]:
    return [list(files[start : start + size]) for start in range(0, len(files), size)]


def _note(reply: dict[str, object], started: list[str]) -> None:
    if "start" in reply:
        started.append(str(reply["start"]))


def _measure(
    mutants: Sequence[DrawnMutant],
    run: Callable[[Server, DrawnMutant], tuple[Kill | None, int]],
    jobs: int,
    on_measured: OnMeasured,
    libraries: Sequence[str] = (),
) -> list[Measured]:
    def one(server: Server, mutant: DrawnMutant) -> Measured:
        began = monotonic()
        kill, tried = run(server, mutant)
        result = Measured(mutant, kill, reason_of(mutant), tried, monotonic() - began)
        on_measured(result)
        return result

    return _in_parallel(mutants, one, jobs, libraries)


def _in_parallel(
    items: Sequence[ItemT],
    work: Callable[[Server, ItemT], ResultT],
    jobs: int,
    libraries: Sequence[str] = (),
) -> list[ResultT]:
    """Do some work for each item, in several servers at a time; return the results in order.

    The servers import `libraries` at their start.
    """
    with ExitStack() as stack, ThreadPoolExecutor(jobs) as threads:
        idle: SimpleQueue[Server] = SimpleQueue()
        for _ in range(min(jobs, len(items))):
            idle.put(stack.enter_context(Server(libraries=libraries)))

        def one(item: ItemT) -> ResultT:
            server = idle.get()
            try:
                return work(server, item)
            finally:
                idle.put(server)

        return list(threads.map(one, items))
