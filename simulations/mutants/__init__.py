"""Mutants: planted bugs that the simulation should detect.

A mutant is the shipped code with one bug. A run tests small scenarios against each mutant. If no
invariant detects a mutant, no invariant checks the behaviour that it changes.
"""

from simulations.mutants.catalog import MUTANTS
from simulations.mutants.run import run_on_testbed
from simulations.mutants.runner import Kill, Result, as_row, run_mutants, summary
from simulations.mutants.scenario_builder import Testbed
from simulations.mutants.scenarios import TESTBEDS
from simulations.mutants.value import Edit, Mutant, MutantGone, applied

__all__ = [
    "Edit",
    "TESTBEDS",
    "Testbed",
    "Kill",
    "MUTANTS",
    "Mutant",
    "MutantGone",
    "Result",
    "as_row",
    "run_mutants",
    "applied",
    "summary",
    "run_on_testbed",
]
