"""Failure policy: decisions by the rule's `on_failure` when no member answers.

A failure of the limiter must never become a failure of the application, so the default is to allow.
`local` counts in this process by the same limit until a member answers again. Clients and
forwarding nodes share this code.
"""

from collections.abc import Callable

from msgspec.structs import replace

from ringfence.limiter import Code, Engine, Limit, Outcome
from ringfence.limiter.groups import carried
from ringfence.peering.clock import Clock
from ringfence.peering.engine_choice import chosen_engine, decide_batch, new_engine
from ringfence.rules import OnFailure, Rule
from ringfence.wire import Batch, Op, Source

__all__ = ["FailurePolicy"]

_RETRY_NS = 1_000_000_000
"""`retry_after` of a check that the policy denied."""


class FailurePolicy:
    """Decides checks that no member has decided, by the `on_failure` of their rules."""

    def __init__(
        self,
        rule_of: Callable[[int], Rule | None],
        clock: Clock,
        max_keys: int,
        without_rule: Callable[[int], OnFailure] = lambda _: OnFailure.ALLOW,
    ) -> None:
        """`without_rule` returns the policy for limits that are in no rule, by the id in their
        keys."""
        self._rule_of = rule_of
        self._without_rule = without_rule
        self._clock = clock
        self._max_keys = max_keys
        self._engine: Engine | None = None
        chosen_engine()  # Report wrong settings now, not in an outage.

    def decide(self, batch: Batch, index: int) -> tuple[Outcome, Source]:
        """Decide one check of a batch by its rule's `on_failure`; a check without a limit is
        allowed."""
        key = batch.keys[index]
        rule_id = int.from_bytes(key[:8], "big")
        rule = self._rule_of(rule_id)
        limit = self.limit_of(batch, index)
        if limit is None:
            return Outcome(Code.ALLOWED, 0, 0), Source.POLICY
        match self._without_rule(rule_id) if rule is None else rule.on_failure:
            case OnFailure.LOCAL:
                return self._count_locally(batch, index, limit), Source.LOCAL
            case OnFailure.DENY if batch.op in (Op.CHECK, Op.CHARGE):
                return Outcome(Code.DENIED, limit.amount, 0, _RETRY_NS, _RETRY_NS), Source.POLICY
            case _:
                return Outcome(Code.ALLOWED, limit.amount, 0), Source.POLICY

    def limit_of(self, batch: Batch, index: int) -> Limit | None:
        """Return the limit of one check of a batch: that of the request, or else of its rule."""
        limit = carried(batch.limits, batch.which, index)
        rule = None if limit else self._rule_of(int.from_bytes(batch.keys[index][:8], "big"))
        return limit if rule is None else rule.limit

    def _count_locally(self, batch: Batch, index: int, limit: Limit) -> Outcome:
        if self._engine is None:
            self._engine = new_engine(max_keys=self._max_keys)
        row = batch.take([index])
        alone = replace(row, groups=[], limits=[limit], which=[1])
        return decide_batch(self._engine, alone, self._clock.now()).row(0)
