"""Faults of a scenario: their arguments, their injection, and errors inside nodes."""
