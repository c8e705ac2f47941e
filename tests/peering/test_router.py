import asyncio
from itertools import count
from math import inf

import pytest
import trio

from hashring import Member, NodeId, Ring, View, shard_of
from ringfence.errors import AccessDenied
from ringfence.limiter import Algorithm, Code, Engine, EngineRule, Limit
from ringfence.peering.coalescer import new_pending_batch
from ringfence.peering.engine_choice import decide_by
from ringfence.peering.failure_policy import FailurePolicy
from ringfence.peering.link.round_trips import HedgingBudget
from ringfence.peering.router import Router, Routes
from ringfence.peering.target import SHED, TimedOut
from ringfence.rules import OnFailure, Rule, encode_key
from ringfence.runtime import current_time
from ringfence.wire import MAX_KEYS, Batch, Op, Results, Source

MINUTE = 60_000_000_000
RING = View.of(Member(NodeId(name)) for name in "abc").ring("dc1")
LONE = View.of([Member(NodeId("a"))]).ring("dc1")
PLAIN, SHADOW, LOCAL, DENY, PLACES = range(1, 6)
"""Identities of the rules that every member here knows."""

COUNTED = Limit.of_ns(3, MINUTE, Algorithm.FIXED_WINDOW)
RULES = {
    PLAIN: Rule(PLAIN, "d", (("p", None),), COUNTED),
    SHADOW: Rule(SHADOW, "d", (("s", None),), COUNTED, shadow=True),
    LOCAL: Rule(LOCAL, "d", (("l", None),), COUNTED, on_failure=OnFailure.LOCAL),
    DENY: Rule(DENY, "d", (("x", None),), COUNTED, on_failure=OnFailure.DENY),
    PLACES: Rule(PLACES, "d", (("c", None),), Limit.of_ns(3, MINUTE, Algorithm.CONCURRENCY)),
}
UNKNOWN = 99
NOW = MINUTE // 2
"""In the middle of a window, so that nothing here was charged in the one before."""


class HandClock:
    def now(self):
        return NOW


class CountingMember:
    """A target that counts, and can be lost or slow."""

    def __init__(self):
        self.engine = Engine(max_keys=100_000)
        self.engine.set_rules(
            {number: EngineRule(rule.limit, not rule.shadow) for number, rule in RULES.items()}
        )
        self.is_lost = False
        self.sheds = False
        self.dones = []
        self.timeout = inf
        """What is known of its round trips."""
        self.answers_others = False
        self.holds = None
        """Answers that wait to be let go; None when it answers at once."""
        self.asked = []
        self.identity = (id(self), 1, 0)

    def identify(self):
        return self.identity

    def answer_timeout(self, least, most):
        return min(most, max(least, self.timeout))

    def is_alive(self):
        return self.answers_others

    def ask(self, batch, *, hops, as_standby, done):
        self.asked.append((batch, hops, as_standby))
        self.dones.append(done)
        self._decide(batch, as_standby, done)
        return None if self.is_lost else self

    def _decide(self, batch, as_standby, done):
        if self.sheds or self.is_lost:
            done(SHED if self.sheds else None)
            return
        source = Source.STANDBY if as_standby else Source.OWNER
        verdicts = Results(decide_by(self.engine, batch, NOW), [source] * len(batch))
        if self.holds is None:
            done(verdicts)
        else:
            self.holds.append(lambda: done(verdicts))

    def let_go(self):
        holds, self.holds = self.holds, None
        for answer in holds:
            answer()

    def left(self, key):
        return self.engine.decide([key], [0], [], [], [], NOW).remaining[0]


class Town:
    """Three members, a router to them, and keys by who owns them."""

    def __init__(self, ring=RING, patience=None):
        self.ring = ring
        self.members = {member.name: CountingMember() for member in ring.members}
        policy = FailurePolicy(RULES.get, HandClock(), 1000)
        self.router = Router(policy.decide, patience=patience)
        self.router.routes = Routes(ring, self.members)

    def owner(self, key):
        return self.members[self.ring.owner(shard_of(key))]

    def standby(self, key):
        return self.members[self.ring.standby(shard_of(key))]

    def left(self, key):
        return self.owner(key).left(key)

    def ids_at_standby(self, key):
        return self.standby(key).asked[0][0].ids

    async def check(self, keys, groups=(), costs=None, **how):
        batch = Batch(Op.CHECK, list(keys), list(costs or [1] * len(keys)), list(groups))
        return await self.router.decide(batch, vetoes(batch), **how)


def vetoes(batch):
    return lambda row: RULES.get(int.from_bytes(batch.keys[row][:8], "big")) is not RULES[SHADOW]


def key_of(owner, rule=PLAIN, skip=0, standby=None):
    """A key that `owner` decides, the one after `skip` others."""
    for number in count():
        key = encode_key(rule, [str(number)])
        shard = shard_of(key)
        if RING.owner(shard) == owner and standby in (None, RING.standby(shard)):
            if not skip:
                return key
            skip -= 1
    raise AssertionError


def codes(verdicts):
    return verdicts.outcomes.codes


# -- owner, standby, fallback ----------------------------------------------------------------------


async def test_a_lone_check_is_decided_by_its_owner_alone():
    town = Town()
    key = key_of("b")

    verdicts = await town.check([key])

    assert codes(verdicts) == [Code.ALLOWED]
    assert verdicts.sources == [Source.OWNER]
    assert [len(member.asked) for member in town.members.values()] == [0, 1, 0]
    assert town.left(key) == 2


async def test_each_key_of_many_is_decided_by_its_owner_in_the_callers_order():
    town = Town()
    keys = [key_of(owner, skip=skip) for skip in range(5) for owner in "cab"]

    verdicts = await town.check(keys, costs=[1 + place % 4 for place in range(15)])

    expected = [3 - (1 + place % 4) if place % 4 < 3 else 3 for place in range(15)]
    assert verdicts.outcomes.remaining == expected
    assert [code == Code.NEVER for code in codes(verdicts)] == [
        place % 4 == 3 for place in range(15)
    ]
    assert [town.left(key) for key in keys] == expected


async def test_when_the_owner_is_lost_the_standby_decides_in_its_place():
    town = Town()
    key = key_of("a")
    town.owner(key).is_lost = True

    verdicts = await town.check([key])

    assert codes(verdicts) == [Code.ALLOWED]
    assert verdicts.sources == [Source.STANDBY]
    assert [(hops, as_standby) for _, hops, as_standby in town.standby(key).asked] == [(0, True)]


async def test_who_owns_a_key_since_the_members_changed_is_asked_as_its_owner():
    """While the lost owner of one is waited for it goes; the other's stays and is as silent."""
    town = Town()
    gone, stays = key_of("a", standby="c"), key_of("b", standby="c")
    without_a = Ring.of(member for member in RING.members if member.name != "a")
    later = Routes(without_a, town.members)

    def fall_silent(batch, *, hops, as_standby, done):
        town.router.routes = later
        done(None)

    for name in "ab":
        town.members[name].ask = fall_silent
    verdicts = await town.check([gone, stays])

    assert verdicts.sources == [Source.OWNER, Source.STANDBY]
    assert [(len(batch), as_standby) for batch, _, as_standby in town.members["c"].asked] == [
        (1, False),
        (1, True),
    ]


async def test_only_the_rows_of_a_lost_owner_go_to_standbys():
    town = Town()
    keys = [key_of(owner) for owner in "abc"]
    town.members["b"].is_lost = True

    verdicts = await town.check(keys)

    assert verdicts.sources == [Source.OWNER, Source.STANDBY, Source.OWNER]
    assert codes(verdicts) == [Code.ALLOWED] * 3


async def test_when_nobody_can_be_had_the_rules_policy_decides():
    town = Town()
    for member in town.members.values():
        member.is_lost = True

    verdicts = await town.check([key_of("a"), key_of("b", DENY), key_of("c", LOCAL)])

    assert codes(verdicts) == [Code.ALLOWED, Code.DENIED, Code.ALLOWED]
    assert verdicts.sources == [Source.POLICY, Source.POLICY, Source.LOCAL]


async def test_a_member_that_may_not_be_asked_is_the_last_one_asked():
    town = Town()
    for batch in ([key_of("a")], [key_of("a"), key_of("b")]):
        asked = []

        def refuse(part, *, hops, as_standby, done, asked=asked):
            asked.append(as_standby)
            done(AccessDenied("no scope"))

        town.members["a"].ask = refuse
        verdicts = await town.check(batch)

        assert isinstance(verdicts.refusal, AccessDenied)
        assert asked == [False]
    assert (await town.check([key_of("b")])).refusal is None


async def test_a_lone_check_falls_back_too():
    town = Town()
    for member in town.members.values():
        member.is_lost = True

    assert (await town.check([key_of("a")])).sources == [Source.POLICY]
    assert codes(await town.check([key_of("a", DENY)])) == [Code.DENIED]


async def test_without_a_standby_the_policy_decides():
    town = Town(LONE)
    town.members["a"].is_lost = True

    assert (await town.check([key_of("a")])).sources == [Source.POLICY]


async def test_before_the_members_are_known_the_policy_decides():
    town = Town()
    town.router.routes = None

    verdicts = await town.check([key_of("a"), key_of("b", DENY)])

    assert verdicts.sources == [Source.POLICY, Source.POLICY]
    assert not any(member.asked for member in town.members.values())


async def test_a_node_that_forwards_says_so():
    town = Town()
    key = key_of("a")

    await town.check([key], hops=1)

    assert town.owner(key).asked[0][1] == 1


async def test_checks_that_no_member_answers_let_other_tasks_run():
    town = Town()
    town.router.routes = None
    has_run = trio.Event()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(set_, has_run)
        with trio.fail_after(5):
            while not has_run.is_set():
                await town.check([key_of("a")])


async def set_(event):
    event.set()


# -- a bound on the search -------------------------------------------------------------------------


async def test_what_is_undecided_when_the_time_is_over_falls_back_and_the_rest_stays(
    autojump_clock,
):
    town = Town()
    slow, quick = key_of("a", DENY), key_of("b")
    town.owner(slow).holds = []

    with trio.fail_after(0.2):
        verdicts = await town.check([slow, quick], within=0.1)

    assert codes(verdicts) == [Code.DENIED, Code.ALLOWED]
    assert verdicts.sources == [Source.POLICY, Source.OWNER]


async def test_a_lone_check_is_bounded_too(autojump_clock):
    town = Town()
    key = key_of("a")
    town.owner(key).holds = []

    with trio.fail_after(0.2):
        verdicts = await town.check([key], within=0.1)

    assert verdicts.sources == [Source.POLICY]


async def test_an_allowed_check_stays_counted_when_its_owner_answers_late(autojump_clock):
    town = Town()
    key = key_of("a")
    owner = town.owner(key)
    owner.holds = []

    await town.check([key], within=0.1)
    owner.let_go()

    assert town.left(key) == 2


async def test_a_denied_check_is_given_back_when_its_owner_allows_it_late(autojump_clock):
    town = Town()
    key = key_of("a", DENY)
    owner = town.owner(key)
    owner.holds = []

    assert codes(await town.check([key], within=0.1)) == [Code.DENIED]
    owner.let_go()

    assert town.left(key) == 3


async def test_a_place_that_is_granted_too_late_is_released(autojump_clock):
    town = Town()
    key = key_of("a", PLACES)
    owner = town.owner(key)
    owner.holds = []

    await town.check([key], within=0.1)
    assert owner.left(key) == 2
    owner.let_go()

    assert owner.left(key) == 3


# -- all or nothing --------------------------------------------------------------------------------


async def test_a_group_of_one_owner_is_left_to_it():
    town = Town()
    keys = [key_of("a"), key_of("a", skip=1)]

    verdicts = await town.check(keys, [2], [1, 4])

    assert codes(verdicts) == [Code.UNCHARGED, Code.NEVER]
    assert [town.left(key) for key in keys] == [3, 3]
    assert len(town.members["a"].asked) == 1


async def test_a_group_of_several_owners_is_undone_where_it_was_charged():
    town = Town()
    keys = [key_of("a"), key_of("b"), key_of("c")]

    verdicts = await town.check(keys, [3], [1, 4, 2])

    assert codes(verdicts) == [Code.UNCHARGED, Code.NEVER, Code.UNCHARGED]
    assert verdicts.outcomes.remaining == [3, 3, 3]
    assert [town.left(key) for key in keys] == [3, 3, 3]


async def test_only_the_denied_group_is_undone():
    town = Town()
    groups = [
        [key_of("a"), key_of("b")],
        [key_of("a", skip=1), key_of("b", skip=1)],
        [key_of("c")],
    ]

    verdicts = await town.check(
        [key for group in groups for key in group], [2, 2, 1], [1, 1, 1, 4, 1]
    )

    assert codes(verdicts) == [Code.ALLOWED, Code.ALLOWED, Code.UNCHARGED, Code.NEVER, Code.ALLOWED]
    assert [[town.left(key) for key in group] for group in groups] == [[2, 2], [3, 3], [2]]


async def test_a_shadow_rule_elsewhere_undoes_nothing():
    town = Town()
    keys = [key_of("a"), key_of("b", SHADOW)]

    verdicts = await town.check(keys, [2], [1, 4])

    assert codes(verdicts) == [Code.ALLOWED, Code.NEVER]
    assert town.left(keys[0]) == 2


async def test_a_rule_that_one_owner_does_not_know_undoes_the_group_so_that_it_can_be_asked_again():
    town = Town()
    keys = [key_of("a"), key_of("b", UNKNOWN)]

    verdicts = await town.check(keys, [2])

    assert codes(verdicts) == [Code.UNCHARGED, Code.UNKNOWN_RULE]
    assert town.left(keys[0]) == 3


async def test_a_group_that_the_policy_denies_in_part_is_undone_at_its_owners():
    town = Town()
    reached, lost = key_of("a"), key_of("b", DENY, standby="c")
    town.members["b"].is_lost = town.members["c"].is_lost = True

    verdicts = await town.check([reached, lost], [2])

    assert codes(verdicts) == [Code.UNCHARGED, Code.DENIED]
    assert town.left(reached) == 3


async def test_a_group_that_is_denied_elsewhere_is_undone_in_this_process_too():
    town = Town()
    here, there = key_of("b", LOCAL, standby="c"), key_of("a")
    town.members["b"].is_lost = town.members["c"].is_lost = True

    for _ in range(5):
        denied = await town.check([here, there], [2], [1, 4])
        assert codes(denied) == [Code.UNCHARGED, Code.NEVER]
    allowed = await town.check([here, there], [2], [3, 1])

    assert codes(allowed) == [Code.ALLOWED, Code.ALLOWED]
    assert allowed.sources == [Source.LOCAL, Source.OWNER]


async def test_a_standby_gets_back_what_it_was_charged():
    town = Town()
    moved, denied = key_of("b", standby="c"), key_of("a")
    town.members["b"].is_lost = True

    verdicts = await town.check([moved, denied], [2], [1, 4])

    assert codes(verdicts) == [Code.UNCHARGED, Code.NEVER]
    assert town.members["c"].left(moved) == 3
    assert [as_standby for *_, as_standby in town.members["c"].asked] == [True, True]


async def test_a_place_in_a_denied_group_is_released_and_not_handed_out():
    town = Town()
    place, denied = key_of("a", PLACES), key_of("b")

    verdicts = await town.check([place, denied], [2], [1, 4])

    assert codes(verdicts) == [Code.UNCHARGED, Code.NEVER]
    assert verdicts.outcomes.leases == [0, 0]
    assert town.left(place) == 3


async def test_a_late_answer_to_a_denied_group_is_given_back(autojump_clock):
    town = Town()
    slow, denied = key_of("a"), key_of("b")
    owner = town.owner(slow)
    owner.holds = []

    verdicts = await town.check([slow, denied], [2], [1, 4], within=0.1)
    owner.let_go()

    assert codes(verdicts) == [Code.UNCHARGED, Code.NEVER]
    assert town.left(slow) == 3


async def test_a_refund_tells_how_long_ago_the_charge_was_at_most(autojump_clock):
    town = Town()
    quick, slow = key_of("a"), key_of("b")
    town.owner(slow).holds = []

    async with trio.open_nursery() as nursery:
        nursery.start_soon(town.check, [quick, slow], [2], [1, 4])
        await trio.sleep(0.25)
        town.owner(slow).let_go()

    refund, hops, _ = town.owner(quick).asked[-1]
    assert (refund.op, refund.costs, hops) == (Op.REFUND, [1], 0)
    assert refund.ages_ns == [300_000_000]  # It may be slower on its way than the check was.


# -- cancelled callers -----------------------------------------------------------------------------


async def test_a_cancelled_check_spends_nothing_even_when_it_is_answered_later(autojump_clock):
    town = Town()
    key = key_of("a")
    owner = town.owner(key)
    owner.holds = []

    with trio.move_on_after(0.1) as scope:
        await town.check([key])
    owner.let_go()

    assert scope.cancelled_caught
    assert town.left(key) == 3


async def test_a_cancelled_group_is_given_back_where_it_was_charged_and_will_be(autojump_clock):
    town = Town()
    quick, slow = key_of("a"), key_of("b")
    owner = town.owner(slow)
    owner.holds = []

    with trio.move_on_after(0.1):
        await town.check([quick, slow], [2])

    assert town.left(quick) == 3
    owner.let_go()
    assert town.left(slow) == 3


async def test_a_cancelled_refund_stays_given_back(autojump_clock):
    town = Town()
    key = key_of("a")
    await town.check([key], costs=[2])
    town.owner(key).holds = []
    refund = Batch(Op.REFUND, [key], [2])

    with trio.move_on_after(0.1):
        await town.router.decide(refund, vetoes(refund))
    town.owner(key).let_go()

    assert town.left(key) == 3


# -- large batches ---------------------------------------------------------------------------------


async def test_no_member_is_asked_more_at_once_than_a_frame_holds():
    town = Town(LONE)
    keys = [encode_key(PLAIN, [str(number)]) for number in range(MAX_KEYS + 10)]

    verdicts = await town.check(keys)

    assert [len(batch) for batch, *_ in town.members["a"].asked] == [MAX_KEYS, 10]
    assert codes(verdicts) == [Code.ALLOWED] * len(keys)


async def test_a_group_is_never_cut():
    town = Town(LONE)
    keys = [encode_key(PLAIN, [str(number)]) for number in range(MAX_KEYS + 2)]
    groups = [MAX_KEYS - 1, 3]

    verdicts = await town.check(keys, groups)

    assert [batch.groups for batch, *_ in town.members["a"].asked] == [[MAX_KEYS - 1], [3]]
    assert codes(verdicts) == [Code.ALLOWED] * len(keys)


async def test_a_standby_is_asked_under_the_identity_by_which_the_slow_owner_was_asked(
    autojump_clock,
):
    town = Town(patience=0.007)
    key = key_of("a")
    town.owner(key).holds = []
    begun = trio.current_time()

    verdicts = await town.check([key])

    assert trio.current_time() - begun < 0.01
    assert verdicts.sources == [Source.STANDBY]
    assert town.standby(key).left(key) == 2

    assert town.ids_at_standby(key) == [town.owner(key).identity]
    town.owner(key).let_go()
    assert len(town.owner(key).asked) == 1, "both count one check: nothing is given back"


async def test_an_owner_that_answers_within_the_patience_decides_alone(autojump_clock):
    town = Town(patience=0.007)
    key = key_of("a")

    verdicts = await town.check([key])

    assert verdicts.sources == [Source.OWNER]
    assert town.standby(key).asked == []


async def test_a_slow_owner_is_waited_for_when_there_is_no_standby_to_ask(autojump_clock):
    town = Town(LONE, patience=0.007)
    key = encode_key(PLAIN, ["x"])
    town.owner(key).holds = []

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def answer_late():
            await trio.sleep(0.015)
            town.owner(key).let_go()

        verdicts = await town.check([key], within=0.018)

    assert verdicts.sources == [Source.OWNER]
    assert town.left(key) == 2


async def test_when_owner_and_standby_both_answer_late_nothing_is_given_back(autojump_clock):
    town = Town(patience=0.007)
    key = key_of("a")
    town.owner(key).holds, town.standby(key).holds = [], []

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def answer_both():
            await trio.sleep(0.015)
            town.owner(key).let_go()
            town.standby(key).let_go()

        verdicts = await town.check([key], within=0.018)

    assert verdicts.sources == [Source.OWNER]
    assert len(town.owner(key).asked) == len(town.standby(key).asked) == 1


async def test_what_gives_back_is_never_asked_twice_for_impatience(autojump_clock):
    town = Town(patience=0.007)
    key = key_of("a")
    await town.check([key])
    town.owner(key).holds = []

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def answer_late():
            await trio.sleep(0.1)
            town.owner(key).let_go()

        refund = Batch(Op.REFUND, [key], [1])
        verdicts = await town.router.decide(refund, vetoes(refund))

    assert verdicts.sources == [Source.OWNER]
    assert town.standby(key).asked == []


# -- second asks -----------------------------------------------------------------------------------


async def test_patience_follows_what_is_known_of_the_owners_round_trips(autojump_clock):
    for timeout, expected in ((0.0, 0.01), (0.03, 0.03), (0.5, 0.1)):
        town = Town(patience=0.1)
        key = key_of("a")
        town.owner(key).holds = []
        town.owner(key).timeout = timeout
        begun = trio.current_time()

        assert (await town.check([key])).sources == [Source.STANDBY]

        assert trio.current_time() - begun == pytest.approx(expected)


@pytest.mark.parametrize("is_lone", [True, False])
async def test_while_all_owners_are_slow_few_checks_are_asked_twice_and_none_by_policy(
    autojump_clock, is_lone
):
    town = Street(patience=0.1)
    for member in town.members.values():
        member.timeout = 0.0
    keys = [encode_key(PLAIN, [str(number)]) for number in range(2000)]
    found = []

    async def check(number, key):
        await trio.sleep(number / 5000)
        if is_lone:
            found.append((await town.check_one(key, within=0.25))[0])
        else:
            found.extend((await town.check([key], within=0.25)).sources)

    async def answer_late(member):
        while True:
            member.holds = []
            await trio.sleep(0.05)
            member.let_go()

    async with trio.open_nursery() as nursery:
        for member in town.members.values():
            nursery.start_soon(answer_late, member)
        async with trio.open_nursery() as asking:
            for number, key in enumerate(keys):
                asking.start_soon(check, number, key)
        nursery.cancel_scope.cancel()

    assert len(found) == 2000
    assert set(found) <= {Source.OWNER, Source.STANDBY}
    asked = [
        as_standby
        for member in town.members.values()
        for batch, _, as_standby in member.asked
        if batch.op is Op.CHECK
    ]
    assert 0 < town.router.hedging.taken <= 16 + 0.02 * 2000
    assert sum(asked) <= 16 + 0.02 * 2000
    assert town.router.hedging.checks == 2000


async def test_the_standby_of_an_owner_that_is_lost_needs_no_budget(autojump_clock):
    town = Town(patience=0.1)
    town.members["a"].is_lost = True
    keys = [key_of("a", skip=number) for number in range(100)]

    for key in keys:
        assert (await town.check([key])).sources == [Source.STANDBY]

    assert town.router.hedging.taken == 0


async def test_without_budget_an_owner_is_waited_for_and_its_standby_asked_when_it_is_lost(
    autojump_clock,
):
    town = Town(patience=0.01)
    town.router.hedging = HedgingBudget(burst=0)
    key = key_of("a")
    owner = town.owner(key)
    owner.holds = []

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def lose():
            await trio.sleep(0.05)
            assert town.standby(key).asked == []
            owner.dones[-1](None)

        verdicts = await town.check([key], within=0.25)

    assert verdicts.sources == [Source.STANDBY]


# -- overload --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_lone", [True, False])
async def test_what_an_owner_sheds_is_decided_by_policy_at_once_and_nobody_else_is_asked(
    autojump_clock, is_lone
):
    town = Street(patience=0.1)
    plain, deny, alone = key_of("a"), key_of("a", DENY), key_of("a", LOCAL)
    town.members["a"].sheds = True
    found = []
    for key in (plain, deny, alone):
        if is_lone:
            found.append(await town.check_one(key, within=0.25))
        else:
            verdicts = await town.check([key], within=0.25)
            found.append((verdicts.sources[0], verdicts.outcomes.codes[0]))

    assert found == [
        (Source.SHED, Code.ALLOWED),
        (Source.SHED, Code.DENIED),
        (Source.LOCAL, Code.ALLOWED),
    ]
    assert trio.current_time() < 0.01
    assert town.standby(plain).asked == []


async def test_at_the_deadline_it_tells_a_busy_owner_from_one_that_is_out_of_reach(autojump_clock):
    for answers_others, source in ((True, Source.SHED), (False, Source.POLICY)):
        town = Street(LONE, patience=0.1)
        owner = town.members["a"]
        owner.holds, owner.answers_others = [], answers_others
        key = encode_key(PLAIN, ["x"])

        assert (await town.check_one(key, within=0.25))[0] is source
        assert (await town.check([key], within=0.25)).sources == [source]


# -- lone checks -----------------------------------------------------------------------------------


class Door:
    """A member that lone checks join one by one, as over a link."""

    def __init__(self, member):
        self._member = member

    def __getattr__(self, name):
        return getattr(self._member, name)

    def join(self, key, cost, within):
        crowd = new_pending_batch(current_time(), 1)
        crowd.join(key, cost)
        if within is not None:
            trio.lowlevel.spawn_system_task(self._be_late, crowd, within)
        crowd.asked = self._member.ask(crowd.batch, hops=0, as_standby=False, done=crowd.resolve)
        return crowd

    async def _be_late(self, crowd, within):
        await trio.sleep(within)
        crowd.be_late()


class Street(Town):
    """A town that lone checks are asked in."""

    def __init__(self, ring=RING, patience=None):
        super().__init__(ring, patience)
        self.router.routes = Routes(ring, {name: Door(each) for name, each in self.members.items()})

    async def check_one(self, key, within=None):
        """As the limiter does; the row's source and code."""
        waiting = self.router.join(key, 1, within)
        row = await waiting.wait(self.router.refund)
        if row is None or isinstance(row, TimedOut):
            row = await self.router.decide_one(key, 1, waiting, row, within)
        return Source(row[7]), Code(row[0])


async def test_a_lone_check_of_a_slow_owner_is_joined_by_the_standby(autojump_clock):
    town = Street(patience=0.007)
    key = key_of("a")
    town.owner(key).holds = []
    begun = trio.current_time()

    assert await town.check_one(key) == (Source.STANDBY, Code.ALLOWED)

    assert trio.current_time() - begun < 0.01
    town.owner(key).let_go()
    assert len(town.owner(key).asked) == 1, "both count one check: nothing is given back"
    assert town.ids_at_standby(key) == [town.owner(key).identity]


async def test_a_lone_check_has_an_answer_by_its_deadline_and_what_comes_later_stays_counted(
    autojump_clock,
):
    town = Street(patience=0.007)
    key = key_of("a")
    for member in (town.owner(key), town.standby(key)):
        member.holds = []
    begun = trio.current_time()

    assert await town.check_one(key, within=0.018) == (Source.POLICY, Code.ALLOWED)

    assert trio.current_time() - begun == pytest.approx(0.018)
    town.owner(key).let_go()
    assert town.owner(key).left(key) == 2


async def test_a_deadline_below_the_patience_asks_nobody_else(autojump_clock):
    town = Street(patience=0.007)
    key = key_of("a")
    town.owner(key).holds = []

    begun = trio.current_time()

    assert await town.check_one(key, within=0.002) == (Source.POLICY, Code.ALLOWED)

    assert trio.current_time() - begun == pytest.approx(0.002)
    assert town.standby(key).asked == []


async def test_a_neighbours_short_deadline_takes_no_patience_from_a_lone_check(autojump_clock):
    town = Street(patience=0.007)
    key = key_of("a")
    town.owner(key).holds = []
    waiting = town.router.join(key, 1, None)

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def be_late_then_answer():
            await trio.sleep(0.001)
            waiting.be_late()
            await trio.sleep(0.003)
            town.owner(key).let_go()

        late = await waiting.wait(town.router.refund)
        row = await town.router.decide_one(key, 1, waiting, late, None)

    assert row[7] == Source.OWNER
    assert town.standby(key).asked == []
    assert town.owner(key).left(key) == 2


def test_a_charge_that_asyncio_tells_outside_of_any_task_is_given_back():
    async def main():
        town = Street()
        key = key_of("a")
        town.owner(key).holds = []
        waiting = asyncio.ensure_future(town.check_one(key))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        asyncio.get_running_loop().call_soon(town.owner(key).let_go)
        await asyncio.sleep(0)
        return town.owner(key).left(key)

    assert asyncio.run(main()) == 3
