"""Ledger of all answers that clients received, with their times.

A check was decided at an unknown instant between its request and its answer. The invariants
therefore compare intervals. They report a violation only if no instant in the interval makes the
answer correct.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, count
from math import inf

from ringfence.wire import Source

__all__ = ["Answered", "Column", "Ledger"]

_BY_MEMBER = (Source.OWNER, Source.STANDBY, Source.CACHE)
"""Sources of answers that a member decided; a cached answer was decided by its owner earlier."""
_SLOW_S = 0.5
"""Seconds of delay above which an answer is ignored where the exact decision time matters."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One check and its answer. Times are seconds since the start of the load."""

    asked_at: float
    answered_at: float
    datacenter: str
    key: str
    cost: int
    allowed: bool
    source: Source
    retry_after: float | None = None
    """Seconds after which a denied check may pass; None if never or unknown."""
    refund_done_at: float = inf
    """Time at which the refund of the charge was certainly complete."""
    refund_age: float = 0.0
    """Seconds since the check, as its refund states them; 0 for a refund of the newest units."""
    in_denied_group: bool = False
    """Whether the refund was sent because another check of the group was denied."""
    is_charge: bool = False
    """Whether the units count even beyond the limit."""
    client: str = ""
    """Host of the asking client; empty when it is not known."""
    is_uncounted: bool = False
    """Whether the request spends nothing, as a peek. The answer applies to the cost."""
    probe: str = ""
    """`early` for a check just before the retry time of a denial, `late` for one just after it."""
    over_soft: bool = False
    """Whether the check was allowed in the soft margin above the limit."""
    delay: float = 0.0
    """Seconds that the caller must wait, in queue mode."""
    remaining: int | None = None
    """Units that are left after the check; None if unknown."""
    estimate: int = 0
    """Units that a reservation asked for; `cost` is the part that was not refunded."""

    @property
    def is_counted(self) -> bool:
        """Return whether a member decided the check and counts its units."""
        return self.source in _BY_MEMBER

    @property
    def asked_cost(self) -> int:
        """Return the units that the check asked for, also those that were refunded later."""
        return self.estimate or self.cost

    @property
    def group(self) -> tuple[str, str, str, float]:
        """Return what the checks of one group have in common: client, key and time of the
        request."""
        return self.datacenter, self.client, self.key, self.asked_at

    @property
    def spends(self) -> bool:
        """Return whether a member admitted the check and counts its units."""
        return self.allowed and self.is_counted and not self.is_uncounted


class Column:
    """All answers for one key."""

    def __init__(self, answers: Sequence[Answered], refunded: Sequence[Answered] = ()) -> None:
        """`refunded` are charges of units that were refunded later."""
        self.answers = answers
        self.refunded = refunded
        self.admitted = [a for a in answers if a.spends]
        """Allowed answers whose units a member counts."""
        self.has_charges = any(a.is_charge and a.cost for a in answers)

    @property
    def datacenters(self) -> set[str]:
        """Return the data centers whose clients checked the key."""
        return {a.datacenter for a in self.answers}

    @property
    def used_until(self) -> float:
        """Return when the last answer for the key arrived, or the last refund was complete."""
        refunds = [a.refund_done_at for a in self.refunded if a.refund_done_at < inf]
        return max([*(a.answered_at for a in (*self.answers, *self.refunded)), *refunds])

    def by_datacenter(self) -> "list[Column]":
        """Return the answers of each data center separately."""
        names = sorted(self.datacenters)
        return [
            Column(
                [a for a in self.answers if a.datacenter == name],
                [a for a in self.refunded if a.datacenter == name],
            )
            for name in names
        ]

    def most_in(self, seconds: float) -> tuple[int, float]:
        """Return the most units that were certainly admitted within `seconds`, and the start of
        that span.

        Charges do not count, since no limit restricts them.
        """
        checks = [a for a in self.admitted if not a.is_charge]
        if not self.answers or self.answers[-1].answered_at - self.answers[0].asked_at < seconds:
            units = sum(a.cost for a in checks)
            return units, self.answers[0].asked_at if self.answers else 0.0
        quick = sorted(
            (a.asked_at, a.cost) for a in checks if a.answered_at - a.asked_at <= _SLOW_S
        )
        sums = [0, *accumulate(cost for _, cost in quick)]
        most, when = 0, 0.0
        for start, (begin, _) in enumerate(quick):
            stop = bisect_right(quick, (begin + seconds - _SLOW_S, 0))
            if sums[stop] - sums[start] > most:
                most, when = sums[stop] - sums[start], begin
        return most, when

    def answered_within(self, begin: float, end: float) -> int:
        """Return admitted units whose answer arrived between two instants."""
        instants, sums = self._answered
        return sums[bisect_right(instants, end)] - sums[bisect_left(instants, begin)]

    @cached_property
    def _answered(self) -> tuple[list[float], list[int]]:
        """Instants of the answers that admitted units, and the units up to each of them."""
        answers = sorted((a.answered_at, a.cost) for a in self.admitted)
        return [at for at, _ in answers], [0, *accumulate(cost for _, cost in answers)]


class Ledger:
    """Record of all answers of a run, by rule and key."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, Answered]] = []
        """Rule and answer, in order of arrival."""
        self.undecided: list[tuple[str, Answered]] = []
        """Rule and answer of each check that no member decided.

        This includes checks that the failure policy allows in a group that is denied."""
        self.open: dict[int, tuple[str, float]] = {}
        """Checks in flight by number: rule and key, and when the request began."""
        self._numbers = count()
        self._by_key: dict[tuple[str, str], list[Answered]] = {}
        self._passing: dict[tuple[str, str], list[Answered]] = {}

    def ask(self, rule: str, key: str, asked_at: float) -> int:
        """Record that a request was sent; return its number, which is passed to `answered`
        later."""
        number = next(self._numbers)
        self.open[number] = f"{rule}={key}", asked_at
        return number

    def answered(self, number: int) -> None:
        """Record that the request with this number was answered."""
        del self.open[number]

    def add(self, rule: str, answer: Answered) -> None:
        """Record a request together with its answer."""
        self.answers.append((rule, answer))
        self._by_key.setdefault((rule, answer.key), []).append(answer)
        self._add_undecided(rule, answer)

    def add_refunded(self, rule: str, answer: Answered) -> None:
        """Record units that were refunded, or that the failure policy allowed in a denied group."""
        self._passing.setdefault((rule, answer.key), []).append(answer)
        self._add_undecided(rule, answer)

    def _add_undecided(self, rule: str, answer: Answered) -> None:
        if not answer.is_counted:
            self.undecided.append((rule, answer))

    def keys(self, rule: str) -> list[str]:
        """Return the keys of a rule that clients checked, the most frequent key first."""
        counts = Counter({key: len(found) for (each, key), found in self._by_key.items()
                          if each == rule})  # fmt: skip
        return [key for key, _ in sorted(counts.items(), key=lambda each: (-each[1], each[0]))]

    def column(self, rule: str, key: str) -> Column:
        """Return all answers for one key."""
        place = rule, key
        return Column(self._by_key.get(place, []), self._passing.get(place, []))
