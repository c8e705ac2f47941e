"""Command-line interface of the simulator: the commands below `ringfence simulate`."""

from simulations.cli.simulate import simulate

__all__ = ["simulate"]
