"""Invariants of a run, and the oracle: the decisions of exact counting."""
