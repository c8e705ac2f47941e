"""Benchmarks of node processes and their clients over real QUIC."""
