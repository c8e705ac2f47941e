"""Choice of the limiter engine of this process, and execution of batches by an engine.

The compiled engine is used if it was built, otherwise the reference engine in Python. The
environment variable `RINGFENCE_ENGINE` overrides this: `reference`, `compiled`, or `auto`.
"""

import os
import secrets
from collections.abc import Sequence

from mmh3 import mmh3_32_uintdigest
from msgspec import Struct

from ringfence.errors import ConfigError
from ringfence.limiter import Engine, EngineRule, Outcomes, compiled_tables, why_not_compiled
from ringfence.rules import Rule
from ringfence.wire import Batch, Op

__all__ = [
    "ENVIRONMENT",
    "EngineChoice",
    "chosen_engine",
    "decide_batch",
    "engine_rules",
    "first_slot",
    "new_engine",
]

ENVIRONMENT = "RINGFENCE_ENGINE"
SECRET_BYTES = 16
_SLOT_BITS = 28
"""Distance of the first slot ids of two nodes, as a power of two."""


class EngineChoice(Struct, frozen=True):
    """Chosen limiter engine, and the reason for the choice."""

    is_compiled: bool
    reason: str

    @property
    def name(self) -> str:
        """Name of the engine as in `RINGFENCE_ENGINE`."""
        return "compiled" if self.is_compiled else "reference"


def chosen_engine() -> EngineChoice:
    """Return which engine `new_engine` creates, and why.

    Raises `ConfigError` when `RINGFENCE_ENGINE` names an engine that is not available.
    """
    asked = os.environ.get(ENVIRONMENT, "") or "auto"
    why_not = why_not_compiled()
    match asked:
        case "reference":
            return EngineChoice(False, f"{ENVIRONMENT}=reference asks for it")
        case "compiled" if why_not is not None:
            raise ConfigError(
                f"{ENVIRONMENT}=compiled: {why_not}; install a C compiler and Ringfence again, or"
                f" unset {ENVIRONMENT}"
            )
        case "compiled" | "auto":
            if why_not is not None:
                return EngineChoice(False, why_not)
            return EngineChoice(True, "the compiled tables were built with the package")
        case _:
            raise ConfigError(f"{ENVIRONMENT} must be compiled, reference or auto, got {asked}")


def first_slot(name: str, now: int) -> int:
    """Return the first id for slots of concurrency limits that a node grants after its start at
    `now`, in ns.

    When keys move to another node, slots are merged by id. So ids must differ between nodes that
    start at the same instant, and between the runs of one node. The result has at most 63 bits.
    """
    return max(1, now) + (mmh3_32_uintdigest(name.encode()) << _SLOT_BITS)


def new_engine(
    *,
    max_keys: int,
    max_bytes: int | None = None,
    first_slot_id: int = 1,
    secret: bytes | None = None,
    keeps_keys: bool = False,
) -> Engine:
    """Create a limiter engine of the kind that `chosen_engine` returns.

    `secret` is the key of the hashes that identify keys; without it, a random secret is used.
    Hashes never leave a process, so engines need no common secret. `keeps_keys` makes the engine
    store the keys, so that they can be listed. Raises `ConfigError`.
    """
    if not chosen_engine().is_compiled:
        return Engine(max_keys=max_keys, max_bytes=max_bytes, first_slot_id=first_slot_id)
    tables = compiled_tables(secret or secrets.token_bytes(SECRET_BYTES), keeps_keys=keeps_keys)
    return Engine(
        max_keys=max_keys, max_bytes=max_bytes, first_slot_id=first_slot_id, tables=tables
    )


def decide_batch(engine: Engine, batch: Batch, now: int) -> Outcomes:
    """Execute a batch by an engine: check, refund, renew, reset or charge its keys."""
    keys, limits, which = batch.keys, batch.limits, batch.which
    match batch.op:
        case Op.CHECK:
            return engine.decide(keys, batch.costs, batch.groups, limits, which, now)
        case Op.REFUND:
            return engine.refund(
                keys, batch.costs, batch.ages_ns, batch.slot_ids, limits, which, now
            )
        case Op.RENEW:
            return engine.renew(keys, batch.slot_ids, limits, which, now)
        case Op.RESET:
            return engine.reset(keys, limits, which, now)
        case Op.CHARGE:
            return engine.charge_now(keys, batch.costs, limits, which, now)


def engine_rules(rules: Sequence[Rule]) -> dict[int, EngineRule]:
    """Return the limits of rules in the form that engines take, by rule id."""
    return {
        rule.id: EngineRule(rule.limit, denies_group=not (rule.shadow or rule.quota))
        for rule in rules
        if rule.limit is not None
    }
