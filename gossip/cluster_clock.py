"""Cluster clock: the host's clock, adjusted slowly towards the median of the members' clocks.

Probes carry the *cluster* time, so the measured offsets are the remaining differences. The clock
follows their median at a bounded rate. A clock that is far from the majority is suspect, and its
node decides nothing until the clock is close again.

Source: NTP's offset estimate, (receive - (send + arrive) / 2), wrong by at most half a round trip.
"""

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict

from gossip.settings import NS_PER_SECOND

__all__ = ["ClusterClock"]

_SLEW_NS_PER_S = 5_000_000
"""Maximum adjustment rate: 5 ms per second."""
_STEP_NS = 10 * NS_PER_SECOND
"""Difference to the majority above which a clock that is behind jumps forward."""
_SUSPECT_NS = NS_PER_SECOND
_TRUST_NS = NS_PER_SECOND // 2
"""Difference to the majority below which a suspect clock is trusted again."""
_HOLD_NS = 60 * NS_PER_SECOND
"""Maximum age of a sample."""
_MAX_MEMBERS = 1024
_SHARE = 2
"""The target is half of the difference, so that two members do not overshoot."""


class ClusterClock:
    """Cluster clock of one member. Its time never decreases, except by `jump`.

    `now` is the time of the host in ns since 1970.
    """

    def __init__(self) -> None:
        self.is_suspect = False
        """Whether this clock is far from the majority."""
        self._offset = 0
        self._target = 0
        self._moved_at = 0
        self._last = 0
        self._samples: OrderedDict[str, tuple[int, int, int]] = OrderedDict()
        """Sample of each member: offset from the host's clock, error, and time of the sample."""
        self._offsets: list[int] = []
        """Sorted offsets. Insertion is cheap, since few samples expire."""
        self._errors: list[int] = []
        """Sorted errors."""

    @property
    def offset_ns(self) -> int:
        """Offset that is added to the host's clock."""
        return self._offset

    def read(self, now: int) -> int:
        """Return the cluster time in ns since 1970; it never decreases.

        After the host's clock was set back, it increases by 1 ns with each call. So later events
        still have a later time, which transfers of shards rely on.
        """
        if self._offset == self._target:
            self._moved_at = now
        else:
            self._move(now)
        time = now + self._offset
        self._last = time if time >= self._last else self._last + 1
        return self._last

    def sample(self, name: str, offset_ns: int, rtt_ns: int, now: int) -> None:
        """Add a measured offset of a member's clock from this clock; the measurement error is up to
        `rtt_ns` / 2."""
        # When the host's clock was set back, this clock stands still. The sample is relative to it.
        ours = self.read(now) - now
        if name in self._samples:
            self._forget(name)
        elif len(self._samples) >= _MAX_MEMBERS:
            self._forget(next(iter(self._samples)))
        sample = self._samples[name] = ours + offset_ns, rtt_ns // 2, now
        insort(self._offsets, sample[0])
        insort(self._errors, sample[1])
        self._update_target(now)

    def jump(self, now: int) -> None:
        """Set a suspect clock to the majority's time, which may be earlier.

        Only for a member without counters, since a jump would change their age.
        """
        offsets = self._offsets
        if self.is_suspect and len(offsets) >= 2 and _agree(offsets, _median(offsets)):
            self._offset = self._target = _median(offsets)
            self._last = now + self._offset
            self._samples.clear()
            self._offsets.clear()
            self._errors.clear()

    def _forget(self, name: str) -> None:
        offsets, error, _ = self._samples.pop(name)
        del self._offsets[bisect_left(self._offsets, offsets)]
        del self._errors[bisect_left(self._errors, error)]

    def _update_target(self, now: int) -> None:
        """Compute the offset that this clock approaches, from the median of the offsets of all
        members' clocks."""
        # Samples are in order of arrival. When the host's clock was set back, their times are in
        # the future, and their offsets are wrong.
        while not 0 <= now - self._samples[oldest := next(iter(self._samples))][2] <= _HOLD_NS:
            self._forget(oldest)
        offsets = self._offsets
        middle = _median_with(offsets, self._offset)
        away = middle - self._offset
        # Differences within the measurement error are ignored.
        if abs(away) <= _median(self._errors):
            away = 0
        if len(offsets) >= 2 and _agree(offsets, middle):
            if away > _STEP_NS:
                self._offset += away
                away = 0
            self._update_trust(abs(middle - self._offset))
        self._target = self._offset + round(away / _SHARE)

    def _update_trust(self, difference_ns: int) -> None:
        if difference_ns > _SUSPECT_NS:
            self.is_suspect = True
        elif difference_ns < _TRUST_NS:
            self.is_suspect = False

    def _move(self, now: int) -> None:
        """Move the clock towards the target time at the bounded rate."""
        passed = max(0, now - self._moved_at)
        self._moved_at = now
        most = passed * _SLEW_NS_PER_S // NS_PER_SECOND
        self._offset += max(-most, min(most, self._target - self._offset))


def _median(numbers: list[int]) -> int:
    """Return the median of sorted numbers; the list must not be empty."""
    half = len(numbers) // 2
    return numbers[half] if len(numbers) % 2 else (numbers[half - 1] + numbers[half]) // 2


def _median_with(numbers: list[int], one: int) -> int:
    """Return the median of sorted numbers and one more; the list must not be empty."""
    half = len(numbers) // 2
    if len(numbers) % 2 == 0:
        return max(numbers[half - 1], min(numbers[half], one))
    near = one if half == 0 else max(numbers[half - 1], min(numbers[half + 1], one))
    return (numbers[half] + near) // 2


def _agree(offsets: list[int], middle: int) -> bool:
    """Return whether more than half of the sorted clock offsets are close to `middle`."""
    near = bisect_left(offsets, middle + _SUSPECT_NS) - bisect_right(offsets, middle - _SUSPECT_NS)
    return near > len(offsets) // 2
