"""How long a member that has died waits before it is started again."""

__all__ = ["BackOff"]

_FIRST = 0.5
_LONGEST = 30.0
_WELL_AFTER = 60.0
"""Seconds after which a member that has run so long counts as well."""


class BackOff:
    """Twice as long with every death, until a member has lived for a minute."""

    def __init__(self) -> None:
        self._pause = _FIRST

    def after(self, lived: float) -> float:
        """Seconds to wait now that it has died after `lived` seconds."""
        if lived >= _WELL_AFTER:
            self._pause = _FIRST
        pause = self._pause
        self._pause = min(_LONGEST, 2 * pause)
        return pause
