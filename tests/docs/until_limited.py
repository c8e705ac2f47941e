"""Requests until one is limited, for tests of real clusters on a busy machine."""

from collections.abc import Callable
from time import monotonic

__all__ = ["until_limited"]

_PATIENCE = 60.0
"""Seconds until a limit that does not apply is a failure."""


def until_limited(status: Callable[[], int]) -> list[int]:
    """Return the statuses of requests up to the first limited request.

    The number of requests is not fixed: a busy machine sends slowly, and time gives units back.
    """
    statuses: list[int] = []
    give_up = monotonic() + _PATIENCE
    while 429 not in statuses:
        assert monotonic() < give_up, f"none of {len(statuses)} requests was limited"
        statuses.append(status())
    return statuses
