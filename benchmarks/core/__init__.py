"""Benchmarks of the parts without I/O: limiter, ring, wire codec, memory."""
