"""Hedging: requests that are also sent to the standby of a slow owner; their delay and their
budget.
"""

from collections.abc import Sequence

from ringfence.peering.routing.pending_request import MemberRequest
from ringfence.peering.routing.routes import Routes

__all__ = ["MIN_MARGIN", "HedgingBudget", "hedging_delay", "may_hedge"]

MIN_MARGIN = 0.01
"""Minimum difference in seconds between a hedging delay and the mean round trip."""


class HedgingBudget:
    """Token bucket that limits hedged checks: each check adds a fraction of a token, up to a
    maximum.

    The full bucket covers the checks of a dead owner when checks are rare. The small fraction
    prevents that hedging adds load while all owners are slow.
    """

    __slots__ = ("_burst", "_earned_for", "_share", "_tokens", "checks", "taken")

    def __init__(self, share: float = 0.02, burst: int = 16) -> None:
        self.checks = 0
        """Number of checks so far; the caller increments it."""
        self.taken = 0
        """Number of hedged checks so far."""
        self._share = share
        self._burst = burst
        self._tokens = float(burst)
        self._earned_for = 0

    def reset(self) -> None:
        """Set the counts of checks and hedged checks to 0, and fill the token bucket."""
        self.checks = self.taken = self._earned_for = 0
        self._tokens = float(self._burst)

    def take(self, checks: int) -> bool:
        """Spend one token for each of `checks` hedged checks; return False when there are too
        few tokens."""
        earned = (self.checks - self._earned_for) * self._share
        self._earned_for = self.checks
        self._tokens = min(float(self._burst), self._tokens + earned)
        if checks > self._tokens:
            return False
        self._tokens -= checks
        self.taken += checks
        return True


def hedging_delay(requests: Sequence[MemberRequest], longest: float) -> float:
    """Return the seconds to wait for answers of owners before the standbys are also asked."""
    targets = [request.target for request in requests if request.target is not None]
    delays = [target.answer_timeout(MIN_MARGIN, longest) for target in targets]
    return max(delays, default=longest)


def may_hedge(
    requests: Sequence[MemberRequest], routes: Routes | None, budget: HedgingBudget
) -> bool:
    """Return whether the standbys may be asked about unanswered checks; if so, spend the hedging
    budget."""
    open_rows = sum([len(each.rows) - len(each.answered) for each in requests if not each.is_done])
    has_standbys = routes is not None and len(routes.ring.members) > 1
    return not open_rows or not has_standbys or budget.take(open_rows)
