"""A replay without any node: an engine in this process, by this clock or by the log's own."""

from collections.abc import Callable, Iterable
from functools import lru_cache

from node.replay.logs import Entry
from node.replay.tally import DOMAIN, Shape, Tally
from ringfence.client.batch import Verdicts
from ringfence.client.clock import Clock, SystemClock
from ringfence.client.decision import Decision
from ringfence.client.local import LocalDecider
from ringfence.client.question import Question
from ringfence.limiter import Outcomes
from ringfence.rules import Descriptor, RuleSet
from ringfence.wire import Op

__all__ = ["LogClock", "replay_offline"]

_KEPT_QUESTIONS = 65_536
"""Descriptors whose counters are kept worked out: logs repeat their clients and paths."""


class LogClock:
    """The time is that of the line being replayed."""

    def __init__(self) -> None:
        self._now = 0

    def set(self, now: int) -> None:
        """Move on to `now` (nanoseconds since the Unix epoch); never back."""
        self._now = max(self._now, now)

    def now(self) -> int:
        """The current line's time-stamp."""
        return self._now


def replay_offline(
    entries: Iterable[Entry],
    shape: Shape,
    rules: RuleSet,
    *,
    by_log_clock: bool,
    max_keys: int,
    on_progress: Callable[[int], None],
) -> Tally:
    """Decide every line in order. `entries` are in order of time when the log's clock counts."""
    log_clock = LogClock()
    clock: Clock = log_clock if by_log_clock else SystemClock()
    decider = LocalDecider(rules, clock, max_keys)
    tally = Tally()

    @lru_cache(_KEPT_QUESTIONS)
    def question_of(descriptors: tuple[Descriptor, ...]) -> Question:
        return Question(Op.CHECK, [rules.match(DOMAIN, descriptors)], [1])

    for entry in entries:
        log_clock.set(entry.time_ns)
        tally.add(entry, _decide(decider, question_of(shape.of(entry))))
        if tally.checks % 1000 == 0:
            on_progress(tally.checks)
    on_progress(tally.checks)
    return tally


def _decide(decider: LocalDecider, question: Question) -> Decision:
    """Check one line as a `Limiter` would, but without the cost of an event loop."""
    batch = question.batch
    if not batch.keys:
        return question.read(Verdicts(Outcomes(), []))[0]
    verdicts = decider.decide_now(batch)
    decisions = question.read(verdicts)
    undue = question.undue(decisions, verdicts)
    if undue:
        decider.refund(batch, undue, verdicts, 0.0)
    return decisions[0]
