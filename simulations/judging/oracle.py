"""What exact counting would have said of each request, and how wrong the decisions made were.

A judge sees every request. It decides with a history of its own, in which it alone decides, and
counts beside it all that was in truth admitted. What a rule's figures are is `what_if`'s.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringfence.client.requests.request_rows import RequestRows
from ringfence.limiter import Algorithm, Code, Engine
from ringfence.peering.engine_choice import decide_by, engine_rules
from ringfence.rules import Rule
from ringfence.wire import Results, Source
from simulations.what_if.data_centers import MAX_KEYS

__all__ = ["Answer", "Errors", "Oracle", "Recent", "ask", "as_logs"]


@dataclass(frozen=True, slots=True)
class Errors:
    """How far decisions were from those of one limiter that sees everything.

    The figures are those that Cloudflare published of its sliding windows. Differences are between
    the count that decided and the units in truth admitted, as parts of the latter.
    """

    against: str
    """What decides rightly."""
    requests: int
    """Those that met a limit."""
    wrongly_allowed: int
    wrongly_limited: int
    mean_difference: float
    max_difference: float
    near_mean_difference: float
    """As above, where at least half of the limit was in use: elsewhere it changes no decision."""
    near_max_difference: float
    over: int
    """Counters that passed their limit."""
    max_over: float
    """By which part of the limit, at most."""

    @property
    def wrong_share(self) -> float:
        """Part of the requests that was wrongly allowed or limited."""
        return (self.wrongly_allowed + self.wrongly_limited) / max(1, self.requests)


@dataclass(slots=True)
class Answer:
    """What an engine said of one request."""

    allowed: bool
    rule: Rule | None
    """Which refused; None when allowed."""
    codes: list[int]
    """Per counter; `UNCHARGED` when nothing was charged in the end."""
    remaining: list[int]
    """Per counter, right after its check."""


def ask(engine: Engine, question: RequestRows, now: int) -> Answer:
    """Check one request as a client would, giving back what a denied one was charged."""
    batch = question.batch
    if not batch.keys:
        return Answer(True, None, [], [])
    outcomes = decide_by(engine, batch, now)
    codes = outcomes.codes
    if len(codes) == 1:  # By far the most frequent case.
        rule = question.rules[0]
        if codes[0] <= Code.OVER_SOFT:
            return Answer(True, None, codes, outcomes.remaining)
        if not (rule.shadow or rule.quota):
            return Answer(False, rule, codes, outcomes.remaining)
    verdicts = Results(outcomes, [Source.LOCAL] * len(codes))
    decisions = question.read(verdicts)
    undue = question.rows_to_refund(decisions, verdicts)
    if undue:
        taken = batch.take(undue)
        leases = [outcomes.leases[row] for row in undue]
        codes = [Code.UNCHARGED if row in undue else code for row, code in enumerate(codes)]
        engine.refund(taken.keys, taken.costs, [], leases, taken.limits, taken.which, now)
    allowed = decisions[0].allowed
    rule_met = None if allowed else decisions[0].rule
    return Answer(allowed, rule_met, codes, outcomes.remaining)


class Recent:
    """What each data center was asked for lately: the demand that a bound is worked out from."""

    def __init__(self, span_ns: int) -> None:
        self._span_ns = span_ns
        self._rows: deque[tuple[int, int, bytes, int]] = deque()
        self._units: Counter[tuple[int, bytes]] = Counter()

    def add(self, at: int, keys: Sequence[bytes], costs: Sequence[int], now: int) -> None:
        """Note a request, and forget those that are too long ago."""
        for key, cost in zip(keys, costs, strict=True):
            self._rows.append((now, at, key, cost))
            self._units[at, key] += cost
        while self._rows and self._rows[0][0] < now - self._span_ns:
            _, place, key, cost = self._rows.popleft()
            self._units[place, key] -= cost
            if not self._units[place, key]:
                del self._units[place, key]

    def most(self, key: bytes, datacenters: int) -> int:
        """Units of a key that one data center was asked for, of the one asked most."""
        return max(self._units.get((at, key), 0) for at in range(datacenters))


class Oracle:
    """One limiter that sees everything."""

    def __init__(self, against: str, rules: Sequence[Rule]) -> None:
        self._against = against
        self._alone = Engine(max_keys=MAX_KEYS)
        """Counts what it admits itself."""
        self._truth = Engine(max_keys=MAX_KEYS)
        """Counts what was admitted."""
        self._alone.set_rules(engine_rules(rules))
        self._truth.set_rules(engine_rules(rules))
        self._ceilings = {rule.id: rule.limit.ceiling for rule in rules if rule.limit is not None}
        self._requests = self._wrongly_allowed = self._wrongly_limited = 0
        self._all, self._near = _Differences(), _Differences()
        self._over: dict[bytes, float] = {}
        """By counter, the largest excess as a part of the limit."""

    def judge(
        self, question: RequestRows, answer: Answer, seen: Sequence[int | None], now: int
    ) -> tuple[Answer, list[int]]:
        """Take what was decided by the counts `seen`, None where they are only a part.

        Returns the right answer, and per counter the units that are over its limit if this request
        was charged to it, else 0.
        """
        batch = question.batch
        right = ask(self._alone, question, now)
        self._requests += bool(batch.keys)
        self._wrongly_allowed += answer.allowed and not right.allowed
        self._wrongly_limited += right.allowed and not answer.allowed
        over = [0] * len(batch.keys)
        for row, key in enumerate(batch.keys):
            true = self._truth.used(key, now)
            ceiling = self._ceilings[question.rules[row].id]
            counted = seen[row]
            if true and counted is not None:
                difference = abs(counted - true) / true
                self._all.add(difference)
                if 2 * true >= ceiling:
                    self._near.add(difference)
            if answer.codes[row] <= Code.OVER_SOFT:
                cost = batch.costs[row]
                self._truth.charge((key,), (cost,), (0,), now)
                over[row] = max(0, true + cost - ceiling)
                if over[row]:
                    part = over[row] / max(1, ceiling)
                    self._over[key] = max(part, self._over.get(key, 0.0))
        return right, over

    def errors(self) -> Errors:
        """Sum up what was judged until now."""
        return Errors(
            against=self._against,
            requests=self._requests,
            wrongly_allowed=self._wrongly_allowed,
            wrongly_limited=self._wrongly_limited,
            mean_difference=self._all.mean,
            max_difference=self._all.most,
            near_mean_difference=self._near.mean,
            near_max_difference=self._near.most,
            over=len(self._over),
            max_over=max(self._over.values(), default=0.0),
        )


def as_logs(rules: Sequence[Rule]) -> list[Rule]:
    """The same rules, windows among them counted hit by hit; buckets and the calendar stay."""
    counting = (Algorithm.SLIDING_WINDOW, Algorithm.FIXED_WINDOW)
    return [
        replace(rule, limit=replace(rule.limit, algorithm=Algorithm.SLIDING_WINDOW_LOG, slots=1))
        if rule.limit is not None
        and rule.limit.algorithm in counting
        and rule.limit.calendar is None
        else rule
        for rule in rules
    ]


@dataclass(slots=True)
class _Differences:
    """Mean and largest of many."""

    most: float = 0.0
    total: float = 0.0
    count: int = 0

    @property
    def mean(self) -> float:
        return self.total / max(1, self.count)

    def add(self, difference: float) -> None:
        self.most = max(self.most, difference)
        self.total += difference
        self.count += 1
