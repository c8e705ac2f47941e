"""The simulation harness: many nodes of the shipping code on virtual time."""

__all__: list[str] = []
