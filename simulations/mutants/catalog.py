"""List of all mutants (planted bugs)."""

from simulations.mutants.catalog_answers import ANSWERS
from simulations.mutants.catalog_counts import COUNTS
from simulations.mutants.catalog_gossip import GOSSIP
from simulations.mutants.catalog_limiter import LIMITER
from simulations.mutants.catalog_transfers import MOVES
from simulations.mutants.value import Mutant

__all__ = ["MUTANTS"]

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant for mutant in (*GOSSIP, *COUNTS, *MOVES, *LIMITER, *ANSWERS)
}
"""By name."""
