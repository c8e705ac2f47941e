"""Runner of mutants: each one runs in a separate process until an invariant detects it.

Decides the runs, their time-out and the reported rows. A mutant can break its process in any way,
for example by an endless loop, so the process is not trusted.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from resource import RLIM_INFINITY, RLIMIT_CPU, RUSAGE_SELF, getrusage, setrlimit
from signal import SIG_BLOCK, SIG_UNBLOCK, SIGINT, SIGXCPU, pthread_sigmask
from time import monotonic

from msgspec import Struct

from simulations.mutants.catalog import MUTANTS
from simulations.mutants.run import run_on_testbed
from simulations.mutants.scenario_builder import Testbed
from simulations.mutants.scenarios import TESTBEDS
from simulations.mutants.value import Mutant

__all__ = ["Kill", "OnProgress", "Result", "as_row", "run_mutants", "summary"]

_RUN_TIMEOUT = 12.0
"""Maximum processor seconds of one run; runs of the shipped code take less than five."""
_SLOWEST = 20
"""Ratio of the maximum wall time to the maximum processor time, for a busy machine."""


class Kill(Struct, frozen=True):
    """Violation by which a mutant was detected."""

    scenario: str
    seed: int
    violation: str
    """The violated property; `crash` and `hang` are properties, too."""
    text: str


class Result(Struct, frozen=True):
    """Result of the runs of one mutant, or of the shipped code."""

    mutant: Mutant | None
    """None for the shipped code, which must have no violation."""
    kill: Kill | None
    runs: int
    seeds: int
    """Number of seeds without a violation."""
    seconds: float
    """Wall time."""

    @property
    def name(self) -> str:
        """Name of the mutant; empty for the shipped code."""
        return "" if self.mutant is None else self.mutant.name


OnProgress = Callable[[Result, int, int], None]
"""Receives each result, the number of results so far, and their total number."""


class _Task(Struct, frozen=True):
    mutant: Mutant | None
    testbeds: tuple[Testbed, ...]
    seeds: tuple[int, ...]

    @property
    def runs(self) -> list[tuple[Testbed, int]]:
        return [(testbed, seed) for seed in self.seeds for testbed in self.testbeds]


def run_mutants(
    mutants: Sequence[Mutant],
    seeds: Sequence[int],
    jobs: int,
    on_progress: OnProgress = lambda result, done, of: None,
    *,
    run_timeout: float = _RUN_TIMEOUT,
) -> list[Result]:
    """Run each mutant with every seed until one run detects it, and run the shipped code too.

    The results of the shipped code come first, one per scenario of any mutant. The results of the
    mutants follow in their order. Raises `ValueError` for a mutant with an unknown scenario, and
    for fewer than one job.
    """
    if jobs < 1:
        raise ValueError(f"jobs: {jobs} processes cannot run mutants; give at least 1")
    tasks = [
        _Task(None, (testbed,), tuple(seeds))
        for testbed in _testbeds_of(mutants, TESTBEDS).values()
    ]
    tasks += [
        _Task(each, tuple(TESTBEDS[name] for name in each.testbeds), tuple(seeds))
        for each in mutants
    ]
    results: dict[int, Result] = {}
    running: dict[Connection, _Child] = {}
    waiting = list(enumerate(tasks))
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                place, task = waiting.pop(0)
                child = _Child(place, task, run_timeout)
                running[child.connection] = child
            soonest = min(child.deadline for child in running.values())
            ready = wait(list(running), timeout=max(0.0, soonest - monotonic()))
            for child in list(running.values()):
                result = child.look(is_ready=child.connection in ready)
                if result is not None:
                    del running[child.connection]
                    results[child.place] = result
                    on_progress(result, len(results), len(tasks))
    finally:
        for child in running.values():
            child.end()
    return [results[place] for place in range(len(tasks))]


def as_row(result: Result) -> dict[str, object]:
    """Return the result of one mutant as a row of JSON values."""
    row: dict[str, object] = {
        "mutant": result.name,
        "about": "the code as it ships" if result.mutant is None else result.mutant.about,
        "found": result.kill is not None,
        "survived_seeds": result.seeds,
        "runs": result.runs,
        "seconds": round(result.seconds, 1),
    }
    if result.kill is not None:
        kill = result.kill
        row |= {
            "scenario": kill.scenario,
            "seed": kill.seed,
            "violation": kill.violation,
            "text": kill.text,
        }
    return row


def summary(results: Sequence[Result]) -> dict[str, object]:
    """Return the last row of the report: numbers of planted, detected and surviving mutants, and
    violations without mutants."""
    tried = [result for result in results if result.mutant is not None]
    return {
        "applied": len(tried),
        "found": sum(result.kill is not None for result in tried),
        "survivors": [
            {
                "name": result.name,
                "why": f"no violation in {result.runs} runs, {result.seeds} seeds of each scenario",
            }
            for result in tried
            if result.kill is None
        ],
        "false_alarms": [
            {"scenario": kill.scenario, "seed": kill.seed, "violation": kill.violation,
             "text": kill.text}
            for result in results
            if result.mutant is None and (kill := result.kill) is not None
        ],
    }  # fmt: skip


def _testbeds_of(mutants: Sequence[Mutant], known: Mapping[str, Testbed]) -> dict[str, Testbed]:
    wanted = {name: mutant for mutant in mutants for name in mutant.testbeds}
    for name, mutant in wanted.items():
        if name not in known:
            raise ValueError(
                f"mutant {mutant.name} is tried in {name!r}, which is no scenario of "
                f"simulations/mutants/scenarios.py; those are {', '.join(known)}"
            )
    return {name: testbed for name, testbed in known.items() if name in wanted}


class _Child:
    """Process that runs one mutant."""

    def __init__(self, place: int, task: _Task, run_timeout: float) -> None:
        self.place = place
        self._task = task
        self._run_timeout = run_timeout
        self._began = monotonic()
        self._runs = 0
        # A new interpreter: mutants share no caches.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe(duplex=False)
        name = None if task.mutant is None else task.mutant.name
        testbeds = [testbed.name for testbed in task.testbeds]
        self._process: BaseProcess = context.Process(
            target=_run_all, args=(theirs, name, testbeds, task.seeds, run_timeout), daemon=True
        )
        # The parent handles Ctrl-C, and kills the process.
        resource_tracker.ensure_running()  # Its first start would unblock the signal.
        pthread_sigmask(SIG_BLOCK, {SIGINT})
        try:
            self._process.start()
        finally:
            pthread_sigmask(SIG_UNBLOCK, {SIGINT})
        theirs.close()
        self.deadline = monotonic() + _SLOWEST * run_timeout

    def look(self, *, is_ready: bool) -> Result | None:
        """Read the messages of the process; return the result when the process has ended."""
        runs = self._task.runs
        if is_ready:
            try:
                kill: Kill | None = self.connection.recv()
            except EOFError:
                self._process.join(1.0)
                return self._over(self._process.exitcode)
            self._runs += 1
            self.deadline = monotonic() + _SLOWEST * self._run_timeout
            if kill is not None or self._runs == len(runs):
                return self._result(kill)
        elif monotonic() >= self.deadline:
            return self._over(None)
        return None

    def end(self) -> None:
        """Stop the process and close its pipe."""
        self._process.kill()
        self._process.join()
        self.connection.close()

    def _over(self, code: int | None) -> Result:
        """Return the result of a mutant whose process ended with exit status `code`, or timed out
        (None)."""
        is_hanging = code is None or code == -SIGXCPU
        testbed, seed = self._task.runs[self._runs]
        text = (
            f"the run took more than {self._run_timeout:g} s"
            if is_hanging
            else f"the process ended with status {code}"
        )
        self._runs += 1
        return self._result(Kill(testbed.name, seed, "hang" if is_hanging else "crash", text))

    def _result(self, kill: Kill | None) -> Result:
        self.end()
        seeds = len(self._task.seeds) if kill is None else self._task.seeds.index(kill.seed)
        took = monotonic() - self._began
        return Result(self._task.mutant, kill, self._runs, seeds, took)


def _limit(seconds: float) -> None:
    """Limit the processor time that this process may still use."""
    used = getrusage(RUSAGE_SELF)
    most = ceil(used.ru_utime + used.ru_stime + seconds)
    setrlimit(RLIMIT_CPU, (most, RLIM_INFINITY))


def _run_all(
    connection: Connection,
    name: str | None,
    testbeds: Sequence[str],
    seeds: Sequence[int],
    run_timeout: float,
) -> None:
    """Run all scenarios of a mutant in this process; send the violation or None after each run."""
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    mutant = None if name is None else MUTANTS[name]
    for seed in seeds:
        for testbed in testbeds:
            _limit(run_timeout)
            violations = run_on_testbed(mutant, TESTBEDS[testbed], seed)
            kill = None
            if violations:
                first = violations[0]
                kill = Kill(testbed, seed, first.property, first.text)
            connection.send(kill)
            if kill is not None:
                return
