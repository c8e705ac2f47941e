"""A time that the members agree on: the host's clock, moved slowly to where most clocks stand.

Members read each other's *cluster* time with their probes, so the offsets heard are differences
that remain. The median of them is followed at a bounded pace; a clock that is far from the majority
is marked, so that its node decides nothing until it is near again.

Source of the estimate: NTP's, (receive - (send + arrive) / 2), wrong by at most half a round trip.
"""

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict

__all__ = ["ClusterClock"]

_NS = 1_000_000_000
_SLEW_NS_PER_S = 5_000_000
"""How fast the time is moved: 5 ms in a second, at most."""
_STEP_NS = 10 * _NS
"""Behind a majority by more than this, the time jumps forward."""
_SUSPECT_NS = _NS
_TRUST_NS = _NS // 2
"""A clock that was marked is trusted again below this."""
_SAMPLES_HOLD_NS = 60 * _NS
_MOST_MEMBERS = 1024
_SHARE = 2
"""Half of a difference is aimed at: two members that follow each other must not overshoot."""


class ClusterClock:
    """One member's view of the time, which never goes back but by `jump`.

    `now` is always the host's, in ns since 1970.
    """

    def __init__(self) -> None:
        self.is_suspect = False
        """Whether this member's time is far from the majority's."""
        self._offset = 0
        self._target = 0
        self._moved_at: int | None = None
        self._last = 0
        self._samples: OrderedDict[str, tuple[int, int, int]] = OrderedDict()
        """Per member where its time stood against the host's clock, the error, and when."""
        self._heard: list[int] = []
        """Where their times stood, sorted: thousands of samples come between two that go."""
        self._errors: list[int] = []
        """Their errors, sorted."""

    @property
    def offset_ns(self) -> int:
        """What is added to the host's clock."""
        return self._offset

    def read(self, now: int) -> int:
        """The cluster's time in ns since 1970; never less than before."""
        self._move(now)
        self._last = max(self._last, now + self._offset)
        return self._last

    def sample(self, name: str, offset_ns: int, rtt_ns: int, now: int) -> None:
        """Take that a member's time stands `offset_ns` from ours, by at most half of `rtt_ns`."""
        # After the host's clock was set back our time stands still, which is what they compared.
        ours = self.read(now) - now
        if name in self._samples:
            self._forget(name)
        elif len(self._samples) >= _MOST_MEMBERS:
            self._forget(next(iter(self._samples)))
        sample = self._samples[name] = ours + offset_ns, rtt_ns // 2, now
        insort(self._heard, sample[0])
        insort(self._errors, sample[1])
        self._aim(now)

    def jump(self, now: int) -> None:
        """Go at once to where most clocks stand, back, too: only for a member that is marked and
        counts nothing whose age would change."""
        heard = self._heard
        if self.is_suspect and len(heard) >= 2 and _agree(heard, _median(heard)):
            self._offset = self._target = _median(heard)
            self._last = now + self._offset
            self._samples.clear()
            self._heard.clear()
            self._errors.clear()

    def _forget(self, name: str) -> None:
        heard, error, _ = self._samples.pop(name)
        del self._heard[bisect_left(self._heard, heard)]
        del self._errors[bisect_left(self._errors, error)]

    def _aim(self, now: int) -> None:
        """Find where most clocks stand, ours among them."""
        # They stand in the order in which they came.
        while now - self._samples[oldest := next(iter(self._samples))][2] > _SAMPLES_HOLD_NS:
            self._forget(oldest)
        heard = self._heard
        insort(heard, self._offset)
        middle = _median(heard)
        del heard[bisect_left(heard, self._offset)]
        away = middle - self._offset
        # What the network may have made up is not followed.
        if abs(away) <= _median(self._errors):
            away = 0
        if len(heard) >= 2 and _agree(heard, middle):
            if away > _STEP_NS:
                self._offset += away
                away = 0
            self._mark(abs(middle - self._offset))
        self._target = self._offset + round(away / _SHARE)

    def _mark(self, off_ns: int) -> None:
        if off_ns > _SUSPECT_NS:
            self.is_suspect = True
        elif off_ns < _TRUST_NS:
            self.is_suspect = False

    def _move(self, now: int) -> None:
        """Go on towards the target, no faster than allowed."""
        passed = 0 if self._moved_at is None else max(0, now - self._moved_at)
        self._moved_at = now
        most = passed * _SLEW_NS_PER_S // _NS
        self._offset += max(-most, min(most, self._target - self._offset))


def _median(numbers: list[int]) -> int:
    """The median of sorted numbers, of which there is one at least."""
    half = len(numbers) // 2
    return numbers[half] if len(numbers) % 2 else (numbers[half - 1] + numbers[half]) // 2


def _agree(heard: list[int], middle: int) -> bool:
    """Whether more than half of the sorted offsets are near the middle."""
    near = bisect_left(heard, middle + _SUSPECT_NS) - bisect_right(heard, middle - _SUSPECT_NS)
    return near > len(heard) // 2
