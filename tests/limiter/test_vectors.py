import pytest

from ringfence.limiter import Code, Outcome, Table
from tests.vectors.algorithms import VECTORS, Step, Vector


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_the_reference_engine_answers_every_worked_example(vector: Vector) -> None:
    table = Table(vector.limit, max_keys=10)

    for number, step in enumerate(vector.steps):
        outcome = table.check(b"key", step.cost, step.at_ns)

        assert facts(outcome, step) == expected(step), f"step {number}: {step}"


def facts(outcome: Outcome, step: Step) -> dict[str, object]:
    """What the step speaks about, as it was answered."""
    return {
        "code": outcome.code,
        **{name: getattr(outcome, name) for name in FIELDS if getattr(step, name) is not None},
    }


def expected(step: Step) -> dict[str, object]:
    if step.is_admitted:
        code = Code.OVER_SOFT if step.is_over_soft else Code.ALLOWED
    else:
        code = Code.NEVER if step.is_permanent else Code.DENIED
    stated = {name: getattr(step, name) for name in FIELDS if getattr(step, name) is not None}
    return {"code": code, **stated}


FIELDS = ("remaining", "retry_after_ns", "reset_after_ns", "delay_ns")
