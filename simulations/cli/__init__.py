"""`ringfence simulate` and what stands under it."""

from simulations.cli.simulate import simulate

__all__ = ["simulate"]
