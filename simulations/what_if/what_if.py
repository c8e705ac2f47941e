"""Effect of rules on the clients of an access log, decided in several data centers.

Every line is decided by one data center. Counts reach the other data centers late (`data_centers`),
so some requests are admitted beyond the limit; `oracle` finds them. Time is that of the log.

Rules without a scope, or with the scope `datacenter`, are counted in all data centers together,
because that is the purpose of the simulation. Rules of scope `split` and `home` are counted by
their scope.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import groupby

from node.replay.log_formats import Entry
from node.replay.tally import Shape
from ringfence.client.requests.request_rows import RequestRows
from ringfence.errors import ConfigError
from ringfence.limiter import NS_PER_SECOND, Code, Engine
from ringfence.rules import Descriptor, RuleSet
from ringfence.wire import Op
from simulations.scenarios.seeds import stream
from simulations.what_if.data_centers import DataCenters, Timing
from simulations.what_if.figures import (
    ClientTally,
    Routing,
    RuleFigures,
    RuleTally,
    Throttled,
    WhatIf,
    Worst,
    most_throttled,
)
from simulations.what_if.oracle import Answer, Oracle, Recent, as_logs, ask

__all__ = ["Routing", "RuleFigures", "Throttled", "WhatIf", "Worst", "spread_ties", "what_if"]

_KEPT_QUESTIONS = 65_536
"""Number of cached descriptors, as in a replay."""
_MS = 1_000_000


def what_if(
    rules: RuleSet,
    entries: Iterable[Entry],
    shape: Shape,
    *,
    datacenters: int,
    delay_ms: float,
    interval_ms: float,
    seed: int,
    spread: Routing = "random",
    exact: bool = False,
    top: int = 10,
    on_progress: Callable[[int], None] = lambda done: None,
) -> WhatIf:
    """Decide every line of an access log by simulated data centers; `entries` must be in order of
    time.

    `delay_ms` is the one-way delay between two data centers, and `interval_ms` the interval of
    their rounds. `exact` gives all data centers one engine. Then, and with one data center, the
    result equals that of `ringfence replay --local`. The result names `top` clients. Raises
    `ConfigError` for invalid numbers, and as `DataCenters.decider` does.
    """
    if datacenters < 1 or delay_ms < 0 or interval_ms * _MS < 1:
        raise ConfigError(
            f"{datacenters} data centers, {delay_ms:g} ms apart, telling every {interval_ms:g} ms: "
            "give at least one, a delay of 0 or more, and an interval above 0"
        )
    timing = Timing(round(delay_ms * _MS), round(interval_ms * _MS))
    run = _Run(rules, shape, datacenters, timing, seed, spread, exact=exact)
    for entry in entries:
        run.take(entry)
        if run.requests % 1000 == 0:
            on_progress(run.requests)
    on_progress(run.requests)
    is_late = datacenters > 1 and not exact
    return WhatIf(
        datacenters=datacenters,
        delay_ms=delay_ms,
        interval_ms=interval_ms,
        staleness_ms=timing.late_ns / _MS if is_late else 0.0,
        seed=seed,
        spread=spread,
        exact=exact,
        requests=run.requests,
        same_instant=run.same_instant,
        no_rule=run.no_rule,
        denied_exact=run.denied_exact,
        denied=run.denied,
        rules=tuple(tally.read() for tally in run.tallies.values()),
        throttled=most_throttled(run.clients, top),
        errors=tuple(oracle.errors() for oracle in run.oracles),
    )


def spread_ties(entries: Sequence[Entry]) -> list[Entry]:
    """Spread the requests of each second evenly over the second, when time-stamps are whole
    seconds.

    Otherwise all requests of a second would have the same time, and no counts could travel between
    them. The order is kept. Logs with finer time-stamps are not changed.
    """
    if any(entry.time_ns % NS_PER_SECOND for entry in entries):
        return list(entries)
    laid_out: list[Entry] = []
    for second, group in groupby(entries, key=lambda entry: entry.time_ns):
        tied = list(group)
        laid_out += [
            entry._replace(time_ns=second + place * NS_PER_SECOND // len(tied))
            for place, entry in enumerate(tied)
        ]
    return laid_out


class _Run:
    """One pass over an access log, with the data centers, the exact limiter and the results."""

    def __init__(
        self,
        rules: RuleSet,
        shape: Shape,
        datacenters: int,
        timing: Timing,
        seed: int,
        spread: Routing,
        *,
        exact: bool,
    ) -> None:
        self.requests = self.same_instant = self.no_rule = self.denied = self.denied_exact = 0
        self.clients: dict[str, ClientTally] = {}
        self._now = 0
        self._shape = shape
        self._datacenters = datacenters
        self._route = _router(datacenters, seed, spread)
        self._recent = Recent(timing.late_ns)
        limited = [rule for rule in rules.rules() if rule.limit is not None]
        chance = stream(seed, "what-if", "rounds")
        self._centers = DataCenters(limited, datacenters, timing, chance, exact=exact)
        counting = 1 if exact else datacenters
        self.tallies = {rule.id: RuleTally(rule, timing, counting) for rule in limited}
        self.oracles = [Oracle("one exact counter", limited)]
        logs = as_logs(limited)
        if logs != limited:
            self.oracles.append(Oracle("a log of every hit", logs))

        @lru_cache(_KEPT_QUESTIONS)
        def question_of(descriptors: tuple[Descriptor, ...]) -> tuple[RequestRows, bool]:
            met = rules.match(shape.domain, descriptors)
            return RequestRows(Op.CHECK, [met], [1]), any(match is not None for match in met)

        self._question_of = question_of

    def take(self, entry: Entry) -> None:
        """Decide one line of the access log by a data center and by the exact limiter."""
        self.same_instant += entry.time_ns <= self._now
        now = self._now = max(self._now, entry.time_ns)
        question, meets_rule = self._question_of(self._shape.of(entry))
        keys, costs = question.batch.keys, question.batch.costs
        self._centers.advance(now)
        at, engine = self._centers.decider(self._route(entry.client), question.rules)
        answer = ask(engine, question, now)
        seen = self._seen(engine, question, answer, now)
        self._centers.admitted(at, keys, answer.codes, now)
        self._recent.add(at, keys, costs, now)
        (right, over), *_ = [oracle.compare(question, answer, seen, now) for oracle in self.oracles]
        for row, rule in enumerate(question.rules):
            tally = self.tallies[rule.id]
            tally.add(answer.codes[row], right.codes[row])
            if over[row]:
                asked = self._recent.most(keys[row], self._datacenters)
                tally.exceed(entry.client, now, over[row], costs[row], asked)
        self.requests += 1
        self.no_rule += not meets_rule
        self.denied += not answer.allowed
        self.denied_exact += not right.allowed
        client = self.clients.get(entry.client)
        if client is None:
            client = self.clients[entry.client] = ClientTally()
        client.add(answer, right, now)

    def _seen(
        self, engine: Engine, question: RequestRows, answer: Answer, now: int
    ) -> list[int | None]:
        """Return the deciding data center's count before the check, per rule; None for a rule of
        scope `split`."""
        batch = question.batch
        seen: list[int | None] = []
        for row, rule in enumerate(question.rules):
            tally = self.tallies[rule.id]
            if not tally.is_whole:
                seen.append(None)
            elif answer.codes[row] <= Code.OVER_SOFT:
                # The answer contains it; a separate look-up would cost as much as the check.
                seen.append(tally.ceiling - answer.remaining[row] - batch.costs[row])
            else:
                seen.append(engine.used(batch.keys[row], now))
        return seen


def _router(datacenters: int, seed: int, spread: Routing) -> Callable[[str], int]:
    """Return a function that chooses the data center to which a client's next request goes."""
    if spread == "random":
        chance = stream(seed, "what-if", "route")
        return lambda client: chance.randrange(datacenters)

    @lru_cache(_KEPT_QUESTIONS)
    def sticky(client: str) -> int:
        return stream(seed, "what-if", "route", client).randrange(datacenters)

    return sticky
