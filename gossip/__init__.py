"""Where membership by gossip will stand; until then every node's settings list the members."""

__all__: list[str] = []
