"""One run of a scenario with or without a mutant, and the violations that it finds."""

import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from simulations.mutants.scenario_builder import Testbed
from simulations.mutants.value import Mutant, applied
from simulations.reporting.outcome import Outcome, Violation
from simulations.world.run import simulate

__all__ = ["run_on_testbed"]

_ENGINE = "RINGFENCE_ENGINE"
"""Environment variable that selects the limiter engine."""


def run_on_testbed(mutant: Mutant | None, testbed: Testbed, seed: int) -> list[Violation]:
    """Run a scenario with a mutant and return the violations; a crash counts as a violation.

    Without a mutant, the shipped code runs.
    """
    logging.disable(logging.CRITICAL)  # Mutants cause many log messages.
    with _in_python(), nullcontext() if mutant is None else applied(mutant):
        try:
            outcome = simulate(testbed.scenario, seed, "")
        except Exception as error:  # noqa: BLE001 - whatever a mutant breaks gives it away.
            return [Violation("crash", 0.0, _describe(error))]
        finally:
            logging.disable(logging.NOTSET)
    return [*outcome.violations, *_excused(outcome), *_marks(testbed, outcome)]


@contextmanager
def _in_python() -> Iterator[None]:
    """Make nodes use the reference engine in Python, because a mutant cannot change compiled
    code."""
    before = os.environ.get(_ENGINE)
    os.environ[_ENGINE] = "reference"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ENGINE]
        else:
            os.environ[_ENGINE] = before


def _excused(outcome: Outcome) -> list[Violation]:
    """Return a violation for each reason of an excuse in a run without faults.

    The judge excuses answers of the failure policy when connections break. In these scenarios,
    clients repeat their checks on new connections, so that the policy never decides.
    """
    excuses = Counter[str]() if outcome.faults else outcome.judged.excuses
    return [
        Violation("excused", outcome.virtual_s, f"{reason}: {count} times")
        for reason, count in sorted(excuses.items())
    ]


def _marks(testbed: Testbed, outcome: Outcome) -> list[Violation]:
    found = [
        Violation("mark", outcome.virtual_s, f"{mark}: never")
        for mark in testbed.wanted
        if not outcome.marks[mark]
    ]
    return found + [
        Violation("mark", outcome.virtual_s, f"{mark}: {outcome.marks[mark]} times")
        for mark in testbed.unwanted
        if outcome.marks[mark]
    ]


def _describe(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:300]
