"""Where the simulation harness will stand; nothing is here yet."""

__all__: list[str] = []
