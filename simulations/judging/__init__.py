"""Invariants that a run must satisfy, and the oracle: the decisions of an exact limiter."""
