"""Runtimes of a simulation: trio on virtual time, and a deterministic scheduler."""
