"""Restored counters: the compiled engine accepts and rejects the states that the reference does."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter import Snapshot
from tests.ringfence.limiter.compiled.pair import LIMITS, Pair, key_of

NOW = 1_700_000_000 * 10**9

numbers = st.one_of(
    st.integers(0, 8),
    st.integers(2**60 - 2, 2**60 + 2),
    st.integers(2**62 - 2, 2**64),
    st.integers(-2, 0),
)


@st.composite
def windows(draw: st.DrawFn, rule: int) -> int:
    """Return the number of a window around now, as the rule numbers its windows."""
    limit = LIMITS[rule]
    unit_ns = 10**9 if limit.calendar is not None else limit.period_ns // limit.slots
    return NOW // max(1, unit_ns) + draw(st.integers(-3, 3))


@st.composite
def states(draw: st.DrawFn) -> tuple[int, list[int]]:
    """Return a rule and a state that its counters may or may not have."""
    rule = draw(st.integers(0, len(LIMITS) - 1))
    first = draw(st.one_of(windows(rule), numbers))
    return rule, [first, *draw(st.lists(numbers, max_size=4))]


@given(states(), st.integers(0, 3), st.booleans())
@settings(max_examples=400)
def test_any_restored_state_has_equal_effects_in_both_engines(
    drawn: tuple[int, list[int]], before: int, carries_other: bool
) -> None:
    rule, state = drawn
    pair = Pair(range(len(LIMITS)), NOW)
    for _ in range(before):
        pair.decide([(rule, 1, 1, 0)])
    key, limit = key_of(rule, 1), LIMITS[(rule + 1) % len(LIMITS) if carries_other else rule]
    snapshot = Snapshot([key], [state], [limit], [0], [])

    expected, found = (engine.restore(snapshot, NOW) for engine in pair.engines)

    assert found == expected
    pair.compare([key])
    pair.decide([(rule, 1, 0, 0), (rule, 1, 1, 0)])
    pair.compare([key])
