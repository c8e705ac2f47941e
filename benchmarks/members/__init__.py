"""Benchmarks of members that join, leave, stop, stall or crash."""
