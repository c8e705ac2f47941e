"""Restored counters: the compiled engine accepts and rejects the states that the reference does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter import Snapshot
from tests.programs import require_compiled
from tests.ringfence.limiter.compiled.pair import LIMITS, Pair, key_of

require_compiled()

NOW = 1_700_000_000 * 10**9

steps = st.sampled_from([0, 0, 0, 0, -3, -2, -1, 1, 2, 6, 2**60 - 2, 2**60, 2**62, 2**63, 2**64])


@pytest.mark.parametrize("rule", range(len(LIMITS)))
@given(
    changes=st.lists(steps, max_size=4),
    length=st.sampled_from([0, 0, 0, 0, -1, 1]),
    kept=st.integers(0, 3),
    carries_other=st.booleans(),
)
@settings(max_examples=150)
def test_any_restored_state_has_equal_effects_in_both_engines(
    rule: int, changes: list[int], length: int, kept: int, carries_other: bool
) -> None:
    """The state is that of a used counter; then each number changes, and perhaps their count."""
    sender, receiver = Pair([rule], NOW), Pair([rule], NOW)
    sender.decide([(0, 1, 1, 0)] * 2)
    for _ in range(kept):
        receiver.decide([(0, 1, 1, 0)])
    key = key_of(0, 1)
    state = [*sender.reference.snapshot([key], NOW).states, [0, 0]][0]
    state = [number + step for number, step in zip(state, [*changes, 0, 0, 0, 0], strict=False)]
    state = state[:length] if length < 0 else state + [1] * length
    limit = LIMITS[(rule + 1) % len(LIMITS) if carries_other else rule]
    snapshot = Snapshot([key], [state], [limit], [0], [])

    expected, found = (engine.restore(snapshot, NOW) for engine in receiver.engines)

    assert found == expected
    receiver.compare([key])
    receiver.decide([(0, 1, 0, 0), (0, 1, 1, 0)])
    receiver.compare([key])
