"""Benchmarks whose figures compare two versions on the same machine.

`python -m benchmarks NAME...` runs them. Each benchmark is a module whose `run(rounds)` yields one
`benchmarks.reporting.figure.Figure` per quantity. No benchmark passes or fails.
"""
