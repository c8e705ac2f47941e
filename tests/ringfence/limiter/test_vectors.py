import pytest

from ringfence.limiter import Code, Engine, EngineRule, Outcome, compiled_tables
from tests.programs import require_compiled
from tests.ringfence.limiter.vectors.algorithms import CHARGE_VECTORS, VECTORS, Step, Vector

KEY = bytes(8) + b"key"
EVERY = (*VECTORS, *CHARGE_VECTORS)


@pytest.mark.parametrize("vector", EVERY, ids=lambda vector: vector.name)
def test_the_reference_engine_answers_every_worked_example(vector: Vector) -> None:
    answer(Engine(max_keys=10), vector)


@pytest.mark.parametrize("keeps_keys", [False, True])
@pytest.mark.parametrize("vector", EVERY, ids=lambda vector: vector.name)
def test_the_compiled_engine_answers_every_worked_example(vector: Vector, keeps_keys: bool) -> None:
    require_compiled()
    answer(Engine(max_keys=10, tables=compiled_tables(bytes(16), keeps_keys=keeps_keys)), vector)


def answer(engine: Engine, vector: Vector) -> None:
    engine.set_rules({0: EngineRule(vector.limit)})
    for number, step in enumerate(vector.steps):
        if step.is_charge:
            outcome = engine.charge_now([KEY], [step.cost], [], [], step.at_ns).row(0)
        else:
            outcome = engine.decide([KEY], [step.cost], [], [], [], step.at_ns).row(0)

        assert stated_fields(outcome, step) == expected(step), f"step {number}: {step}"


def stated_fields(outcome: Outcome, step: Step) -> dict[str, object]:
    """Return the code of an outcome, and the fields that the step states."""
    return {
        "code": outcome.code,
        **{name: getattr(outcome, name) for name in FIELDS if getattr(step, name) is not None},
    }


def expected(step: Step) -> dict[str, object]:
    if step.is_admitted:
        code = Code.OVER_SOFT if step.is_over_soft else Code.ALLOWED
    elif step.is_charge:
        code = Code.OVERDRAWN
    else:
        code = Code.NEVER if step.is_permanent else Code.DENIED
    stated = {name: getattr(step, name) for name in FIELDS if getattr(step, name) is not None}
    return {"code": code, **stated}


FIELDS = ("remaining", "retry_after_ns", "reset_after_ns", "delay_ns")
