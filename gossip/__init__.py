"""Membership and the spread of counts. Members are still listed in the settings of each node."""

__all__: list[str] = []
