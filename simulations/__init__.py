"""Simulation of clusters: many nodes with the shipped code, virtual time and faults, from a
seed."""

__all__: list[str] = []
