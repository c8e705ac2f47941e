"""Oracle: the decisions of an exact limiter, and how the actual decisions differ from them.

The oracle sees every request. It keeps two engines. One decides by itself, from the units that it
admitted. The other counts the units that were actually admitted. `what_if` computes the figures of
each rule.
"""

import dataclasses
from collections import Counter, deque
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ringfence.client.requests.request_rows import RequestRows
from ringfence.limiter import Algorithm, Code, Engine
from ringfence.peering.engine_choice import decide_batch, engine_rules
from ringfence.rules import Rule
from ringfence.wire import Results, Source
from simulations.what_if.data_centers import MAX_KEYS

__all__ = ["Answer", "Errors", "Oracle", "Recent", "ask", "as_logs"]


class Errors(Struct, frozen=True):
    """Differences of the actual decisions from those of one limiter that sees every request.

    The figures are the ones that Cloudflare published about its sliding windows. A difference is
    between the count used for a decision and the units actually admitted, relative to the latter.
    """

    against: str
    """Description of the reference limiter."""
    requests: int
    """Requests that matched a limit."""
    wrongly_allowed: int
    wrongly_limited: int
    mean_difference: float
    max_difference: float
    near_mean_difference: float
    """Mean difference while at least half of the limit was used; below that, no decision
    changes."""
    near_max_difference: float
    over: int
    """Counters that exceeded their limit."""
    max_over: float
    """Largest excess, as a part of the limit."""

    @property
    def wrong_share(self) -> float:
        """Return the share of requests that were wrongly allowed or limited."""
        return (self.wrongly_allowed + self.wrongly_limited) / max(1, self.requests)


class Answer(Struct):
    """Decision of a limiter engine on one request, with the result of each counter."""

    allowed: bool
    rule: Rule | None
    """Rule that denied the request; None when allowed."""
    codes: list[int]
    """Result code of each counter; `UNCHARGED` after a refund."""
    remaining: list[int]
    """Remaining units of each counter right after its check."""


def ask(engine: Engine, question: RequestRows, now: int) -> Answer:
    """Check one request by a limiter engine as a client does; refund the charges of a denied
    request."""
    batch = question.batch
    if not batch.keys:
        return Answer(True, None, [], [])
    outcomes = decide_batch(engine, batch, now)
    codes = outcomes.codes
    if len(codes) == 1:  # The most frequent case.
        rule = question.rules[0]
        if codes[0] <= Code.OVER_SOFT:
            return Answer(True, None, codes, outcomes.remaining)
        if not (rule.shadow or rule.quota):
            return Answer(False, rule, codes, outcomes.remaining)
    results = Results(outcomes, [Source.LOCAL] * len(codes))
    decisions = question.read(results)
    to_refund = question.rows_to_refund(decisions, results)
    if to_refund:
        taken = batch.take(to_refund)
        slot_ids = [outcomes.slot_ids[row] for row in to_refund]
        codes = [Code.UNCHARGED if row in to_refund else code for row, code in enumerate(codes)]
        engine.refund(taken.keys, taken.costs, [], slot_ids, taken.limits, taken.which, now)
    allowed = decisions[0].allowed
    rule_met = None if allowed else decisions[0].rule
    return Answer(allowed, rule_met, codes, outcomes.remaining)


class Recent:
    """Units requested recently per data center and key, from which the bound on excess units is
    computed."""

    def __init__(self, span_ns: int) -> None:
        self._span_ns = span_ns
        self._rows: deque[tuple[int, int, bytes, int]] = deque()
        self._units: Counter[tuple[int, bytes]] = Counter()

    def add(self, at: int, keys: Sequence[bytes], costs: Sequence[int], now: int) -> None:
        """Record the units of a request, and drop requests that are older than the observed time
        span."""
        for key, cost in zip(keys, costs, strict=True):
            self._rows.append((now, at, key, cost))
            self._units[at, key] += cost
        while self._rows and self._rows[0][0] < now - self._span_ns:
            _, place, key, cost = self._rows.popleft()
            self._units[place, key] -= cost
            if not self._units[place, key]:
                del self._units[place, key]

    def most(self, key: bytes, datacenters: int) -> int:
        """Return the most units that were recently requested for a key in any one data center."""
        return max(self._units.get((at, key), 0) for at in range(datacenters))


class Oracle:
    """Limiter that sees every request and compares the actual decisions with its own."""

    def __init__(self, against: str, rules: Sequence[Rule]) -> None:
        self._against = against
        self._alone = Engine(max_keys=MAX_KEYS)
        """Engine that counts only the units that it admitted itself."""
        self._truth = Engine(max_keys=MAX_KEYS)
        """Engine that counts the units that were actually admitted."""
        self._alone.set_rules(engine_rules(rules))
        self._truth.set_rules(engine_rules(rules))
        self._ceilings = {rule.id: rule.limit.ceiling for rule in rules if rule.limit is not None}
        self._requests = self._wrongly_allowed = self._wrongly_limited = 0
        self._all, self._near = _Differences(), _Differences()
        self._over: dict[bytes, float] = {}
        """Largest excess of each counter, as a part of the limit."""

    def compare(
        self, question: RequestRows, answer: Answer, seen: Sequence[int | None], now: int
    ) -> tuple[Answer, list[int]]:
        """Compare an actual answer with the answer of exact counting.

        `seen` are the counts used for the decision, None where a count is only partial. Returns the
        exact answer. Also returns, per counter, the units over its limit if this request was
        charged to it, else 0.
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
        """Return the differences from an exact limiter for all requests so far."""
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
    """Return the rules with an exact log algorithm instead of windows; buckets and calendar limits
    stay."""
    counting = (Algorithm.SLIDING_WINDOW, Algorithm.FIXED_WINDOW)
    return [
        replace(
            rule,
            limit=dataclasses.replace(rule.limit, algorithm=Algorithm.SLIDING_WINDOW_LOG, slots=1),
        )
        if rule.limit is not None
        and rule.limit.algorithm in counting
        and rule.limit.calendar is None
        else rule
        for rule in rules
    ]


class _Differences(Struct):
    """Running mean and maximum of the differences between counts used for decisions and exact
    counts."""

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
