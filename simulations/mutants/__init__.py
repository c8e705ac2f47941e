"""Mutants: planted bugs that the simulation should detect.

A mutant is the shipped code with one bug. A run tests small scenarios against each mutant. A mutant
that survives shows behaviour that no invariant checks.
"""

from simulations.mutants.catalog import MUTANTS
from simulations.mutants.run import try_out
from simulations.mutants.runner import Kill, Result, as_row, hunt, summary
from simulations.mutants.scenario_builder import Ground
from simulations.mutants.scenarios import GROUNDS
from simulations.mutants.value import Edit, Mutant, MutantGone, planted

__all__ = [
    "Edit",
    "GROUNDS",
    "Ground",
    "Kill",
    "MUTANTS",
    "Mutant",
    "MutantGone",
    "Result",
    "as_row",
    "hunt",
    "planted",
    "summary",
    "try_out",
]
