"""Back-off before a failed member is restarted."""

__all__ = ["BackOff"]

_FIRST = 0.5
_LONGEST = 30.0
_WELL_AFTER = 60.0
"""A member that ran for this many seconds resets the delay."""


class BackOff:
    """Delay before a failed member is restarted. It doubles with every failure, until a member has
    run for a minute."""

    def __init__(self) -> None:
        self._pause = _FIRST

    def after(self, lived: float) -> float:
        """Return the delay in seconds after a member has failed that ran for `lived` seconds."""
        if lived >= _WELL_AFTER:
            self._pause = _FIRST
        pause = self._pause
        self._pause = min(_LONGEST, 2 * pause)
        return pause
