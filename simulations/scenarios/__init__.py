"""Scenarios, faults and loads, and their generation from a seed."""
