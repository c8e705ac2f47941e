"""Search of many seeds for violated invariants, and reduction of failing scenarios to few faults.

This module chooses the runs and compares them. `running` executes each run in a separate process.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from traceback import format_exception_only

from simulations.judging.coverage import WANTED
from simulations.running import run_scenario
from simulations.scenarios.catalog import scenario as scenario_of
from simulations.scenarios.generate import DRAWN, generate_scenario
from simulations.scenarios.scenario import Fault, Level

__all__ = ["Batch", "Finding", "Run", "pool", "run_seed", "search", "shrink"]

_REPEAT_EVERY = 20
"""Interval of seeds that run twice; both histories must be equal."""
_MAX_SHRINK_RUNS = 60
"""Maximum runs to shrink one seed."""


@dataclass(frozen=True, slots=True)
class Run:
    """Result of one simulation run, in a form that can be sent between processes."""

    seed: int
    event_hash: str
    violations: tuple[tuple[str, str], ...]
    """Invariant and text of each violation."""
    marks: Counter[str]
    virtual_s: float
    real_s: float
    keep: tuple[int, ...] | None
    """Numbers of the applied faults; None for all."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Seed that violated an invariant, with the few faults that still violate it."""

    run: Run
    faults: tuple[Fault, ...]
    """Faults that remain after shrinking."""
    command: str
    """Command that repeats the run."""


@dataclass(slots=True)
class Batch:
    """Combined results of many seeds."""

    level: Level
    runs: int = 0
    twice: int = 0
    """Number of runs that were repeated to compare the histories."""
    failed: list[Run] = field(default_factory=list)
    differed: list[int] = field(default_factory=list)
    """Seeds with two different histories."""
    marks: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    real_s: float = 0.0

    @property
    def missing(self) -> list[str]:
        """Return the names of rare events that occurred in no run."""
        return [mark for mark in WANTED[self.level] if not self.marks[mark]]

    def add(self, run: Run) -> None:
        """Add the result of one run to the combined results."""
        self.runs += 1
        self.marks += run.marks
        self.virtual_s += run.virtual_s
        self.real_s += run.real_s
        if run.violations:
            self.failed.append(run)


def run_seed(
    name: str,
    level: Level,
    seed: int,
    keep: tuple[int, ...] | None = None,
    least_parts: int | None = None,
) -> Run:
    """Run one seed of a scenario; an exception counts as a violation."""
    original = (
        generate_scenario(seed, level) if name == DRAWN else replace(scenario_of(name), level=level)
    )
    scenario = original
    if keep is not None:
        scenario = replace(original, faults=tuple(original.faults[index] for index in keep))
    if least_parts is not None:
        scenario = replace(scenario, least_parts=least_parts)
    try:
        outcome = run_scenario(scenario, seed, original)
    except Exception as error:  # noqa: BLE001 - any exception is a finding.
        text = "".join(format_exception_only(_first_error(error))).strip()
        return Run(seed, "", (("bug", text),), Counter(), 0.0, 0.0, keep)
    broken = tuple((each.property, each.text) for each in outcome.violations)
    return Run(
        seed,
        outcome.event_hash,
        broken,
        outcome.marks,
        outcome.virtual_s,
        outcome.real_s,
        keep,
    )


@contextmanager
def pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of `jobs` processes; at the end of the block, pending runs are cancelled."""
    # Processes live until the end, since replacing them may hang (CPython issue 115634).
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as executor:
        try:
            yield executor
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
        first[executor.submit(run_seed, name, level, seed, None, least_parts)] = seed
        if seed % _REPEAT_EVERY == 0:
            again[executor.submit(run_seed, name, level, seed, None, least_parts)] = seed
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


def shrink(
    executor: ProcessPoolExecutor,
    name: str,
    level: Level,
    run: Run,
    least_parts: int | None = None,
) -> Finding:
    """Remove faults from a failing run while it still violates its invariant; return the remaining
    faults."""
    original = generate_scenario(run.seed, level) if name == DRAWN else scenario_of(name)
    broken = {each for each, _ in run.violations}
    kept, best = list(range(len(original.faults))), run
    tries, size = 0, max(1, len(kept) // 2)
    while kept and tries < _MAX_SHRINK_RUNS:
        smaller = None
        for part in _without_parts(kept, size):
            tries += 1
            found = executor.submit(
                run_seed, name, level, run.seed, tuple(part), least_parts
            ).result()
            if broken & {each for each, _ in found.violations}:
                smaller = part, found
                break
        if smaller is not None:
            kept, best = smaller
            size = min(size, max(1, len(kept) // 2))
        elif size == 1:
            break
        else:
            size //= 2
    faults = tuple(original.faults[index] for index in kept)
    command = f"ringfence simulate {name} --seed {run.seed} --level {level}"
    if len(kept) < len(original.faults):
        command += f" --keep {','.join(map(str, kept)) or 'none'}"
    if least_parts is not None:
        command += f" --set least_parts={least_parts}"
    return Finding(best, faults, command)


def _first_error(error: BaseException) -> BaseException:
    return _first_error(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _without_parts(kept: Sequence[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(kept), size):
        yield [*kept[:start], *kept[start + size :]]
