"""Groups of checks on several keys of several rules: both engines against one replay per key."""

from copy import deepcopy

from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter import Engine, EngineRule, Limit, compiled_tables
from simulations.oracle import Answer, Replay, Terms
from tests.programs import require_compiled
from tests.simulations.oracle.drawn import limits
from tests.simulations.oracle.engines import SECRET, answer_in

BEGIN = 17 * 10**17
WITHOUT_VETO = 2
"""Rule that denies no group, as a rule in shadow mode does."""
members = st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 4))
"""(rule, key of the rule, cost)"""
frames = st.lists(st.lists(members, min_size=1, max_size=4), min_size=1, max_size=4)


def key_of(member: tuple[int, int, int]) -> bytes:
    return member[0].to_bytes(8, "big") + b"key-%d" % member[1]


class Replays:
    """One exact replay per key, and groups of checks that charge all of their keys or none."""

    def __init__(self, rules: list[Limit]) -> None:
        self._rules = rules
        self._keys: dict[bytes, Replay] = {}

    def group(self, group: list[tuple[int, int, int]], now: int) -> list[Answer | None]:
        """Return the answer of each check; None for a check that passes but is not charged."""
        before = deepcopy(self._keys)
        answers = [self._check(member, now) for member in group]
        vetoes = [
            not answer.is_admitted and member[0] != WITHOUT_VETO
            for answer, member in zip(answers, group, strict=True)
        ]
        if len(group) == 1 or not any(vetoes):
            return list(answers)
        self._keys = before
        return [None if answer.is_admitted else answer for answer in answers]

    def _check(self, member: tuple[int, int, int], now: int) -> Answer:
        terms = Terms.of(self._rules[member[0]])
        return self._keys.setdefault(key_of(member), Replay(terms)).check(member[2], now)


@settings(max_examples=120, deadline=None)
@given(
    rules=st.lists(limits, min_size=3, max_size=3),
    steps=st.lists(st.tuples(st.integers(0, 30) | st.integers(0, 10**11), frames), max_size=6),
)
def test_both_engines_decide_groups_as_the_oracle(
    rules: list[Limit], steps: list[tuple[int, list[list[tuple[int, int, int]]]]]
) -> None:
    require_compiled()
    known = {
        number: EngineRule(limit, denies_group=number != WITHOUT_VETO)
        for number, limit in enumerate(rules)
    }
    engines = [
        Engine(max_keys=99),
        *(
            Engine(max_keys=99, tables=compiled_tables(SECRET, keeps_keys=keeps))
            for keeps in (False, True)
        ),
    ]
    for engine in engines:
        engine.set_rules(known)
    replays, now = Replays(rules), BEGIN
    for gap, frame in steps:
        now += gap
        right = [answer for group in frame for answer in replays.group(group, now)]
        flat = [member for group in frame for member in group]
        at_repeated = [is_repeated(group) for group in frame for _ in group]
        for engine in engines:
            found = engine.decide(
                [key_of(member) for member in flat],
                [member[2] for member in flat],
                [len(group) for group in frame],
                [],
                [],
                now,
            )
            for at, answer in enumerate(right):
                is_uncharged = found.row(at).code.name == "UNCHARGED"
                assert is_uncharged == (answer is None), (at, found)
                if answer is not None:
                    stated = answer_in(found, at)
                    assert stated.is_admitted is answer.is_admitted, at
                    if not at_repeated[at]:
                        assert facts(stated) == facts(answer), at


def is_repeated(group: list[tuple[int, int, int]]) -> bool:
    """Return whether a group has a key twice; a denial then states the wait of both checks."""
    return len({key_of(member) for member in group}) < len(group)


def facts(answer: Answer) -> tuple[object, ...]:
    """Return the facts that do not depend on other keys; slots are numbered per rule."""
    return (
        answer.code,
        answer.remaining,
        answer.retry_after,
        answer.reset_after,
        answer.delay,
        bool(answer.slot),
    )
