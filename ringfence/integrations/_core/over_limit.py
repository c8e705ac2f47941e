"""Error that integrations raise where they cannot return a `Decision`."""

from math import ceil

from ringfence.client.decision import Decision, Numbers, from_numbers, numbers_of
from ringfence.errors import RingfenceError

__all__ = ["OverLimit"]


class OverLimit(RingfenceError):
    """Error that is raised instead of a function call that would exceed a limit."""

    def __init__(self, what: str, decision: Decision | Numbers) -> None:
        super().__init__(what)
        self.decision = from_numbers(decision)
        """Denied decision, with limit, remaining, `retry_after` and source."""
        self.args = (what, numbers_of(self.decision))

    def __str__(self) -> str:
        what, limit = self.args[0], self.decision.limit
        is_over = "not allowed now"  # No limit of ours has denied it.
        if limit is not None:
            is_over = f"over its limit of {limit}"
        return f"{what} is {is_over}; {_advice(self.retry_after)}"

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same call is allowed; None when it never is."""
        return self.decision.retry_after


def _advice(seconds: float | None) -> str:
    if seconds is None:
        return "its cost is above the limit, so no wait helps"
    return f"retry in {seconds:.3g} s" if seconds < 100 else f"retry in {ceil(seconds)} s"
