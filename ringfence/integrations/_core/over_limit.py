"""What integrations raise where their caller can take no `Decision`."""

from ringfence.client import Decision
from ringfence.errors import RingfenceError

__all__ = ["OverLimit"]


class OverLimit(RingfenceError):
    """A call was not made, for it would have exceeded a limit."""

    def __init__(self, what: str, decision: Decision) -> None:
        self.decision = decision
        """The denial: limit, remaining, `retry_after`, and where it came from."""
        wait = (
            "no wait would help, since it costs more than the limit"
            if decision.retry_after is None
            else f"the same passes in {decision.retry_after:.3g} s"
        )
        super().__init__(f"{what} is over its limit of {decision.limit}; {wait}")

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same passes; None when it never would."""
        return self.decision.retry_after
