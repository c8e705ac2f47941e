"""Bounds for token and leaky buckets: the levels of two extreme histories.

The level never falls when units are poured later, or when a refund comes earlier. So the level is
lowest with each unit poured as early as possible, and highest as late as possible. Levels are
integers: one unit is `period_ns` ticks, and `rate` ticks drain in one ns.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from simulations.oracle.intervals import Bound, Drain, Question, Reading, Spend
from simulations.oracle.terms import Terms
from simulations.oracle.verdicts import bound_of

__all__ = ["BucketReadings", "bucket_bounds"]


def bucket_bounds(
    terms: Terms,
    spends: Sequence[Spend],
    questions: Sequence[Question],
    drains: Sequence[Drain] = (),
) -> list[Bound]:
    """Return the bounds of each question under a token or leaky bucket.

    `drains` are the intervals with another rate, in order and disjoint. The level is lowest with
    the fastest rates, and highest with the slowest ones.
    """
    fastest = _Rate(terms, [(each.begin, each.end, each.most) for each in drains])
    slowest = _Rate(terms, [(each.begin, each.end, each.least) for each in drains])
    lower = _lower_levels(terms, spends, questions, fastest, slowest.least)
    upper = _upper_levels(terms, spends, questions, slowest, fastest.most)
    return [_bound(terms, question, lower[at], upper[at]) for at, question in enumerate(questions)]


class BucketReadings:
    """Levels of a bucket after readings.

    One reading alone gives the level only to one unit. An earlier reading makes it more certain.
    """

    def __init__(
        self,
        terms: Terms,
        spends: Sequence[Spend],
        drains: Sequence[Drain],
        readings: Sequence[Reading],
    ) -> None:
        """`readings` must be in the order of their ends."""
        self._terms = terms
        self._spends = spends
        self._fastest = _Rate(terms, [(each.begin, each.end, each.most) for each in drains])
        self._slowest = _Rate(terms, [(each.begin, each.end, each.least) for each in drains])
        self._readings: list[Reading] = []
        self._ends = [each.latest for each in readings]
        for reading in readings:
            self._readings.append(self._with_reading_before(reading))

    def bound(self, question: Question) -> Bound | None:
        """Return the bounds of a question by the last reading before it, if it still holds."""
        levels = self._levels(question.earliest, question.latest)
        return None if levels is None else _bound(self._terms, question, *levels)

    def _with_reading_before(self, reading: Reading) -> Reading:
        before = self._levels(reading.earliest, reading.latest)
        if before is None:
            return reading
        own, unit = reading.own, self._terms.period_ns
        lowest, highest = reading.levels
        lowest = max(lowest, before[0] + (own.least * unit if own else 0))
        highest = min(highest, before[1] + (own.most * unit if own else 0))
        return reading._replace(levels=(lowest, highest)) if lowest <= highest else reading

    def _levels(self, begin: int, end: int) -> tuple[int, int] | None:
        """Return the lowest and the highest level in an interval.

        Units that may have come after the reading are added to the highest level, and those that
        certainly came after it to the lowest one. Refunds only lower the lowest level.
        """
        last = bisect_left(self._ends, begin, hi=len(self._readings))
        if not last or end > (reading := self._readings[last - 1]).until:
            return None
        unit, returned = self._terms.period_ns, 0
        lowest, highest = _Pours(self._fastest), _Pours(self._slowest)
        lowest.add(reading.earliest, reading.levels[0])
        highest.add(reading.latest, reading.levels[1])
        if (more := reading.repeated) is not None:
            highest.add(max(reading.latest, more.latest), more.most * unit)
        for spend in reading.without_own(self._spends):
            if spend.earliest > end:
                continue
            if spend.counted_from >= reading.earliest:
                highest.add(max(reading.latest, spend.latest), spend.most * unit)
            if reading.latest < spend.earliest and spend.counted_from < begin:
                lowest.add(spend.earliest, spend.least * unit)
            returned += spend.returned_after(reading)
        lasts = end - reading.earliest
        error = (reading.error_ns + lasts * reading.drift_ppm // 10**6) * self._fastest.most
        least = max(0, lowest.level(end) - returned * unit - error)
        return least, highest.level(begin) + error


def _bound(terms: Terms, question: Question, lower: int, upper: int) -> Bound:
    unit, rate = terms.period_ns, terms.rate
    upper = max(0, upper - question.own * unit)
    room = (terms.ceiling - (question.cost or 1)) * unit
    shortest = max(1, -(-(lower - room) // rate))
    longest = max(0, -(-(upper - room) // rate))
    return bound_of(terms, question, -(-lower // unit), -(-upper // unit), shortest, longest)


class _Rate:
    """Rate at which a bucket drains: that of its limit, and another one in some intervals."""

    def __init__(self, terms: Terms, others: Sequence[tuple[int, int, int]]) -> None:
        """`others` are begin, end and rate of each interval, in order and disjoint."""
        self._usual = terms.rate
        rates = [self._usual, *(rate for _, _, rate in others)]
        self.least, self.most = min(rates), max(rates)
        self._begins: list[int] = []
        self._spans: list[tuple[int, int, int]] = []
        """End of each interval, its rate above the usual one, and the extra ticks before it.

        The extra ticks are those that earlier intervals drain beyond the usual rate."""
        more = 0
        for begin, end, rate in others:
            if begin < end:
                self._begins.append(begin)
                self._spans.append((end, rate - self._usual, more))
                more += (rate - self._usual) * (end - begin)

    def drained(self, begin: int, end: int) -> int:
        """Return the ticks that drain between two instants."""
        ticks = self._usual * (end - begin)
        return ticks + self._more(end) - self._more(begin) if self._begins else ticks

    def _more(self, instant: int) -> int:
        """Return the ticks beyond the usual rate that drain up to an instant."""
        at = bisect_right(self._begins, instant)
        if not at:
            return 0
        end, rate, before = self._spans[at - 1]
        return before + rate * (min(instant, end) - self._begins[at - 1])


class _Pours:
    """Level of a bucket through pours in order of time, into which earlier pours can be added."""

    def __init__(self, rate: _Rate) -> None:
        self._rate = rate
        self._instants: list[int] = []
        self._ticks: list[int] = []
        self._levels: list[int] = []
        """Level right after each pour."""
        self._sums: list[int] = []
        """Sum of all pours so far."""

    def add(self, instant: int, ticks: int, *, is_first: bool = False) -> None:
        """Add a pour, or with negative ticks a refund, and adjust the levels after it.

        It comes after all others of its instant, or with `is_first` before them.
        """
        at = (bisect_left if is_first else bisect_right)(self._instants, instant)
        self._instants.insert(at, instant)
        self._ticks.insert(at, ticks)
        del self._levels[at:], self._sums[at:]
        level = self._levels[-1] if at else 0
        total = self._sums[-1] if at else 0
        before = self._instants[at - 1] if at else instant
        for index in range(at, len(self._instants)):
            this, poured = self._instants[index], self._ticks[index]
            level = max(0, max(0, level - self._rate.drained(before, this)) + poured)
            total += poured
            before = this
            self._levels.append(level)
            self._sums.append(total)

    def level(self, instant: int) -> int:
        """Return the level at an instant, with all later pours made at that instant."""
        at = bisect_right(self._instants, instant)
        if not self._instants:
            return 0
        if not at:
            return max(0, self._sums[-1])
        drained = self._rate.drained(self._instants[at - 1], instant)
        level = max(0, self._levels[at - 1] - drained)
        return max(0, level + self._sums[-1] - self._sums[at - 1])


def _lower_levels(
    terms: Terms,
    spends: Sequence[Spend],
    questions: Sequence[Question],
    rate: _Rate,
    refund_rate: int,
) -> list[int]:
    """Return the lowest level at each question: certain pours at their earliest instants.

    The part of a refund that has drained since is computed with `refund_rate`.
    """
    unit = terms.period_ns
    queue = sorted((each.counted_from, each.earliest, each.least * unit) for each in spends)
    refunds = sorted(
        (each.refund.earliest, each.refund.latest, ticks)
        for each in spends
        if each.refund is not None
        and (ticks := each.refund.most * unit - each.refund.age_least * refund_rate) > 0
    )
    levels, pours = [0] * len(questions), _Pours(rate)
    done = refunded = 0
    latest = 0
    # A refund of the same instant, found for an earlier question, comes after the pour.
    for at in sorted(range(len(questions)), key=lambda at: questions[at].earliest):
        question = questions[at]
        latest = max(latest, question.latest)
        while done < len(queue) and queue[done][0] < question.earliest:
            pours.add(queue[done][1], queue[done][2], is_first=True)
            done += 1
        while refunded < len(refunds) and refunds[refunded][0] <= latest:
            pours.add(refunds[refunded][1], -refunds[refunded][2])
            refunded += 1
        levels[at] = pours.level(question.latest)
    return levels


def _upper_levels(
    terms: Terms,
    spends: Sequence[Spend],
    questions: Sequence[Question],
    rate: _Rate,
    refund_rate: int,
) -> list[int]:
    """Return the highest level at each question: all possible pours at their latest instants.

    The part of a refund that has drained since is computed with `refund_rate`.
    """
    unit = terms.period_ns
    queue: list[tuple[int, int, int]] = []
    refunds: list[tuple[int, int, int]] = []
    for each in spends:
        latest, refund = each.latest, each.refund
        if refund is not None and refund.least:  # The refund is certain, and comes afterwards.
            latest = max(each.earliest, min(latest, refund.latest))
            ticks = min(refund.least, each.most) * unit - refund.age_most * refund_rate
            if ticks > 0:
                refunds.append((refund.latest, max(refund.earliest, latest), ticks))
        queue.append((each.earliest, latest, each.most * unit))
    queue.sort()
    refunds.sort()
    levels, pours = [0] * len(questions), _Pours(rate)
    order = sorted(range(len(questions)), key=lambda at: questions[at].latest)
    done = refunded = 0
    for at, until in zip(order, _least_after(order, questions), strict=True):
        question = questions[at]
        while done < len(queue) and queue[done][0] <= question.latest:
            pours.add(queue[done][1], queue[done][2])
            done += 1
        while refunded < len(refunds) and refunds[refunded][0] < until:
            pours.add(refunds[refunded][1], -refunds[refunded][2])
            refunded += 1
        levels[at] = pours.level(question.earliest)
    return levels


def _least_after(order: Sequence[int], questions: Sequence[Question]) -> list[int]:
    """Return, for each question in order, the earliest begin of it and all following ones."""
    found: list[int] = []
    for at in reversed(order):
        this = questions[at].earliest
        found.append(min(this, found[-1]) if found else this)
    return found[::-1]
