"""Searches many seeds for one that breaks an invariant, and makes what it finds small.

Decides what is run, what is compared and what is left out; the runs themselves are `running`'s, in
processes of their own.
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

_TWICE_EVERY = 20
"""One of so many seeds is run twice, and both histories must be equal."""
_MOST_TRIES = 60
"""Runs that shrinking one seed may take."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a process tells of one run."""

    seed: int
    event_hash: str
    violations: tuple[tuple[str, str], ...]
    """Property and text."""
    marks: Counter[str]
    virtual_s: float
    real_s: float
    keep: tuple[int, ...] | None
    """Which of the drawn faults were applied; None for all."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A seed that broke an invariant."""

    run: Run
    faults: tuple[Fault, ...]
    """Those that are left after shrinking."""
    command: str
    """What replays it."""


@dataclass(slots=True)
class Batch:
    """What came of many seeds."""

    level: Level
    runs: int = 0
    twice: int = 0
    """Runs whose history was compared with a second one's."""
    failed: list[Run] = field(default_factory=list)
    differed: list[int] = field(default_factory=list)
    """Seeds whose two histories were not equal."""
    marks: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    real_s: float = 0.0

    @property
    def missing(self) -> list[str]:
        """Rare things that no run has met."""
        return [mark for mark in WANTED[self.level] if not self.marks[mark]]

    def add(self, run: Run) -> None:
        """Count one run."""
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
    """Run one seed of a scenario, whatever comes; an exception is a violation, too."""
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
    except Exception as error:  # noqa: BLE001 - that is what is searched for.
        text = "".join(format_exception_only(_first(error))).strip()
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
    """Processes for `jobs` runs at a time; what has not begun when the block ends never does."""
    # Processes live to the end: replacing them hangs (CPython's issue 115634).
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
    """Run every seed, a share of them twice; `on_run` hears of each as it ends.

    `least_parts` replaces what the scenario says about the parts of transfers.
    """
    batch = Batch(level)
    again: dict[Future[Run], int] = {}
    first: dict[Future[Run], int] = {}
    for seed in seeds:
        first[executor.submit(run_seed, name, level, seed, None, least_parts)] = seed
        if seed % _TWICE_EVERY == 0:
            again[executor.submit(run_seed, name, level, seed, None, least_parts)] = seed
    hashes: dict[int, str] = {}
    for future in as_completed([*first, *again]):
        run = future.result()
        if future in first:
            batch.add(run)
            on_run(run)
        before = hashes.setdefault(run.seed, run.event_hash)
        if run.seed % _TWICE_EVERY == 0 and before != run.event_hash:
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
    """Leave faults out for as long as the same property breaks; the fewest that were found."""
    original = generate_scenario(run.seed, level) if name == DRAWN else scenario_of(name)
    broken = {each for each, _ in run.violations}
    kept, best = list(range(len(original.faults))), run
    tries, size = 0, max(1, len(kept) // 2)
    while kept and tries < _MOST_TRIES:
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


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _without_parts(kept: Sequence[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(kept), size):
        yield [*kept[:start], *kept[start + size :]]
