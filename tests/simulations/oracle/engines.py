"""Adapter of the engines for comparison with the oracle: one key of one limit."""

from dataclasses import dataclass

from ringfence.limiter import Engine, EngineRule, Limit, Outcomes, compiled_tables
from simulations.oracle import Answer, Code
from tests.programs import require_compiled

__all__ = ["KEY", "SECRET", "Asked", "answer_in", "engines_for"]

KEY = bytes(8) + b"key"
SECRET = bytes(range(16))
CODES = {code.value.upper(): code for code in Code}


@dataclass(frozen=True, slots=True)
class Asked:
    """Step of a history: an operation, `gap_ns` after the previous step."""

    gap_ns: int
    kind: str
    """check, charge, refund, release, renew or change."""
    cost: int = 1
    age_ns: int = 0
    slot: int = 0
    limit: Limit | None = None
    """Limit from now on, or for a check its own limit, instead of that of the rule."""


class OneKey:
    """One key of an engine, with the operations of the oracle."""

    def __init__(self, engine: Engine, limit: Limit) -> None:
        self._engine = engine
        engine.set_rules({0: EngineRule(limit)})

    def answer(self, asked: Asked, now: int) -> Answer | None:
        """Perform one step by the engine; return None for a step without an answer."""
        if asked.kind == "change":
            assert asked.limit is not None
            self._engine.set_rules({0: EngineRule(asked.limit)})
            return None
        return answer_in(self._outcomes(asked, now))

    def _outcomes(self, asked: Asked, now: int) -> Outcomes:
        engine, costs = self._engine, [asked.cost]
        match asked.kind:
            case "check" if asked.limit is not None:
                return engine.decide([KEY], costs, [], [asked.limit], [1], now)
            case "check":
                return engine.decide([KEY], costs, [], [], [], now)
            case "charge":
                return engine.charge_now([KEY], costs, [], [], now)
            case "renew":
                return engine.renew([KEY], [asked.slot], [], [], now)
            case "release":
                return engine.refund([KEY], costs, [], [asked.slot], [], [], now)
            case "refund":
                return engine.refund([KEY], costs, [asked.age_ns], [], [], [], now)
            case _:
                raise ValueError(f"kind must be one of the six kinds, got {asked.kind}")


def answer_in(outcomes: Outcomes, at: int = 0) -> Answer:
    """Return a row of outcomes as an answer of the oracle."""
    row = outcomes.row(at)
    return Answer(
        CODES[row.code.name],
        row.remaining,
        row.retry_after_ns,
        row.reset_after_ns,
        row.delay_ns,
        row.slot_id,
    )


def engines_for(limit: Limit) -> dict[str, OneKey]:
    """Return the reference engine and the compiled engine in both of its forms."""
    require_compiled()
    made = {"reference": Engine(max_keys=10)}
    for keeps_keys in (False, True):
        name = "compiled, with keys" if keeps_keys else "compiled"
        made[name] = Engine(max_keys=10, tables=compiled_tables(SECRET, keeps_keys=keeps_keys))
    return {name: OneKey(engine, limit) for name, engine in made.items()}
