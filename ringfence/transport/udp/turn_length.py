"""Length of the turns in which a transport works before other tasks run.

A short turn keeps other tasks fast. But when the other tasks need long, and the turn stays short, a
loaded process reads few of the answers that have arrived, and all its requests time out.
"""

from math import inf

__all__ = ["MIN_TURN", "TurnLength"]

MIN_TURN = 0.0005
"""Seconds after which other tasks run. A single datagram or call may need more."""
_MAX_TURN = 0.02
"""Longest turn, for a process that was stopped, and for several transports in one process."""
_SHARE = 1 / 3
"""Length of a turn, as a part of the time for which the other tasks ran before."""


class TurnLength:
    """Length of the turns of one kind of work: longer while other tasks delay the rest of it."""

    def __init__(self) -> None:
        self._interrupted_at = inf

    def begin(self, now: float) -> float:
        """Start a turn; return the seconds that it may last."""
        by_others, self._interrupted_at = now - self._interrupted_at, inf
        return min(max(MIN_TURN, by_others * _SHARE), _MAX_TURN)

    def end(self, now: float, *, is_done: bool) -> None:
        """End a turn, so that other tasks run. If the work is not done, their time counts."""
        self._interrupted_at = inf if is_done else now
