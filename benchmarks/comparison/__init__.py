"""Benchmarks that make the same checks with other rate limiters, in the same run."""
