"""Commands of `ringfence simulate`."""

from simulations.cli.simulate import simulate

__all__ = ["simulate"]
