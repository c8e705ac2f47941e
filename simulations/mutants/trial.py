"""One run of one scenario, with a mutant in it or without, and what was wrong with it."""

import logging
from contextlib import nullcontext

from simulations.mutants.ground import Ground
from simulations.mutants.value import Mutant, planted
from simulations.outcome import Outcome, Violation
from simulations.simulate import simulate_nodes

__all__ = ["try_out"]


def try_out(mutant: Mutant | None, ground: Ground, seed: int) -> list[Violation]:
    """Run a scenario; a crash is a violation, too. None is the code as it ships."""
    logging.disable(logging.CRITICAL)  # A mutant has much to complain about.
    with nullcontext() if mutant is None else planted(mutant):
        try:
            outcome = simulate_nodes(ground.scenario, seed, "")
        except Exception as error:  # noqa: BLE001 - whatever a mutant breaks gives it away.
            return [Violation("crash", 0.0, _in_words(error))]
        finally:
            logging.disable(logging.NOTSET)
    return [*outcome.violations, *_marks(ground, outcome)]


def _marks(ground: Ground, outcome: Outcome) -> list[Violation]:
    found = [
        Violation("mark", outcome.virtual_s, f"{mark}: never")
        for mark in ground.wanted
        if not outcome.marks[mark]
    ]
    return found + [
        Violation("mark", outcome.virtual_s, f"{mark}: {outcome.marks[mark]} times")
        for mark in ground.unwanted
        if outcome.marks[mark]
    ]


def _in_words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:300]
