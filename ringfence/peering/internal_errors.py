"""Internal errors: exceptions that our own code should not have raised, counted and logged once.

Decides what is logged of them and how often. What goes on after one is for the caller to say.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["InternalErrors", "OnError"]

OnError: TypeAlias = Callable[[Exception], None]
"""Receives each internal error; a test raises or records it."""

_LOGGED_EVERY = 60.0
"""Seconds between two log records of one cause."""
_MOST_CAUSES = 256
"""Most causes that are logged; further ones are only counted until a logged one is old."""

_Cause: TypeAlias = tuple[str, type[Exception], str, int]
"""Place, kind of exception, file and line that raised it."""


class InternalErrors:
    """Counts internal errors by place, and logs each cause with its traceback once a minute."""

    def __init__(
        self, logger: logging.Logger, seconds: Callable[[], float], on_error: OnError | None = None
    ) -> None:
        """`seconds` is a clock that only goes on; `on_error` receives every error."""
        self.by_place: Counter[str] = Counter()
        """Internal errors so far, by the place that contained them."""
        self._logger = logger
        self._seconds = seconds
        self._on_error = on_error
        self._logged: dict[_Cause, tuple[float, int]] = {}
        """When each cause was logged, and how often it came since."""

    def failed(self, place: str, error: Exception) -> None:
        """Count an internal error that was contained at `place`, and log it unless just done."""
        self.by_place[place] += 1
        cause = _cause_of(place, error)
        now = self._seconds()
        at, unlogged = self._logged.get(cause, (-_LOGGED_EVERY, 0))
        if cause not in self._logged:
            self._forget_old(now)
        if len(self._logged) < _MOST_CAUSES or cause in self._logged:
            is_due = now >= at + _LOGGED_EVERY
            self._logged[cause] = (now, 0) if is_due else (at, unlogged + 1)
            if is_due:
                self._log(place, error, unlogged)
        if self._on_error is not None:
            self._on_error(error)

    def _log(self, place: str, error: Exception, unlogged: int) -> None:
        self._logger.error(
            "internal error in %s%s; what met it was refused, everything else goes on",
            place,
            f", {unlogged} more since the last report" if unlogged else "",
            exc_info=error,
            extra={"internal_error": True},
        )

    def _forget_old(self, now: float) -> None:
        if len(self._logged) >= _MOST_CAUSES:
            old = [cause for cause, (at, _) in self._logged.items() if now >= at + _LOGGED_EVERY]
            for cause in old:
                del self._logged[cause]


def _cause_of(place: str, error: Exception) -> _Cause:
    """Return the cause of an error: its place, its kind and the line that raised it."""
    inner: BaseException = error
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    trace = inner.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file = "" if trace is None else trace.tb_frame.f_code.co_filename
    line = 0 if trace is None else trace.tb_lineno
    kind = type(inner) if isinstance(inner, Exception) else type(error)
    return place, kind, file, line
