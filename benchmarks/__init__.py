"""Benchmarks, for comparing two versions of the code on the same machine.

`python -m benchmarks NAME...` runs them. Each benchmark is a module whose `run(rounds)` yields one
`benchmarks.reporting.figure.Figure` per quantity. No benchmark passes or fails.
"""
