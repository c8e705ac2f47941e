"""Mutants that a mutation tool draws at random, and the measure of the tests by them.

The developers choose neither the mutants nor their places. So the share of detected mutants is
evidence about the tests and the simulator.
"""

from simulations.mutants.drawn.equivalents import Equivalent, known_equivalents, reason_of
from simulations.mutants.drawn.line_map import LineMap
from simulations.mutants.drawn.measure import (
    Measured,
    measure_simulator,
    measure_tests,
    record_tests,
)
from simulations.mutants.drawn.sample import PACKAGES, DrawnMutant, draw_mutants, find_mutant
from simulations.mutants.drawn.scores import as_row, score_of
from simulations.mutants.drawn.server import Kill, check_test_libraries
from simulations.mutants.drawn.simulated import runs_of
from simulations.mutants.drawn.tool import check_installed

__all__ = [
    "DrawnMutant",
    "Equivalent",
    "Kill",
    "Measured",
    "PACKAGES",
    "LineMap",
    "as_row",
    "check_installed",
    "check_test_libraries",
    "draw_mutants",
    "find_mutant",
    "known_equivalents",
    "measure_simulator",
    "measure_tests",
    "reason_of",
    "record_tests",
    "runs_of",
    "score_of",
]
