"""Requests until one is limited, for tests of real clusters on a busy machine."""

from collections.abc import Callable
from time import monotonic

__all__ = ["until_limited"]

_TIMEOUT = 60.0
"""Seconds after which a missing denial is a failure."""


def until_limited(status: Callable[[], int]) -> list[int]:
    """Return the statuses of requests up to the first limited request.

    The number of requests varies. A busy machine sends slowly, and units become available again.
    """
    statuses: list[int] = []
    deadline = monotonic() + _TIMEOUT
    while 429 not in statuses:
        assert monotonic() < deadline, f"none of {len(statuses)} requests was limited"
        statuses.append(status())
    return statuses
