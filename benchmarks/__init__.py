"""How fast the parts are, in figures that can be compared between two versions on one machine.

`python -m benchmarks NAME...` runs them. Each benchmark is a module whose `run(rounds)` yields one
`benchmarks.reporting.figure.Figure` per quantity; nothing here passes or fails.
"""
