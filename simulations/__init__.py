"""The simulation harness: the real node code, many nodes, virtual time, any fault, from a seed."""

__all__: list[str] = []
