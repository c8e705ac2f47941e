"""Time-outs computed from the round-trip times of one link, as in TCP (RFC 6298).

No I/O: the caller measures and waits.
"""

__all__ = ["RoundTrips"]

_GAIN, _DEVIATION_GAIN = 1 / 8, 1 / 4
"""Weights of a new sample in the mean and in the deviation (RFC 6298, 2.3)."""
_DEVIATIONS = 4
_MAX_BACKOFF = 64


class RoundTrips:
    """Smoothed round-trip time of one link, and its deviation.

    The caller applies Karn's rule: a frame that was sent more than once gives no sample.
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
        """Add one measured round-trip time, and end the back-off that `expire` began."""
        seconds = max(0.0, seconds)
        if self._mean < 0.0:
            self._mean, self._deviation = seconds, seconds / 2
        else:
            error = seconds - self._mean
            self._deviation += _DEVIATION_GAIN * (abs(error) - self._deviation)
            self._mean += _GAIN * error
        self._backoff = 1

    def expire(self) -> None:
        """Double the time-out until the next sample, because there was no answer in time."""
        self._backoff = min(_MAX_BACKOFF, 2 * self._backoff)

    def timeout(self, margin: float, longest: float) -> float:
        """Return the time-out: the mean round trip plus four deviations, at least `margin` above
        the mean, at most `longest`.

        Before the first sample it is `longest`. As in Linux, the margin matters when all round
        trips take equally long: without it the time-out would equal the round-trip time.
        """
        if self._mean < 0.0:
            return longest
        wanted = self._mean + max(margin, _DEVIATIONS * self._deviation)
        return min(longest, wanted * self._backoff)
