"""Restored counters: the compiled engine accepts and rejects the states that the reference does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter import (
    Algorithm,
    Engine,
    EngineRule,
    Limit,
    Snapshot,
    compiled_tables,
)
from ringfence.limiter.serialization import MAX_NUMBERS
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


@pytest.mark.parametrize("entries", [MAX_NUMBERS // 2, MAX_NUMBERS // 2 + 1, MAX_NUMBERS + 3])
def test_a_long_log_is_packed_and_restored_as_by_the_reference(entries: int) -> None:
    """Some entries have several hits, and some follow after a long time."""
    limit = Limit.of_ns(10**6, 10**12, Algorithm.SLIDING_WINDOW_LOG)
    reference, compiled = Engine(max_keys=9), compiled_engine(limit)
    reference.set_rules({0: EngineRule(limit)})
    key, now = key_of(0, 1), NOW
    for entry in range(entries):
        now += 10**10 if entry % 1000 == 0 else 1 + entry % 3
        for engine in (reference, compiled):
            engine.decide([key], [1 + entry % 2], [], [], [], now)

    packed = compiled.pack([key], now)
    assert packed == reference.pack([key], now)
    assert len(packed.unpack().states[0]) <= MAX_NUMBERS

    receiver = compiled_engine(limit)
    assert receiver.restore(packed.unpack(), now) == 0
    assert receiver.used(key, now) == reference.used(key, now)
    assert receiver.pack([key], now) == packed


def test_memory_of_restored_logs_is_released() -> None:
    limit = Limit.of_ns(10**6, 10**12, Algorithm.SLIDING_WINDOW_LOG)
    engine = compiled_engine(limit)
    key = key_of(0, 1)
    states = [[3, 5], [10**12, 5], [9, 1, 8, 1, 7, 1], [9, 1, 10, 1], [5, 0], [5], [2, 1]]
    sizes = set()
    for _ in range(3):
        for state in states:
            engine.restore(Snapshot([key], [state], [limit], [0], []), NOW)
        sizes.add(engine.bytes_in_use)
        engine.reset([key], [], [], NOW)

    assert len(sizes) == 1
    assert engine.bytes_in_use == 0


def compiled_engine(limit: Limit) -> Engine:
    engine = Engine(max_keys=9, tables=compiled_tables(bytes(16), keeps_keys=True))
    engine.set_rules({0: EngineRule(limit)})
    return engine
