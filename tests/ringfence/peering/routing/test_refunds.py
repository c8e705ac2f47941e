"""Refunds of denied groups, late answers and cancelled calls."""

import pytest
import trio
from msgspec.structs import replace

from ringfence.limiter import Code
from ringfence.peering.routing.refunds import age_ns_of
from ringfence.wire import Batch, Op, Source
from tests.ringfence.peering.routing.cluster import (
    DENY,
    LOCAL,
    LOG,
    NOW,
    PLAIN,
    RULES,
    SHADOW,
    SLOTS,
    UNKNOWN,
    Cluster,
    CountingMember,
    codes,
    denies_group,
    key_of,
)


async def test_an_allowed_check_stays_counted_when_its_owner_answers_late(autojump_clock):
    cluster = Cluster()
    key = key_of("a")
    owner = cluster.owner(key)
    owner.held_answers = []

    await cluster.check([key], within=0.1)
    owner.release_answers()

    assert cluster.left(key) == 2


async def test_a_denied_check_is_refunded_when_its_owner_allows_it_late(autojump_clock):
    cluster = Cluster()
    key = key_of("a", DENY)
    owner = cluster.owner(key)
    owner.held_answers = []

    assert codes(await cluster.check([key], within=0.1)) == [Code.DENIED]
    owner.release_answers()

    assert cluster.left(key) == 3


async def test_a_slot_that_is_granted_too_late_is_released(autojump_clock):
    cluster = Cluster()
    key = key_of("a", SLOTS)
    owner = cluster.owner(key)
    owner.held_answers = []

    await cluster.check([key], within=0.1)
    assert owner.left(key) == 2
    owner.release_answers()

    assert owner.left(key) == 3


async def test_the_owner_of_a_whole_group_decides_it_alone():
    cluster = Cluster()
    keys = [key_of("a"), key_of("a", skip=1)]

    results = await cluster.check(keys, [2], [1, 4])

    assert codes(results) == [Code.UNCHARGED, Code.NEVER]
    assert [cluster.left(key) for key in keys] == [3, 3]
    assert len(cluster.members["a"].asked) == 1


async def test_a_denied_group_of_several_owners_is_refunded():
    cluster = Cluster()
    keys = [key_of("a"), key_of("b"), key_of("c")]

    results = await cluster.check(keys, [3], [1, 4, 2])

    assert codes(results) == [Code.UNCHARGED, Code.NEVER, Code.UNCHARGED]
    assert results.outcomes.remaining == [3, 3, 3]
    assert [cluster.left(key) for key in keys] == [3, 3, 3]


async def test_two_refunds_of_the_same_group_have_one_identity():
    cluster = Cluster()
    checks = [(7, 1, 0), (7, 1, 1)]
    for _ in range(2):
        batch = Batch(Op.CHECK, [key_of("a"), key_of("b")], [1, 4], [2], ids=checks)
        await cluster.router.decide(batch, denies_group(batch))

    first, second = [
        asked.ids for asked, _, _ in cluster.members["a"].asked if asked.op is Op.REFUND
    ]
    assert first == second
    assert not {*first} & {*checks}  # The owner must not repeat the decision of the check.


async def test_refunds_of_different_clients_have_different_identities():
    cluster = Cluster()
    for session in (7, 8):
        checks = [(session, 1, 0), (session, 1, 1)]
        batch = Batch(Op.CHECK, [key_of("a"), key_of("b")], [1, 4], [2], ids=checks)
        await cluster.router.decide(batch, denies_group(batch))

    asked = [asked.ids for asked, _, _ in cluster.members["a"].asked if asked.op is Op.REFUND]
    assert len({identity for ids in asked for identity in ids}) == 2


async def test_a_client_refunds_with_the_identity_that_its_check_had_on_the_way():
    """A member that forwarded the check refunds late charges with the same identity."""
    cluster = Cluster()
    cluster.members["a"].identity = 7, 1, 0

    await cluster.check([key_of("a"), key_of("b")], [2], [1, 4])
    batch = Batch(Op.CHECK, [key_of("a"), key_of("b")], [1, 4], [2], ids=[(7, 1, 0), (7, 1, 1)])
    await cluster.router.decide(batch, denies_group(batch))

    by_client, by_member = [
        asked.ids[0] for asked, _, _ in cluster.members["a"].asked if asked.op is Op.REFUND
    ]
    assert by_client == by_member


class ForwardingMember(CountingMember):
    """Member that asks another owner for each row of a group."""

    def _decide(self, batch, as_standby, done):
        super()._decide(replace(batch, groups=[]), as_standby, done)


class ForwardingCluster(Cluster):
    member_kind = ForwardingMember


async def test_a_group_that_is_denied_at_another_owner_is_refunded_by_its_caller():
    cluster = ForwardingCluster()
    keys = [key_of("a"), key_of("a", skip=1)]

    results = await cluster.check(keys, [2], [1, 4])

    assert codes(results) == [Code.UNCHARGED, Code.NEVER]
    assert [cluster.left(key) for key in keys] == [3, 3]


async def test_a_late_denial_of_an_allowed_group_refunds_nothing(autojump_clock):
    cluster = ForwardingCluster(hedge_after=0.007)
    keys = [key_of("a", standby="b"), key_of("a", skip=1, standby="b")]
    slow = cluster.owner(keys[0])
    slow.held_answers = []
    slow.engine.decide([keys[1]], [3], [], [], [], NOW)  # The slow member denies the second row.

    results = await cluster.check(keys, [2])
    slow.release_answers()

    assert codes(results) == [Code.ALLOWED, Code.ALLOWED]
    assert [slow.left(keys[0]), cluster.standby(keys[0]).left(keys[0])] == [2, 2]


async def test_a_node_that_forwards_leaves_the_refund_of_a_denied_group_to_its_caller():
    cluster = Cluster()
    keys = [key_of("a"), key_of("b"), key_of("c")]

    results = await cluster.check(keys, [3], [1, 4, 2], hops=1)

    assert codes(results) == [Code.ALLOWED, Code.NEVER, Code.ALLOWED]
    assert [cluster.left(key) for key in keys] == [2, 3, 1]


async def test_a_node_that_forwards_refunds_what_its_failure_policy_counted():
    cluster = Cluster()
    here, there = key_of("b", LOCAL, standby="c"), key_of("a")
    cluster.members["b"].is_lost = cluster.members["c"].is_lost = True

    for _ in range(5):
        denied = await cluster.check([here, there], [2], [1, 4], hops=1)
        assert codes(denied) == [Code.UNCHARGED, Code.NEVER]
    allowed = await cluster.check([here, there], [2], [3, 1], hops=1)

    assert codes(allowed) == [Code.ALLOWED, Code.ALLOWED]


async def test_only_the_denied_group_is_refunded():
    cluster = Cluster()
    groups = [
        [key_of("a"), key_of("b")],
        [key_of("a", skip=1), key_of("b", skip=1)],
        [key_of("c")],
    ]

    results = await cluster.check(
        [key for group in groups for key in group], [2, 2, 1], [1, 1, 1, 4, 1]
    )

    assert codes(results) == [Code.ALLOWED, Code.ALLOWED, Code.UNCHARGED, Code.NEVER, Code.ALLOWED]
    assert [[cluster.left(key) for key in group] for group in groups] == [[2, 2], [3, 3], [2]]


async def test_a_denial_by_a_shadow_rule_refunds_nothing():
    cluster = Cluster()
    keys = [key_of("a"), key_of("b", SHADOW)]

    results = await cluster.check(keys, [2], [1, 4])

    assert codes(results) == [Code.ALLOWED, Code.NEVER]
    assert cluster.left(keys[0]) == 2


async def test_an_unknown_rule_at_one_owner_refunds_the_group():
    cluster = Cluster()
    keys = [key_of("a"), key_of("b", UNKNOWN)]

    results = await cluster.check(keys, [2])

    assert codes(results) == [Code.UNCHARGED, Code.UNKNOWN_RULE]
    assert cluster.left(keys[0]) == 3


async def test_a_group_denied_by_the_failure_policy_is_refunded_at_its_owners():
    cluster = Cluster()
    reached, lost = key_of("a"), key_of("b", DENY, standby="c")
    cluster.members["b"].is_lost = cluster.members["c"].is_lost = True

    results = await cluster.check([reached, lost], [2])

    assert codes(results) == [Code.UNCHARGED, Code.DENIED]
    assert cluster.left(reached) == 3


async def test_a_denied_group_is_refunded_in_this_process_too():
    cluster = Cluster()
    here, there = key_of("b", LOCAL, standby="c"), key_of("a")
    cluster.members["b"].is_lost = cluster.members["c"].is_lost = True

    for _ in range(5):
        denied = await cluster.check([here, there], [2], [1, 4])
        assert codes(denied) == [Code.UNCHARGED, Code.NEVER]
    allowed = await cluster.check([here, there], [2], [3, 1])

    assert codes(allowed) == [Code.ALLOWED, Code.ALLOWED]
    assert allowed.sources == [Source.LOCAL, Source.OWNER]


async def test_a_slot_in_a_denied_group_is_released():
    cluster = Cluster()
    place, denied = key_of("a", SLOTS), key_of("b")

    results = await cluster.check([place, denied], [2], [1, 4])

    assert codes(results) == [Code.UNCHARGED, Code.NEVER]
    assert results.outcomes.slot_ids == [0, 0]
    assert cluster.left(place) == 3


async def test_a_late_answer_to_a_denied_group_is_refunded(autojump_clock):
    cluster = Cluster()
    slow, denied = key_of("a"), key_of("b")
    owner = cluster.owner(slow)
    owner.held_answers = []

    results = await cluster.check([slow, denied], [2], [1, 4], within=0.1)
    owner.release_answers()

    assert codes(results) == [Code.UNCHARGED, Code.NEVER]
    assert cluster.left(slow) == 3


async def test_a_refund_carries_the_longest_age_of_its_charge(autojump_clock):
    cluster = Cluster()
    quick, slow = key_of("a"), key_of("b")
    cluster.owner(slow).held_answers = []

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cluster.check, [quick, slow], [2], [1, 4])
        await trio.sleep(0.25)
        cluster.owner(slow).release_answers()

    refund, hops, _ = cluster.owner(quick).asked[-1]
    assert (refund.op, refund.costs, hops) == (Op.REFUND, [1], 0)
    assert refund.ages_ns == [300_000_000]  # The refund may take longer to arrive than the check.


async def test_a_cancelled_check_spends_nothing_although_it_is_answered_later(autojump_clock):
    cluster = Cluster()
    key = key_of("a")
    owner = cluster.owner(key)
    owner.held_answers = []

    with trio.move_on_after(0.1) as scope:
        await cluster.check([key])
    owner.release_answers()

    assert scope.cancelled_caught
    assert cluster.left(key) == 3


async def test_a_cancelled_group_is_refunded_at_all_its_members(autojump_clock):
    cluster = Cluster()
    quick, slow = key_of("a"), key_of("b")
    owner = cluster.owner(slow)
    owner.held_answers = []

    with trio.move_on_after(0.1):
        await cluster.check([quick, slow], [2])

    assert cluster.left(quick) == 3
    owner.release_answers()
    assert cluster.left(slow) == 3


async def test_a_cancelled_refund_is_not_undone(autojump_clock):
    cluster = Cluster()
    key = key_of("a")
    await cluster.check([key], costs=[2])
    cluster.owner(key).held_answers = []
    refund = Batch(Op.REFUND, [key], [2])

    with trio.move_on_after(0.1):
        await cluster.router.decide(refund, denies_group(refund))
    cluster.owner(key).release_answers()

    assert cluster.left(key) == 3


async def test_late_answers_of_owner_and_standby_refund_nothing(autojump_clock):
    cluster = Cluster(hedge_after=0.007)
    key = key_of("a")
    cluster.owner(key).held_answers, cluster.standby(key).held_answers = [], []

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def answer_both():
            await trio.sleep(0.015)
            cluster.owner(key).release_answers()
            cluster.standby(key).release_answers()

        results = await cluster.check([key], within=0.018)

    assert results.sources == [Source.OWNER]
    assert len(cluster.owner(key).asked) == len(cluster.standby(key).asked) == 1


async def test_refunds_are_never_hedged(autojump_clock):
    cluster = Cluster(hedge_after=0.007)
    key = key_of("a")
    await cluster.check([key])
    cluster.owner(key).held_answers = []

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def answer_late():
            await trio.sleep(0.1)
            cluster.owner(key).release_answers()

        refund = Batch(Op.REFUND, [key], [1])
        results = await cluster.router.decide(refund, denies_group(refund))

    assert results.sources == [Source.OWNER]
    assert cluster.standby(key).asked == []


@pytest.mark.parametrize(
    ("rule", "passed_ms", "age_ms"),
    [
        (PLAIN, 0, 0),
        (PLAIN, 10, 20),
        (PLAIN, 50, 100),
        (PLAIN, 2_000, 2_050),
        (UNKNOWN, 10, 20),
        (LOG, 0, 0),
        (LOG, 1, 51),
        (LOG, 2_000, 2_050),
    ],
)
def test_the_age_of_a_charge_has_an_allowance_of_at_most_50_ms(rule, passed_ms, age_ms):
    limit = RULES[rule].limit if rule in RULES else None

    assert age_ns_of(limit, passed_ms * 1_000_000) == age_ms * 1_000_000


@pytest.mark.parametrize("carries_limit", [False, True])
async def test_the_refund_of_a_denied_group_from_a_log_may_be_slower_than_its_check(
    autojump_clock, carries_limit
):
    cluster = Cluster()
    keys = [key_of("a", UNKNOWN if carries_limit else LOG), key_of("b")]
    batch = Batch(Op.CHECK, keys, [1, 4], [2])
    if carries_limit:
        batch.limits, batch.which = [RULES[LOG].limit], [1, 0]
    owner = cluster.owner(keys[0])
    owner.held_answers = []
    async with trio.open_nursery() as tasks:
        tasks.start_soon(cluster.router.decide, batch, denies_group(batch))
        await trio.sleep(0.001)
        owner.release_answers()

    refund = owner.asked[-1][0]
    assert refund.op is Op.REFUND
    assert refund.ages_ns == [pytest.approx(51_000_000)]


async def test_only_charges_with_a_cost_are_refunded():
    cluster = Cluster()
    keys = [key_of("a"), key_of("a", skip=1), key_of("b")]
    batch = Batch(Op.CHECK, keys, [1, 0, 1])
    results = await cluster.router.decide(batch, denies_group(batch))

    cluster.router.refund(batch, [0, 1], results, trio.current_time())

    assert [cluster.left(key) for key in keys] == [3, 3, 2]
    refunds = [asked for asked, _, _ in cluster.members["a"].asked if asked.op is Op.REFUND]
    assert [(refund.keys, refund.costs) for refund in refunds] == [(keys[:1], [1])]


async def test_checks_that_were_allowed_above_the_hard_limit_are_refunded_too(autojump_clock):
    cluster = Cluster()
    keys = [key_of("a"), key_of("b")]
    answer = cluster.members["a"].ask

    def ask(batch, *, hops, as_standby, done):
        def mark(results):
            if results is not None and batch.op is Op.CHECK:
                results.outcomes.codes = [Code.OVER_SOFT] * len(batch)
            done(results)

        return answer(batch, hops=hops, as_standby=as_standby, done=mark)

    cluster.members["a"].ask = ask
    results = await cluster.check(keys, [2], [1, 4])

    assert codes(results) == [Code.UNCHARGED, Code.NEVER]
    assert cluster.left(keys[0]) == 3


async def test_an_undone_check_has_its_units_again_and_neither_a_slot_nor_a_delay():
    cluster = Cluster()
    keys = [key_of("a", SLOTS), key_of("b")]

    results = await cluster.check(keys, [2], [2, 4])

    outcomes = results.outcomes
    assert outcomes.codes == [Code.UNCHARGED, Code.NEVER]
    assert (outcomes.remaining, outcomes.slot_ids, outcomes.delay_ns) == ([3, 3], [0, 0], [0, 0])


async def test_a_charge_is_refunded_where_it_was_made_and_nowhere_else():
    cluster = Cluster()
    cluster.members["c"].is_lost = True
    keys = [key_of("a"), key_of("c", standby="b")]
    batch = Batch(Op.CHECK, keys, [1, 1])
    results = await cluster.router.decide(batch, denies_group(batch))
    assert results.sources == [Source.OWNER, Source.STANDBY]

    cluster.router.refund(batch, [0, 1], results, trio.current_time())

    refunds = {
        name: [
            (asked.keys, as_standby) for asked, _, as_standby in member.asked if is_refund(asked)
        ]
        for name, member in cluster.members.items()
    }
    assert refunds == {"a": [(keys[:1], False)], "b": [(keys[1:2], True)], "c": []}


def is_refund(batch):
    return batch.op is Op.REFUND
