"""Errors of clocks: by how many seconds a clock may have measured a time or an instant wrongly.

Clocks are wrong after a clock step, with clock drift, and while they follow other clocks. A message
that arrives late makes the hits in it seem younger.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from ringfence.wire import Source
from simulations.judging.allowed_loss import hosts_of, is_strong, members_of
from simulations.judging.disturbance import Disturbances
from simulations.judging.excuses.excuse import NEWS_S, Excuse, Place, until_of
from simulations.judging.ledger import Answered
from simulations.scenarios.faults.injection import held_up_s
from simulations.scenarios.scenario import Scenario

__all__ = ["ClockErrors"]

_TRANSFER_S = 0.05
"""Seconds by which transferred hits may seem too young. A transfer carries ages, and takes a few
round trips for a shard in several parts."""
_DRIFT_SHARE = 0.001
"""Part by which a period may seem longer on a host with clock drift. Generated drifts are at
most 500 ppm, and the correction towards the other clocks adds as much again."""
_SLEW = 0.005
"""Seconds by which a clock follows the other clocks each second."""
_DELAYING = ("slow", "spikes", "clog", "busy", "pause", "stall")
"""Faults that delay messages in one direction."""


class ClockErrors:
    """Errors of the clocks that may decide a counter."""

    def __init__(
        self,
        scenario: Scenario,
        disturbances: Disturbances,
        excuses: Mapping[str, Sequence[Excuse]],
        longest_queue_s: float,
    ) -> None:
        """`excuses` are those of the run by data center. `longest_queue_s` is the longest time that
        busy hosts have held one message up."""
        self._scenario = scenario
        self._disturbances = disturbances
        self._excuses = excuses
        self._longest_queue_s = longest_queue_s
        self._drifts = [
            (fault.at, until_of(fault)) for fault in scenario.faults if fault.verb == "clock_drift"
        ]
        has_moves = any(is_strong(fault) for fault in scenario.faults)
        self._delayed_from = min(
            [fault.at for fault in scenario.faults if fault.verb in _DELAYING], default=inf
        )
        stepped = [name for fault in scenario.faults if fault.verb == "clock_step"
                   for name in hosts_of(fault, scenario)]  # fmt: skip
        members = len(members_of(scenario))
        self._has_most_clocks_stepped = 2 < members <= 2 * len(set(stepped))
        self._transfer_s = _TRANSFER_S if has_moves else 0.0

    def in_span(self, place: Place, begin: float, until: float) -> tuple[float, float]:
        """Return the error of each span that begins at an instant and ends before another one.

        The error is a number of seconds, and a part of the span.
        """
        end = min(until, self._scenario.read_at)
        error = 0.0
        if self._is_disturbed(place, begin, end):
            error = self._transfer_s + self._held_up_s(place, begin, end)
        for step in self._steps(place, end):
            by_s = float(step.fault.args["by_s"])
            if begin <= max(step.end, step.begin + max(0.0, -by_s)) + abs(by_s):
                error += abs(by_s)
        has_drift = any(at <= end for at, _ in self._drifts)
        return error, _SLEW + (_DRIFT_SHARE if has_drift else 0.0)

    def error_s(self, place: Place, answer: Answered, period_s: float) -> float:
        """Return by how many seconds the age of a hit may seem wrong to the decider of a check.

        After the step of the owner's clock, hits with wrong ages count for one period. A cached
        denial was decided up to one period earlier.
        """
        lasts = period_s * (2 if answer.source is Source.CACHE else 1)
        error = self._clock_error_s(place, answer.asked_at, answer.answered_at, lasts)
        return error + self._age_error_s(place, answer.asked_at, answer.answered_at, period_s)

    def offset_s(self, place: Place, begin: float, end: float) -> float:
        """Return by how many seconds clock steps may shift the clock of a decider.

        The shift of a stepped clock may last: clocks follow their median, and a lone clock is never
        corrected.
        """
        is_disturbed = self._is_disturbed(place, begin - NEWS_S, end + NEWS_S)
        return self.followed_s(place, end) + sum(
            abs(float(each.fault.args["by_s"]))
            if is_disturbed or self._is_stepped(place, each)
            else self._slewed_s(each, end)
            for each in self._steps(place, end)
        )

    def steps_s(self, place: Place) -> float:
        """Return the sum of all steps of the clocks that may decide a counter."""
        return self._clock_error_s(place, -inf, inf, inf)

    def at_reading_s(self, place: Place, at: float, period_s: float) -> float:
        """Return by how many seconds the age of a hit may seem wrong at a reading."""
        error = self._clock_error_s(place, at, at, period_s)
        return error + self._age_error_s(place, at, at, period_s)

    def mismeasured_s(self, end: float, period_s: float) -> float:
        """Return by how many seconds a clock may have followed offsets in one period that probes
        measured wrongly, since faults delayed them."""
        return _SLEW * max(0.0, min(period_s, end - self._delayed_from))

    def followed_s(self, place: Place, end: float) -> float:
        """Return by how many seconds a clock may have followed stepped clocks of other hosts and
        data centers."""
        near = [each.fault for each in self._steps(place, end)]
        return sum(
            min(abs(float(fault.args["by_s"])), _SLEW * (end - fault.at))
            for fault in self._scenario.faults
            if fault.verb == "clock_step" and fault.at <= end and fault not in near
        )

    def held_by_cuts_s(self, place: Place, answer: Answered, period_s: float) -> float:
        """Return by how many seconds hits may seem younger at a check because cuts held transfers.

        After a cut, a connection sends again what was lost, with the same content.
        """
        begin = answer.asked_at - period_s
        if not self._disturbances.is_disturbed(
            place.datacenter, place.shard, begin, answer.answered_at
        ):
            return 0.0
        return sum(
            until_of(each.fault) - each.fault.at
            for each in self._excuses.get(place.datacenter, ())
            if each.fault.verb == "cut"
            and each.begin <= answer.answered_at
            and begin <= each.end
            and each.concerns(place)
        )

    def _age_error_s(self, place: Place, begin: float, end: float, period_s: float) -> float:
        """Return by how many seconds a transfer of the shard, or clock drift, changes the age of a
        hit. No hit is older than the run."""
        is_moved = self._disturbances.is_disturbed(
            place.datacenter, place.shard, begin - period_s, end
        )
        drift = self._drift_s(end, min(period_s, self._scenario.read_at))
        if not is_moved:
            return drift
        return drift + self._transfer_s + self._held_up_s(place, begin - period_s, end)

    def _drift_s(self, end: float, lasts: float) -> float:
        """Return by how many seconds drifting clocks, and clocks that follow them, may have
        measured the `lasts` seconds before an instant wrongly.

        A clock is not wrong before its drift. Afterwards it is corrected by what it drifted.
        """
        drifted = sum(min(until, end) - at for at, until in self._drifts if at <= end)
        return _DRIFT_SHARE * min(lasts, drifted)

    def _held_up_s(self, place: Place, begin: float, end: float) -> float:
        """Return by how many seconds faults may have held up messages with the ages of hits between
        two instants. A message that arrives late makes its hits seem younger."""
        return sum(
            held_up_s(each.fault, self._longest_queue_s)
            for each in self._excuses.get(place.datacenter, ())
            if each.begin <= end and begin <= each.end and each.concerns(place)
        )

    def _clock_error_s(self, place: Place, begin: float, end: float, lasts: float) -> float:
        """Return by how many seconds a clock may have measured a span of `lasts` seconds wrongly.

        A clock that is set back stands still for as long. Other clocks follow a stepped clock
        slowly.
        """
        error = 0.0
        for each in self._steps(place, end):
            by_s = float(each.fault.args["by_s"])
            over = max(each.end, each.begin + max(0.0, -by_s)) + lasts + abs(by_s)
            since = max(each.begin, begin - lasts)
            is_full = self._is_stepped(place, each) or self._is_disturbed(place, since, end)
            error += abs(by_s) if is_full and begin <= over else self._slewed_s(each, end, lasts)
        return error

    def _steps(self, place: Place, end: float) -> Iterator[Excuse]:
        """Yield the steps of clocks before an instant that concern a counter."""
        for each in self._excuses.get(place.datacenter, ()):
            if each.fault.verb == "clock_step" and each.begin <= end and each.concerns(place):
                yield each

    def _is_stepped(self, place: Place, step: Excuse) -> bool:
        """Return whether a step changed the clock of the owner at once.

        It was a step of the owner's clock, or of most other clocks, which the owner then follows.
        """
        return self._has_most_clocks_stepped or place.hosts[0] in step.hosts

    def _slewed_s(self, step: Excuse, end: float, lasts: float = inf) -> float:
        """Return by how many seconds a clock may have followed a stepped one in `lasts` seconds."""
        return min(abs(float(step.fault.args["by_s"])), _SLEW * min(lasts, end - step.begin))

    def _is_disturbed(self, place: Place, begin: float, end: float) -> bool:
        return self._disturbances.is_disturbed(place.datacenter, place.shard, begin, end)
