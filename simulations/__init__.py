"""Simulation of clusters: many nodes with the shipped code, on virtual time, with faults drawn from
a seed.
"""

__all__: list[str] = []
