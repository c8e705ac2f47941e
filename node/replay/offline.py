"""Replay of a log without a node: a limiter engine in this process decides every line.

Time comes from the log or from the host's clock. Many lines are decided at once. A line that
matches a quota rule and other rules is decided alone, because a denial by a quota must refund what
the other rules were charged.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from msgspec import structs

from node.replay.log_formats import Entry
from node.replay.tally import Shape, Tally, Values
from ringfence.client.requests.request_rows import RequestRows
from ringfence.limiter import Code, Engine
from ringfence.peering.clock import Clock
from ringfence.peering.engine_choice import engine_rules, new_engine
from ringfence.rules import Match, RuleSet
from ringfence.wire import Op, Results, Source

__all__ = ["replay_offline"]

_AT_ONCE = 4096
"""Lines that are decided together."""
_KEPT_PLANS = 65_536
"""Number of cached plans; logs repeat their clients and paths."""
_SECRET = b"ringfence replay"
"""Key of the hashes that identify counters. It is fixed, so that runs with one log are equal."""
_OVER = frozenset({Code.DENIED.value, Code.NEVER.value})


def replay_offline(
    batches: Iterable[Sequence[Entry]],
    shape: Shape,
    rules: RuleSet,
    *,
    clock: Clock | None,
    max_keys: int,
    on_progress: Callable[[int], None],
) -> Tally:
    """Decide every line of a log in the given order.

    Without a `clock`, the time of the line is used, and it never goes back. A line that is older
    than an earlier line counts as `late`, at the time of the newest line. Memory does not grow with
    the log.
    """
    run = _Run(rules, shape, clock, max_keys)
    for batch in batches:
        for start in range(0, len(batch), _AT_ONCE):
            run.take(batch[start : start + _AT_ONCE])
        on_progress(run.tally.checks)
    return run.result()


class _Plan:
    """Limits that apply to a line of an access log, as the keys of their counters."""

    __slots__ = ("alone", "has_rule", "is_lone", "keys", "numbers")

    def __init__(self, matches: Sequence[Match | None]) -> None:
        met = [match for match in matches if match is not None and match.rule.limit is not None]
        self.has_rule = any([match is not None for match in matches])
        """Whether a rule matches these lines; it may be unlimited."""
        self.keys = [match.key for match in met]
        self.numbers = [match.rule.id for match in met]
        self.is_lone = len(met) == 1
        has_quota = len(met) > 1 and any([match.rule.quota for match in met])
        self.alone = RequestRows(Op.CHECK, [matches], [1]) if has_quota else None
        """The check, when it must be decided alone."""


class _Plans(dict[Values, _Plan]):
    """Bounded cache of the limits that apply to a line of an access log, by the line's fields."""

    def __init__(self, rules: RuleSet, shape: Shape) -> None:
        super().__init__()
        self._rules = rules
        self._shape = shape

    def __missing__(self, values: Values) -> _Plan:
        if len(self) >= _KEPT_PLANS:
            self.clear()
        plan = _Plan(self._rules.match(self._shape.domain, self._shape.describe(values)))
        self[values] = plan
        return plan


class _Run:
    """One pass over an access log, with its limiter engine and results."""

    def __init__(self, rules: RuleSet, shape: Shape, clock: Clock | None, max_keys: int) -> None:
        self.tally = Tally.of(rules, shape.domain)
        self._clock = clock
        self._now = 0
        self._engine: Engine = new_engine(max_keys=max_keys, secret=_SECRET)
        self._engine.set_rules(engine_rules(rules.rules()))
        self._fields_of = shape.reader()
        self._plans = _Plans(rules, shape)
        self._has_quota = any([rule.quota for rule in rules.rules()])

    def result(self) -> Tally:
        """Return the counts of all lines so far."""
        return structs.replace(self.tally, evicted=self._engine.evicted)

    def take(self, entries: Sequence[Entry]) -> None:
        """Decide a batch of lines of an access log."""
        plans = [self._plans[values] for values in map(self._fields_of, entries)]
        instants = self._instants(entries)
        start = 0
        if self._has_quota:
            for at, plan in enumerate(plans):
                if plan.alone is not None:
                    self._decide(entries[start:at], plans[start:at], instants[start:at])
                    self._decide_alone(entries[at], plan.alone, instants[at])
                    start = at + 1
        self._decide(entries[start:], plans[start:], instants[start:])

    def _instants(self, entries: Sequence[Entry]) -> list[int]:
        """Return the time of each line, never less than that of an earlier line."""
        if self._clock is not None:
            return [self._clock.now()] * len(entries)
        times = [entry.time_ns for entry in entries]
        instants = list(accumulate(times, max, initial=self._now))[1:]
        self._now = instants[-1]
        if instants != times:
            behind = [now - time for now, time in zip(instants, times, strict=True) if now > time]
            self.tally.late += len(behind)
            self.tally.most_late_ns = max(self.tally.most_late_ns, *behind)
        return instants

    def _decide(
        self, entries: Sequence[Entry], plans: Sequence[_Plan], instants: list[int]
    ) -> None:
        """Decide the checks of several log lines in one call of the limiter engine, and count the
        denials."""
        tally = self.tally
        clients = [entry.client for entry in entries]
        lines: Sequence[int] = range(len(plans))  # Index of the line, for each key.
        groups: list[int] = []
        if all([plan.is_lone for plan in plans]):  # The most frequent case.
            keys = [plan.keys[0] for plan in plans]
            numbers = [plan.numbers[0] for plan in plans]
        else:
            keys = [key for plan in plans for key in plan.keys]
            numbers = [number for plan in plans for number in plan.numbers]
            lines = [line for line, plan in enumerate(plans) for _ in plan.keys]
            groups = [len(plan.keys) for plan in plans if plan.keys]
            instants = [instants[line] for line in lines]
            tally.no_rule += len(plans) - sum([plan.has_rule for plan in plans])
        codes = self._engine.decide_each(keys, [1] * len(keys), groups, instants).codes
        for number, checks in Counter(numbers).items():
            tally.rules[number].checks += checks
        over = [at for at, code in enumerate(codes) if code in _OVER]
        for number, denied in Counter([numbers[at] for at in over]).items():
            tally.rules[number].denied += denied
        denying = [at for at in over if not tally.rules[numbers[at]].rule.shadow]
        tally.deny(
            [clients[line] for line in dict.fromkeys([lines[at] for at in denying])],
            [(clients[lines[at]], numbers[at]) for at in denying],
        )
        tally.add_lines(clients)

    def _decide_alone(self, entry: Entry, question: RequestRows, now: int) -> None:
        batch = question.batch
        outcomes = self._engine.decide(batch.keys, batch.costs, batch.groups, (), (), now)
        results = Results(outcomes, [Source.LOCAL] * len(batch))
        decisions = question.read(results)
        to_refund = question.rows_to_refund(decisions, results)
        if to_refund:
            given_back = batch.take(to_refund)
            slot_ids = [outcomes.slot_ids[row] for row in to_refund]
            self._engine.refund(given_back.keys, given_back.costs, (), slot_ids, (), (), now)
        self.tally.add(entry, decisions[0])
