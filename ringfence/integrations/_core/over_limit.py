"""Error that integrations raise where they cannot return a `Decision`."""

from ringfence.client.decision import Decision
from ringfence.errors import RingfenceError

__all__ = ["OverLimit"]


class OverLimit(RingfenceError):
    """Error that is raised instead of a function call that would exceed a limit."""

    def __init__(self, what: str, decision: Decision) -> None:
        self.decision = decision
        """Denied decision, with limit, remaining, `retry_after` and source."""
        wait = (
            "its cost is above the limit, so no wait helps"
            if decision.retry_after is None
            else f"retry in {decision.retry_after:.3g} s"
        )
        super().__init__(f"{what} is over its limit of {decision.limit}; {wait}")

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same call is allowed; None when it never is."""
        return self.decision.retry_after
