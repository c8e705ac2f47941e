"""Guided search: scenarios that reach new states are kept and varied.

What a run reached is a set of names, see `Outcome.reached`. The search starts with drawn seeds.
Then most runs are variations of kept scenarios, and the others are further drawn seeds.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from random import Random

from msgspec import Struct, field

from simulations.scenarios.generate import DRAWN
from simulations.scenarios.scenario import Level, Scenario
from simulations.scenarios.seeds import stream
from simulations.searching.fairness import ends_all, is_valid
from simulations.searching.variations import vary
from simulations.swarm import Run, run_one, scenario_of_seed

__all__ = ["Guided", "Kept", "search_guided"]

_DRAWN_FIRST = 0.3
"""Share of runs that are drawn before the first variation."""
_VARIED = 0.8
"""Share of later runs that are variations."""
_ROUND = 8
"""Runs that start with the same knowledge, so that the number of jobs has no effect."""
_ATTEMPTS = 20


class Kept(Struct, frozen=True):
    """Scenario that reached something new when it ran."""

    seed: int
    scenario: Scenario
    news: int
    """Number of names that it reached first."""


class Guided(Struct):
    """Result of a guided search, beside plain drawing with the same number of runs."""

    runs: int = 0
    varied: int = 0
    """Number of runs that were variations."""
    kept: list[Kept] = field(default_factory=list)
    reached: set[str] = field(default_factory=set)
    plain: set[str] = field(default_factory=set)
    """What the same number of drawn seeds reached."""
    failed: list[tuple[Scenario, Run]] = field(default_factory=list)
    cpu_s: float = 0.0
    """Processor time of all runs, those of plain drawing included."""

    @property
    def only_guided(self) -> list[str]:
        """Return what only the guided search reached."""
        return sorted(self.reached - self.plain)

    @property
    def only_plain(self) -> list[str]:
        """Return what only plain drawing reached."""
        return sorted(self.plain - self.reached)


def search_guided(
    executor: Executor,
    level: Level,
    first: int,
    runs: int,
    on_run: Callable[[Run], None] = lambda run: None,
) -> Guided:
    """Run a guided search, and plain drawing with as many seeds from `first` on.

    Drawn seeds of the guided search are the first seeds of plain drawing, and run only once.
    """
    found, random = Guided(), stream(first, "guided", level)
    seed = first
    while found.runs < runs:
        size = min(_ROUND, runs - found.runs)
        tasks: list[tuple[Scenario, int]] = []
        for _ in range(size):
            is_drawn = found.runs + len(tasks) < runs * _DRAWN_FIRST
            varied = None if is_drawn or random.random() >= _VARIED else _varied(found, random)
            if varied is None:
                tasks.append((scenario_of_seed(DRAWN, level, seed), seed))
                seed += 1
            else:
                tasks.append(varied)
                found.varied += 1
        for (scenario, its_seed), run in _run(executor, tasks, on_run):
            found.runs += 1
            found.cpu_s += run.cpu_s
            news = run.reached - found.reached
            found.reached |= run.reached
            if scenario == scenario_of_seed(DRAWN, level, its_seed):
                found.plain |= run.reached
            if run.violations:
                found.failed.append((scenario, run))
            elif news:
                found.kept.append(Kept(its_seed, scenario, len(news)))
    rest = [(scenario_of_seed(DRAWN, level, each), each) for each in range(seed, first + runs)]
    for (scenario, _), run in _run(executor, rest, on_run):
        found.plain |= run.reached
        found.cpu_s += run.cpu_s
        if run.violations:
            found.failed.append((scenario, run))
    return found


def _run(
    executor: Executor, tasks: Sequence[tuple[Scenario, int]], on_run: Callable[[Run], None]
) -> list[tuple[tuple[Scenario, int], Run]]:
    """Run scenarios in parallel; return them with their results, in order."""
    futures = [executor.submit(run_one, *task) for task in tasks]
    found = []
    for task, future in zip(tasks, futures, strict=True):
        run = future.result()
        on_run(run)
        found.append((task, run))
    return found


def _varied(found: Guided, random: Random) -> tuple[Scenario, int] | None:
    """Return a fair variation of a kept scenario; None if there is none."""
    for _ in range(_ATTEMPTS if found.kept else 0):
        kept = random.choice(found.kept)
        scenario = vary(kept.scenario, random)
        if is_valid(scenario) and (ends_all(kept.scenario) or not ends_all(scenario)):
            return scenario, kept.seed
    return None
