"""All mistakes that are planted."""

from simulations.mutants.of_answers import ANSWERS
from simulations.mutants.of_counts import COUNTS
from simulations.mutants.of_gossip import GOSSIP
from simulations.mutants.of_limiter import LIMITER
from simulations.mutants.of_moves import MOVES
from simulations.mutants.value import Mutant

__all__ = ["MUTANTS"]

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant for mutant in (*GOSSIP, *COUNTS, *MOVES, *LIMITER, *ANSWERS)
}
"""By name."""
