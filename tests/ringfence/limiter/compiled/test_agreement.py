from random import Random
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.programs import require_compiled
from tests.ringfence.limiter.compiled.pair import COSTS, DAY_NS, GAPS_NS, LIMITS, Pair, key_of

require_compiled()

from ringfence.limiter.compiled import table  # noqa: E402 - only where the modules were built

limits = st.integers(0, len(LIMITS) - 1)
rules = st.integers(0, 3)
numbers = st.integers(0, 3)
costs = st.sampled_from(COSTS)
gaps = st.sampled_from(GAPS_NS)
carried = st.just(0) | st.just(0) | st.integers(0, len(LIMITS))
rows = st.tuples(rules, numbers, costs, carried)
KEYS = [key_of(rule_, number) for rule_ in range(4) for number in range(4)]


class Agreement(RuleBasedStateMachine):
    """Calls in any order, after which the compiled engine and the reference engine must agree."""

    @initialize(
        known=st.lists(limits, min_size=3, max_size=3), now=st.sampled_from([DAY_NS, 17 * 10**17])
    )
    def begin(self, known: list[int], now: int) -> None:
        self.pair = Pair(known, now)

    @rule(where=st.tuples(rules, numbers), cost=costs, gap=gaps)
    def a_lone_check(self, where: tuple[int, int], cost: int, gap: int) -> None:
        self.pair.now += gap
        self.pair.decide_lone(*where, cost)

    @rule(asked=st.lists(rows, max_size=12), gap=gaps)
    def lone_checks(self, asked: list[tuple[int, int, int, int]], gap: int) -> None:
        self.pair.now += gap
        self.pair.decide(asked)

    @rule(asked=st.lists(st.tuples(rules, numbers, costs), max_size=12), gap=gaps)
    def lone_checks_with_the_limits_of_rules(
        self, asked: list[tuple[int, int, int]], gap: int
    ) -> None:
        self.pair.now += gap
        self.pair.decide([(*row, 0) for row in asked])

    @rule(first=st.lists(rows, min_size=1, max_size=4), second=st.lists(rows, max_size=3), gap=gaps)
    def groups(
        self,
        first: list[tuple[int, int, int, int]],
        second: list[tuple[int, int, int, int]],
        gap: int,
    ) -> None:
        self.pair.now += gap
        self.pair.decide(first + second, groups=[len(first)] + [1] * len(second))

    @rule(groups=st.lists(st.tuples(gaps, st.lists(st.tuples(rules, numbers, costs), max_size=3))))
    def checks_at_their_own_instants(
        self, groups: list[tuple[int, list[tuple[int, int, int]]]]
    ) -> None:
        self.pair.decide_each(groups)

    @rule(where=st.tuples(rules, numbers), cost=st.integers(0, 9), age=gaps)
    def refund(self, where: tuple[int, int], cost: int, age: int) -> None:
        self.pair.refund(*where, cost, age)

    @rule(where=st.tuples(rules, numbers), slot_id=st.integers(0, 20), gap=gaps)
    def renew(self, where: tuple[int, int], slot_id: int, gap: int) -> None:
        self.pair.now += gap
        self.pair.renew(*where, slot_id)

    @rule(where=st.tuples(rules, numbers), slot_id=st.integers(1, 20))
    def release(self, where: tuple[int, int], slot_id: int) -> None:
        self.pair.refund(*where, 1, 0, slot_id)

    @rule(where=st.tuples(rules, numbers), units=st.sampled_from([0, 1, 5, 2**45]), age=gaps)
    def charge(self, where: tuple[int, int], units: int, age: int) -> None:
        self.pair.charge(*where, units, age, 0)

    @rule(
        where=st.tuples(rules, numbers),
        cost=st.sampled_from([*COSTS, 2**53, 2**62]),
        limit=carried,
        gap=gaps,
    )
    def charge_now(self, where: tuple[int, int], cost: int, limit: int, gap: int) -> None:
        self.pair.now += gap
        self.pair.charge_now(*where, cost, limit)

    @rule(where=st.tuples(rules, numbers), cells=st.lists(st.integers(0, 9), max_size=4))
    def merge_remote(self, where: tuple[int, int], cells: list[int]) -> None:
        self.pair.merge_remote(*where, cells)

    @rule(where=st.tuples(rules, numbers))
    def reset(self, where: tuple[int, int]) -> None:
        self.pair.reset(*where)

    @rule(known=st.lists(limits, max_size=4), shared=st.sets(rules, max_size=1))
    def other_limits(self, known: list[int], shared: set[int]) -> None:
        self.pair.set_rules(known, sorted(shared))

    @rule(keys=st.sets(st.sampled_from(KEYS), max_size=6), later=gaps)
    def move(self, keys: set[bytes], later: int) -> None:
        self.pair.move(sorted(keys), later)

    @rule()
    def peek(self) -> None:
        self.pair.peek(KEYS)

    @invariant()
    def both_have_equal_counters(self) -> None:
        self.pair.compare(KEYS)


class SharedAgreement(Agreement):
    """Same calls when most limits are shared, and all counters except the last are packed rows."""

    @initialize(
        known=st.lists(limits, min_size=3, max_size=3), now=st.sampled_from([DAY_NS, 17 * 10**17])
    )
    def begin(self, known: list[int], now: int) -> None:
        self.patch = patch.object(table, "_MOST_OBJECTS", 1)
        self.patch.start()
        super().begin(known, now)
        self.pair.set_rules(known, shared=range(3))

    @rule(known=st.lists(limits, max_size=4), shared=st.sets(rules))
    def other_limits(self, known: list[int], shared: set[int]) -> None:
        super().other_limits(known, shared)

    def teardown(self) -> None:
        self.patch.stop()


TestAgreement = Agreement.TestCase
TestSharedAgreement = SharedAgreement.TestCase
for case in (TestAgreement, TestSharedAgreement):
    case.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)


def test_a_thousand_groups_at_their_own_instants_are_decided_alike() -> None:
    random = Random(5)
    groups = [
        (
            random.choice([0, 0, 1, 7, 30, 10**9, DAY_NS]),
            [(random.randrange(4), random.randrange(4), random.randrange(4)) for _ in range(size)],
        )
        for size in random.choices([1, 1, 2, 3], k=1000)
    ]
    for first in range(len(LIMITS) - 2):
        Pair([first, first + 1, first + 2], DAY_NS).decide_each(groups)
