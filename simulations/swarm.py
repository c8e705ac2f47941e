"""Search of many seeds for violated invariants.

This module chooses the runs and compares them. `running` executes each run in a separate process.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from time import process_time

from msgspec import Struct, field
from msgspec.structs import replace

from simulations.judging.coverage import WANTED
from simulations.judging.judged import Judged
from simulations.judging.pairs import wanted_pairs
from simulations.scenarios.catalog import scenario as scenario_of
from simulations.scenarios.generate import DRAWN, generate_scenario
from simulations.scenarios.scenario import Level, Scenario
from simulations.searching.shrink import Finding, run_outcome, shrink

__all__ = [
    "Batch",
    "Run",
    "pool",
    "run_one",
    "run_seed",
    "scenario_of_seed",
    "search",
    "shrink_seed",
]

_REPEAT_EVERY = 20
"""Interval of seeds that run twice; both histories must be equal."""


class Run(Struct, frozen=True):
    """Result of one simulation run, in a form that can be sent between processes."""

    seed: int
    event_hash: str
    violations: tuple[tuple[str, str], ...]
    """Invariant and text of each violation."""
    marks: Counter[str]
    pairs: frozenset[str]
    """Names of the pairs of features and faults that met."""
    virtual_s: float
    real_s: float
    reached: frozenset[str] = frozenset()
    """What the run reached, see `Outcome.reached`."""
    cpu_s: float = 0.0
    """Processor time of the process during the run."""
    judged: Judged = field(default_factory=Judged)
    """Decisions that were judged exactly, and the reasons of the excused ones."""


class Batch(Struct):
    """Combined results of many seeds."""

    level: Level
    runs: int = 0
    twice: int = 0
    """Number of runs that were repeated to compare the histories."""
    failed: list[Run] = field(default_factory=list)
    differed: list[int] = field(default_factory=list)
    """Seeds with two different histories."""
    marks: Counter[str] = field(default_factory=Counter)
    pairs: Counter[str] = field(default_factory=Counter)
    """Number of runs in which each pair of features and faults met."""
    virtual_s: float = 0.0
    real_s: float = 0.0
    cpu_s: float = 0.0
    """Processor time of all runs."""
    judged: Judged = field(default_factory=Judged)

    @property
    def missing_pairs(self) -> list[str]:
        """Return the names of the pairs of features and faults that met in no run."""
        return sorted(wanted_pairs() - self.pairs.keys())

    @property
    def missing(self) -> list[str]:
        """Return the names of rare events that occurred in no run."""
        return [mark for mark in WANTED[self.level] if not self.marks[mark]]

    def add(self, run: Run) -> None:
        """Add the result of one run to the combined results."""
        self.runs += 1
        self.marks += run.marks
        self.pairs.update(run.pairs)
        self.judged.add(run.judged)
        self.virtual_s += run.virtual_s
        self.real_s += run.real_s
        self.cpu_s += run.cpu_s
        if run.violations:
            self.failed.append(run)


def scenario_of_seed(
    name: str, level: Level, seed: int, least_parts: int | None = None
) -> Scenario:
    """Return the scenario that a swarm runs with a seed.

    `least_parts` replaces the scenario's minimum number of parts per transfer of shards.
    """
    scenario = generate_scenario(seed, level) if name == DRAWN else scenario_of(name)
    scenario = replace(scenario, level=level)
    return scenario if least_parts is None else replace(scenario, least_parts=least_parts)


def run_seed(name: str, level: Level, seed: int, least_parts: int | None = None) -> Run:
    """Run one seed of a scenario; an exception counts as a violation."""
    return run_one(scenario_of_seed(name, level, seed, least_parts), seed)


def run_one(scenario: Scenario, seed: int) -> Run:
    """Run a scenario; an exception counts as a violation."""
    began = process_time()
    outcome = run_outcome(scenario, seed)
    return Run(
        seed,
        outcome.event_hash,
        tuple((each.property, each.text) for each in outcome.violations),
        outcome.marks,
        frozenset(outcome.pairs),
        outcome.virtual_s,
        outcome.real_s,
        reached=outcome.reached,
        cpu_s=process_time() - began,
        judged=outcome.judged,
    )


def shrink_seed(
    name: str, level: Level, seed: int, least_parts: int | None, max_runs: int
) -> Finding | None:
    """Reduce the scenario of a failing seed to a few events; None if the seed does not fail."""
    return shrink(seed, scenario_of_seed(name, level, seed, least_parts), max_runs)


@contextmanager
def pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of `jobs` processes. An exception in the block, such as Ctrl-C, ends the
    processes at once."""
    # Processes live until the end, since replacing them may hang (CPython issue 115634).
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as executor:
        try:
            yield executor
        except BaseException:
            for process in [*executor._processes.values()]:
                process.kill()  # They ignore an interrupt while a scenario runs.
            raise
        finally:
            executor.shutdown(wait=False, cancel_futures=True)


def search(
    executor: ProcessPoolExecutor,
    name: str,
    level: Level,
    seeds: Iterable[int],
    on_run: Callable[[Run], None],
    least_parts: int | None = None,
) -> Batch:
    """Run every seed, and some of them twice; call `on_run` with the first run of each seed.

    `least_parts` replaces the scenario's minimum number of parts per transfer of shards.
    """
    batch = Batch(level)
    again: dict[Future[Run], int] = {}
    first: dict[Future[Run], int] = {}
    for seed in seeds:
        first[executor.submit(run_seed, name, level, seed, least_parts)] = seed
        if seed % _REPEAT_EVERY == 0:
            again[executor.submit(run_seed, name, level, seed, least_parts)] = seed
    hashes: dict[int, str] = {}
    for future in as_completed([*first, *again]):
        run = future.result()
        if future in first:
            batch.add(run)
            on_run(run)
        before = hashes.setdefault(run.seed, run.event_hash)
        if run.seed % _REPEAT_EVERY == 0 and before != run.event_hash:
            batch.differed.append(run.seed)
    batch.twice = len(again)
    return batch
