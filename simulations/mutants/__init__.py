"""Mistakes planted on purpose: does the simulation notice them?

A mutant is the shipped code with one mistake in it. A hunt runs small scenarios against each; a
mutant that survives shows something that no invariant guards.
"""

from simulations.mutants.ground import Ground
from simulations.mutants.grounds import GROUNDS
from simulations.mutants.hunt import Kill, Result, as_row, hunt, summary
from simulations.mutants.planted import MUTANTS
from simulations.mutants.trial import try_out
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
