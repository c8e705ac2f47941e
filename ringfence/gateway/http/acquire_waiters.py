"""Maximum number of requests that wait in `/v1/acquire`, in total and per client."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ringfence.gateway.http.http_types import HttpProblem

__all__ = ["Waiters"]


class Waiters:
    """Counters of requests that wait in `/v1/acquire`, with a maximum in total and for each
    client."""

    def __init__(self, most: int, most_per_caller: int) -> None:
        self._most = most
        self._most_per_caller = most_per_caller
        self._waiting: Counter[str] = Counter()

    @contextmanager
    def place(self, caller: str) -> Iterator[None]:
        """Count one waiting request while a `with` block runs. Raises `HttpProblem` if too many
        wait."""
        if self._waiting.get(caller, 0) >= self._most_per_caller:
            raise _refusal(429, f"{self._most_per_caller} requests of this caller wait already")
        if self._waiting.total() >= self._most:
            raise _refusal(503, f"{self._most} requests wait already")
        self._waiting[caller] += 1
        try:
            yield
        finally:
            self._waiting[caller] -= 1
            if not self._waiting[caller]:
                del self._waiting[caller]


def _refusal(status: int, why: str) -> HttpProblem:
    later = [("Retry-After", "1")]
    return HttpProblem(status, f"{why}; ask again later", later, cause="waiting")
