"""Time-outs by the round trips of one link, as TCP has them (RFC 6298), and the hedging budget.

Both are values without I/O: callers measure, wait and ask.
"""

__all__ = ["HedgingBudget", "RoundTrips"]

_GAIN, _DEVIATION_GAIN = 1 / 8, 1 / 4
"""Weights of a new sample in the mean and in the deviation (RFC 6298, 2.3)."""
_DEVIATIONS = 4
_MOST_BACKOFF = 64


class RoundTrips:
    """Smoothed round-trip time and its deviation.

    Karn's rule is the caller's duty: a frame that was sent more than once gives no sample.
    """

    __slots__ = ("_backoff", "_deviation", "_mean")

    def __init__(self) -> None:
        self._mean = -1.0
        self._deviation = 0.0
        self._backoff = 1

    @property
    def mean(self) -> float | None:
        """Smoothed round-trip time in seconds; None before the first sample."""
        return None if self._mean < 0.0 else self._mean

    def sample(self, seconds: float) -> None:
        """Take in one measured round trip; ends a back-off."""
        seconds = max(0.0, seconds)
        if self._mean < 0.0:
            self._mean, self._deviation = seconds, seconds / 2
        else:
            error = seconds - self._mean
            self._deviation += _DEVIATION_GAIN * (abs(error) - self._deviation)
            self._mean += _GAIN * error
        self._backoff = 1

    def expire(self) -> None:
        """Double the time-out until the next sample: nothing was answered within it."""
        self._backoff = min(_MOST_BACKOFF, 2 * self._backoff)

    def timeout(self, least: float, most: float) -> float:
        """Compute the mean plus four deviations, `least` above the mean at least, `most` in all.

        Before the first sample it is `most`. A margin of `least` keeps the time-out of a link whose
        round trips are all alike from being that round trip itself, as in Linux.
        """
        if self._mean < 0.0:
            return most
        wanted = self._mean + max(least, _DEVIATIONS * self._deviation)
        return min(most, wanted * self._backoff)


class HedgingBudget:
    """Token bucket of second asks: each check earns a share of one, up to a burst.

    The burst covers the checks of a dead owner at a low rate at once; the share keeps impatience
    from adding load while all owners are slow.
    """

    __slots__ = ("_burst", "_earned_for", "_share", "_tokens", "checks", "taken")

    def __init__(self, share: float = 0.02, burst: int = 16) -> None:
        self.checks = 0
        """Checks asked for so far; the caller raises it."""
        self.taken = 0
        """Second asks so far."""
        self._share = share
        self._burst = burst
        self._tokens = float(burst)
        self._earned_for = 0

    def reset(self) -> None:
        """Count checks anew, and begin with a full burst."""
        self.checks = self.taken = self._earned_for = 0
        self._tokens = float(self._burst)

    def take(self, checks: int) -> bool:
        """Spend one token for each of some second asks; return False when there are too few."""
        earned = (self.checks - self._earned_for) * self._share
        self._earned_for = self.checks
        self._tokens = min(float(self._burst), self._tokens + earned)
        if checks > self._tokens:
            return False
        self._tokens -= checks
        self.taken += checks
        return True
