"""Internal errors: exceptions of Ringfence's own code, counted and logged at a bounded rate.

The caller decides how to continue after an error.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["InternalErrors", "OnError"]

OnError: TypeAlias = Callable[[Exception], None]
"""Receives each internal error; tests raise or record it."""

_LOGGED_EVERY = 60.0
"""Seconds between two log records of one cause."""
_MAX_CAUSES = 256
"""Maximum number of logged causes. More causes are only counted, until a logged cause is old."""

_Cause: TypeAlias = tuple[str, type[Exception], str, int]
"""Place, exception class, and the file and line that raised it."""


class InternalErrors:
    """Counter of internal errors by place; each cause is logged with a traceback at most once a
    minute."""

    def __init__(
        self, logger: logging.Logger, seconds: Callable[[], float], on_error: OnError | None = None
    ) -> None:
        """`seconds` is a monotonic clock; `on_error` receives every error."""
        self.by_place: Counter[str] = Counter()
        """Number of internal errors, by the place that caught them."""
        self._logger = logger
        self._seconds = seconds
        self._on_error = on_error
        self._logged: dict[_Cause, tuple[float, int]] = {}
        """Time of the last log record of each cause, and its number of occurrences since."""

    def failed(self, place: str, error: Exception) -> None:
        """Count an internal error that was caught at `place`, and log it unless it was logged
        recently."""
        self.by_place[place] += 1
        cause = _cause_of(place, error)
        now = self._seconds()
        at, unlogged = self._logged.get(cause, (-_LOGGED_EVERY, 0))
        if cause not in self._logged:
            self._forget_old(now)
        if len(self._logged) < _MAX_CAUSES or cause in self._logged:
            is_due = now >= at + _LOGGED_EVERY
            self._logged[cause] = (now, 0) if is_due else (at, unlogged + 1)
            if is_due:
                self._log(place, error, unlogged)
        if self._on_error is not None:
            self._on_error(error)

    def _log(self, place: str, error: Exception, unlogged: int) -> None:
        self._logger.error(
            "internal error in %s%s; its request was refused, all others continue",
            place,
            f", {unlogged} more since the last report" if unlogged else "",
            exc_info=error,
            extra={"internal_error": True},
        )

    def _forget_old(self, now: float) -> None:
        if len(self._logged) >= _MAX_CAUSES:
            old = [cause for cause, (at, _) in self._logged.items() if now >= at + _LOGGED_EVERY]
            for cause in old:
                del self._logged[cause]


def _cause_of(place: str, error: Exception) -> _Cause:
    """Return the cause of an error: its place, its class and the line that raised it.

    The cause of a group is the cause of its first error.
    """
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file = "" if trace is None else trace.tb_frame.f_code.co_filename
    line = 0 if trace is None else trace.tb_lineno
    return place, type(error), file, line
