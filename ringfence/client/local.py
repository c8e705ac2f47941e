"""The limiter without any node: the engine in this very process, behind the same interface."""

from collections.abc import Callable, Sequence
from threading import Lock

from anyio.lowlevel import checkpoint

from ringfence.client.batch import Batch, Late, Row, Verdicts, Waiting
from ringfence.client.clock import Clock
from ringfence.client.engines import new_engine
from ringfence.client.turns import Turns
from ringfence.errors import RingfenceError
from ringfence.limiter import Engine, EngineRule, Outcomes
from ringfence.rules import Rule, RuleSet
from ringfence.wire import Op, Source

__all__ = ["LocalDecider", "decide_by", "engine_rules"]

_LOCAL = Source.LOCAL.value


class LocalDecider:
    """Decides every row by an engine of its own.

    Made with `in_loop=False` it never waits, and any thread may ask it.
    """

    near = None
    """Nobody needs to be asked for anything."""

    def __init__(
        self, rules: RuleSet, clock: Clock, max_keys: int, *, in_loop: bool = True
    ) -> None:
        self._rules = rules
        self._clock = clock
        self._engine = new_engine(max_keys=max_keys)
        self._engine.set_rules(engine_rules(rules.rules()))
        self._turns = Turns(in_loop=in_loop)
        self._lock = Lock()

    @property
    def rules(self) -> RuleSet:
        """The rules in force."""
        return self._rules

    @property
    def knows_rules(self) -> bool:
        """Nobody else has rules to tell."""
        return True

    async def decide(
        self, batch: Batch, vetoes: Callable[[int], bool], within: float | None
    ) -> Verdicts:
        """Decide every row now."""
        await self._turns.take()
        return self.decide_now(batch)

    def join(self, key: bytes, cost: int, within: float | None) -> None:
        """There is nobody to be asked together."""

    async def decide_one(
        self, key: bytes, cost: int, asked: Waiting | None, late: Late | None, within: float | None
    ) -> Row:
        """Decide a lone check now."""
        if self._turns.is_over():
            await checkpoint()
        return self.decide_lone(key, cost)

    def decide_lone(self, key: bytes, cost: int) -> Row:
        """Decide a check as `decide_now` does; a batch around it takes as long as all else here."""
        with self._lock:
            told = self._engine.decide((key,), (cost,), (), (), (), self._clock.now())
        return (
            *(told.codes[0], told.limits[0], told.remaining[0], told.retry_after_ns[0]),
            *(told.reset_after_ns[0], told.delay_ns[0], told.leases[0], _LOCAL),
        )

    def decide_now(self, batch: Batch) -> Verdicts:
        """Decide every row, without a task to wait in."""
        with self._lock:
            outcomes = decide_by(self._engine, batch, self._clock.now())
        return Verdicts(outcomes, [Source.LOCAL] * len(batch))

    def time(self) -> float:
        """Nobody is asked, so nothing is asked before it is decided."""
        return 0.0

    async def refresh_rules(self) -> None:
        """Nobody else has rules to tell."""

    def outage(self) -> RingfenceError | None:
        """This process is always within reach."""
        return None

    def refund(
        self, batch: Batch, rows: Sequence[int], verdicts: Verdicts, asked_at: float
    ) -> None:
        """Give back what rows were just charged; the check was at this very instant."""
        taken = batch.take(rows)
        leases = [verdicts.outcomes.leases[i] for i in rows]
        self.decide_now(
            Batch(
                Op.REFUND,
                taken.keys,
                taken.costs,
                limits=taken.limits,
                which=taken.which,
                leases=leases,
            )
        )


def decide_by(engine: Engine, batch: Batch, now: int) -> Outcomes:
    """Have an engine do what a batch asks for."""
    keys, limits, which = batch.keys, batch.limits, batch.which
    match batch.op:
        case Op.CHECK:
            return engine.decide(keys, batch.costs, batch.groups, limits, which, now)
        case Op.REFUND:
            return engine.refund(keys, batch.costs, batch.ages_ns, batch.leases, limits, which, now)
        case Op.RESET:
            return engine.reset(keys, limits, which, now)
        case Op.CHARGE:
            return engine.charge_now(keys, batch.costs, limits, which, now)


def engine_rules(rules: Sequence[Rule]) -> dict[int, EngineRule]:
    """What an engine needs of the rules that have a limit."""
    return {
        rule.id: EngineRule(rule.limit, vetoes=not (rule.shadow or rule.quota))
        for rule in rules
        if rule.limit is not None
    }
