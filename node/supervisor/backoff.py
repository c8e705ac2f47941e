"""Back-off before a failed member is restarted."""

__all__ = ["BackOff"]

_FIRST = 0.5
_LONGEST = 30.0
_WELL_AFTER = 60.0
"""A member that ran for this many seconds resets the delay."""


class BackOff:
    """A delay that doubles with every failure, until a member has run for a minute."""

    def __init__(self) -> None:
        self._pause = _FIRST

    def after(self, lived: float) -> float:
        """Return the seconds to wait after a member has failed after `lived` seconds."""
        if lived >= _WELL_AFTER:
            self._pause = _FIRST
        pause = self._pause
        self._pause = min(_LONGEST, 2 * pause)
        return pause
