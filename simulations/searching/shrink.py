"""Shrinking: reduction of a failing scenario to a few events that still violate an invariant."""

from collections.abc import Iterable
from traceback import format_exception_only

from msgspec import Struct

from simulations.reporting.outcome import Outcome, Violation
from simulations.reporting.story import Story, build_story, most_telling
from simulations.running import run_scenario
from simulations.scenarios.scenario import Scenario
from simulations.searching.case_files import Case
from simulations.searching.fairness import ends_all, is_valid
from simulations.searching.smaller import Pass, event_count, passes

__all__ = ["MAX_RUNS", "Finding", "run_outcome", "shrink"]

MAX_RUNS = 200
"""Default of the maximum runs to shrink one seed."""


class Finding(Struct, frozen=True):
    """Seed that violated an invariant, with the smallest scenario found that still violates it."""

    case: Case
    violations: tuple[tuple[str, str], ...]
    """Invariant and text of each violation of the smallest scenario."""
    violated: tuple[str, ...]
    """Invariants that the scenario violated before it was made smaller."""
    events: int
    """Number of faults, checks and callers of the smallest scenario."""
    runs: int
    """Number of runs that the search took."""
    story: Story


def shrink(seed: int, scenario: Scenario, max_runs: int = MAX_RUNS) -> Finding | None:
    """Reduce a failing scenario as long as it violates the same invariant.

    When it violates several, the invariant of the story counts, which names a key if possible.

    Returns None if it violates none.
    """
    outcome = run_outcome(scenario, seed)
    if not outcome.violations:
        return None
    search = _Search(seed, outcome, max_runs)
    search.run()
    best = search.best
    return Finding(
        Case(seed, best.scenario, _names(best)),
        tuple((each.property, each.text) for each in best.violations),
        _names(outcome),
        event_count(best.scenario),
        search.runs,
        build_story(best),
    )


def _names(outcome: Outcome) -> tuple[str, ...]:
    return tuple(sorted({each.property for each in outcome.violations}))


def run_outcome(scenario: Scenario, seed: int, original: Scenario | None = None) -> Outcome:
    """Run a scenario; an exception is a violation of the invariant `bug`.

    `original` is the scenario before changes, for the command that repeats the run.
    """
    try:
        return run_scenario(scenario, seed, original)
    except Exception as error:  # noqa: BLE001 - any exception is a finding.
        text = "".join(format_exception_only(_first_error(error))).strip()
        outcome = Outcome(scenario, seed, "", faults=scenario.faults)
        outcome.violations = [Violation("bug", 0.0, text)]
        return outcome


class _Search:
    """Search for smaller scenarios with the same kind of violation."""

    def __init__(self, seed: int, outcome: Outcome, max_runs: int) -> None:
        self.best = outcome
        self.runs = 1
        self._seed = seed
        self._max_runs = max_runs
        self._broken = _signature([most_telling(outcome)])
        self._may_end_all = ends_all(outcome.scenario)
        self._tried = {repr(outcome.scenario)}

    def run(self) -> None:
        """Apply all passes again and again until none makes the scenario smaller."""
        before = ""
        while before != repr(self.best.scenario) and self.runs < self._max_runs:
            before = repr(self.best.scenario)
            subjects = [each.subject for each in self.best.histories if each.is_judged]
            for make in passes(self._seed, [name for name, _ in self._broken], subjects):
                self._apply(make(self.best.scenario))

    def _apply(self, candidates: Pass) -> None:
        is_accepted: bool | None = None
        while self.runs < self._max_runs:
            try:
                candidate = (
                    next(candidates) if is_accepted is None else candidates.send(is_accepted)
                )
            except StopIteration:
                return
            is_accepted = self._is_failing(candidate)

    def _is_failing(self, candidate: Scenario) -> bool:
        if repr(candidate) in self._tried or not is_valid(candidate):
            return False
        if ends_all(candidate) and not self._may_end_all:
            return False
        self._tried.add(repr(candidate))
        self.runs += 1
        outcome = run_outcome(candidate, self._seed)
        if not self._broken & _signature(outcome.violations):
            return False
        self.best = outcome
        return True


def _signature(violations: Iterable[Violation]) -> frozenset[tuple[str, str]]:
    """Return the violated invariants; exceptions of different types are different invariants."""
    return frozenset(
        (each.property, each.text.partition(":")[0] if each.property == "bug" else "")
        for each in violations
    )


def _first_error(error: BaseException) -> BaseException:
    return _first_error(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
