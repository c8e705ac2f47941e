"""Metrics of a node: plain counters, decisions by rule, and the keys denied most."""
