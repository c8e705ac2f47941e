"""Measure of the unit tests and of the simulator by drawn mutants."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from time import monotonic

from ringfence.errors import ConfigError
from simulations.mutants.drawn.equivalents import reason_of
from simulations.mutants.drawn.line_map import LineMap
from simulations.mutants.drawn.sample import PACKAGES, ROOT, DrawnMutant
from simulations.mutants.drawn.server import Kill, Server

__all__ = ["Measured", "measure_simulator", "measure_tests", "record_tests"]

_MARGIN_S = 10.0
_TIMES = 10.0
"""A mutated test, or run, may need so many times its processor time, plus the margin."""
_LONGEST_RUN_S = 30.0
_BATCH = 12
"""Test files of one process that records lines; the map is saved after each process."""


@dataclass(frozen=True, slots=True)
class Measured:
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

    return _measure(mutants, run, jobs, on_measured)


def measure_simulator(
    mutants: Sequence[DrawnMutant],
    runs: Sequence[str],
    jobs: int,
    on_measured: OnMeasured,
) -> tuple[list[Measured], list[Kill]]:
    """Run the simulator with each mutant until a run has a violation.

    First all runs take place without a mutant. Runs that fail there are left out; they are the
    second result.
    """
    false_alarms: list[Kill] = []
    good = list(runs)
    with Server() as server:
        while (kill := _simulate(server, None, good)[0]) is not None:
            false_alarms.append(kill)
            good = [each for each in good if each != kill.by]

    def run(server: Server, mutant: DrawnMutant) -> tuple[Kill | None, int]:
        return _simulate(server, mutant, good)

    return _measure(mutants, run, jobs, on_measured), false_alarms


def record_tests(
    file: Path, paths: Sequence[str], on_test: Callable[[str], None] = lambda test: None
) -> LineMap:
    """Run the tests of some files, and record in the map which lines each of them runs."""
    tests = LineMap.load(file)
    with Server() as server:
        for batch in _batches(_test_files(paths), _BATCH):
            seconds: dict[str, float] = {}

            def note(reply: dict[str, object], seconds: dict[str, float] = seconds) -> None:
                if "test" in reply:
                    seconds[str(reply["test"])] = float(str(reply["seconds"]))
                    on_test(str(reply["test"]))

            output = server.scratch / "lines.json"
            output.write_text("{}", "utf-8")
            fields = {"files": batch, "packages": PACKAGES, "output": str(output)}
            kill = server.request("record", None, fields, note)
            if kill is not None:
                raise ConfigError(f"tests must run without a mutant, got {kill.text!r} in {batch}")
            tests.add(seconds, json.loads(output.read_text("utf-8")), batch)
            tests.save(file)
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


def _simulate(
    server: Server, mutant: DrawnMutant | None, runs: Sequence[str]
) -> tuple[Kill | None, int]:
    started: list[str] = []
    fields: dict[str, object] = {"runs": list(runs), "limits": {}, "longest": _LONGEST_RUN_S}
    kill = server.request(
        "simulate", mutant, fields, lambda reply: _note(reply, started), is_pure=True
    )
    return kill, len(started)


def _note(reply: dict[str, object], started: list[str]) -> None:
    if "start" in reply:
        started.append(str(reply["start"]))


def _measure(
    mutants: Sequence[DrawnMutant],
    run: Callable[[Server, DrawnMutant], tuple[Kill | None, int]],
    jobs: int,
    on_measured: OnMeasured,
) -> list[Measured]:
    with ExitStack() as stack, ThreadPoolExecutor(jobs) as threads:
        idle: SimpleQueue[Server] = SimpleQueue()
        for _ in range(jobs):
            idle.put(stack.enter_context(Server()))

        def one(mutant: DrawnMutant) -> Measured:
            server = idle.get()
            began = monotonic()
            try:
                kill, tried = run(server, mutant)
            finally:
                idle.put(server)
            result = Measured(mutant, kill, reason_of(mutant), tried, monotonic() - began)
            on_measured(result)
            return result

        return list(threads.map(one, mutants))
