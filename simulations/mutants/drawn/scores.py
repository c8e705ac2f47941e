"""Rows and scores of drawn mutants, for reports."""

from collections.abc import Sequence

from simulations.mutants.drawn.measure import Measured
from simulations.mutants.drawn.server import Kill

__all__ = ["as_row", "score_of"]


def as_row(measured: Measured) -> dict[str, object]:
    """Return the result of one mutant as a row of JSON values."""
    mutant, kill = measured.mutant, measured.kill
    return {
        "mutant": mutant.name,
        "function": mutant.function,
        "old": mutant.old,
        "new": mutant.new,
        "found": kill is not None,
        "by": None if kill is None else kill.by,
        "text": None if kill is None else kill.text,
        "equivalent": measured.equivalent,
        "tried": measured.tried,
        "seconds": round(measured.seconds, 1),
    }


def score_of(results: Sequence[Measured], false_alarms: Sequence[Kill] = ()) -> dict[str, object]:
    """Return the last row of the report: how many mutants were detected, and which survived.

    Equivalent mutants do not count. `not_equivalent` lists mutants that were detected although
    they are marked as equivalent; their marks are wrong, so these mutants count. `not_run` is the
    number of survivors whose line no test or run executes.
    """
    wrong = [each for each in results if each.equivalent is not None and each.kill is not None]
    counted = [each for each in results if each.equivalent is None or each in wrong]
    found = sum(each.kill is not None for each in counted)
    return {
        "drawn": len(results),
        "equivalent": len(results) - len(counted),
        "found": found,
        "score": round(found / len(counted), 4) if counted else 1.0,
        "not_run": sum(each.kill is None and not each.tried for each in counted),
        "survivors": [
            {
                "mutant": each.mutant.name,
                "function": each.mutant.function,
                "old": each.mutant.old,
                "new": each.mutant.new,
                "tried": each.tried,
            }
            for each in counted
            if each.kill is None
        ],
        "not_equivalent": [each.mutant.name for each in wrong],
        "false_alarms": [{"run": each.by, "text": each.text} for each in false_alarms],
    }
