"""Benchmarks of the simulator, of membership in virtual time, and of replayed logs."""
