"""Metrics of a node: event counters, decisions by rule, and the keys denied most."""
