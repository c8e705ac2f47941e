"""Choice of the decider of a check: owner, standby or failure policy."""

import pytest
import trio

from hashring import Ring, shard_of
from ringfence.errors import AccessDenied
from ringfence.limiter import Code
from ringfence.peering.routing import Router, Routes
from ringfence.peering.routing.failure_policy import FailurePolicy
from ringfence.rules import encode_key
from ringfence.wire import MAX_KEYS, Batch, Op, Source
from tests.ringfence.peering.routing.cluster import (
    DENY,
    LOCAL,
    LONE,
    PLAIN,
    RING,
    RULES,
    ClientCluster,
    Cluster,
    HandClock,
    codes,
    key_of,
)


async def test_a_single_check_is_decided_by_its_owner():
    cluster = Cluster()
    key = key_of("b")

    results = await cluster.check([key])

    assert codes(results) == [Code.ALLOWED]
    assert results.sources == [Source.OWNER]
    assert [len(member.asked) for member in cluster.members.values()] == [0, 1, 0]
    assert cluster.left(key) == 2


async def test_results_of_several_owners_keep_the_callers_order():
    cluster = Cluster()
    keys = [key_of(owner, skip=skip) for skip in range(5) for owner in "cab"]

    results = await cluster.check(keys, costs=[1 + place % 4 for place in range(15)])

    expected = [3 - (1 + place % 4) if place % 4 < 3 else 3 for place in range(15)]
    assert results.outcomes.remaining == expected
    assert [code == Code.NEVER for code in codes(results)] == [
        place % 4 == 3 for place in range(15)
    ]
    assert [cluster.left(key) for key in keys] == expected


async def test_the_standby_decides_when_the_owner_is_lost():
    cluster = Cluster()
    key = key_of("a")
    cluster.owner(key).is_lost = True

    results = await cluster.check([key])

    assert codes(results) == [Code.ALLOWED]
    assert results.sources == [Source.STANDBY]
    assert [(hops, as_standby) for _, hops, as_standby in cluster.standby(key).asked] == [(0, True)]


async def test_a_stale_view_leads_to_a_retry_at_the_new_owner():
    """Both owners are silent, and one of them leaves the ring during the wait."""
    cluster = Cluster()
    gone, stays = key_of("a", standby="c"), key_of("b", standby="c")
    without_a = Ring.of(member for member in RING.members if member.name != "a")
    later = Routes(without_a, cluster.members)

    def fall_silent(batch, *, hops, as_standby, done):
        cluster.router.routes = later
        done(None)

    for name in "ab":
        cluster.members[name].ask = fall_silent
    results = await cluster.check([gone, stays])

    assert results.sources == [Source.OWNER, Source.STANDBY]
    assert [(len(batch), as_standby) for batch, _, as_standby in cluster.members["c"].asked] == [
        (1, False),
        (1, True),
    ]


async def test_only_the_rows_of_a_lost_owner_go_to_standbys():
    cluster = Cluster()
    keys = [key_of(owner) for owner in "abc"]
    cluster.members["b"].is_lost = True

    results = await cluster.check(keys)

    assert results.sources == [Source.OWNER, Source.STANDBY, Source.OWNER]
    assert codes(results) == [Code.ALLOWED] * 3


async def test_the_failure_policy_decides_when_no_member_answers():
    cluster = Cluster()
    for member in cluster.members.values():
        member.is_lost = True

    results = await cluster.check([key_of("a"), key_of("b", DENY), key_of("c", LOCAL)])

    assert codes(results) == [Code.ALLOWED, Code.DENIED, Code.ALLOWED]
    assert results.sources == [Source.POLICY, Source.POLICY, Source.LOCAL]


async def test_after_a_refusal_no_other_member_is_asked():
    cluster = Cluster()
    for batch in ([key_of("a")], [key_of("a"), key_of("b")]):
        asked = []

        def refuse(part, *, hops, as_standby, done, asked=asked):
            asked.append(as_standby)
            done(AccessDenied("no scope"))

        cluster.members["a"].ask = refuse
        results = await cluster.check(batch)

        assert isinstance(results.refusal, AccessDenied)
        assert asked == [False]
    assert (await cluster.check([key_of("b")])).refusal is None


async def test_the_failure_policy_decides_a_single_check():
    cluster = Cluster()
    for member in cluster.members.values():
        member.is_lost = True

    assert (await cluster.check([key_of("a")])).sources == [Source.POLICY]
    assert codes(await cluster.check([key_of("a", DENY)])) == [Code.DENIED]


async def test_without_a_standby_the_policy_decides():
    cluster = Cluster(LONE)
    cluster.members["a"].is_lost = True

    assert (await cluster.check([key_of("a")])).sources == [Source.POLICY]


async def test_before_the_members_are_known_the_policy_decides():
    cluster = Cluster()
    cluster.router.routes = None

    results = await cluster.check([key_of("a"), key_of("b", DENY)])

    assert results.sources == [Source.POLICY, Source.POLICY]
    assert not any(member.asked for member in cluster.members.values())


async def test_a_forwarded_batch_has_its_hop_count():
    cluster = Cluster()
    key = key_of("a")

    await cluster.check([key], hops=1)

    assert cluster.owner(key).asked[0][1] == 1


async def test_checks_that_no_member_answers_let_other_tasks_run():
    cluster = Cluster()
    cluster.router.routes = None
    has_run = trio.Event()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(set_, has_run)
        with trio.fail_after(5):
            while not has_run.is_set():
                await cluster.check([key_of("a")])


async def set_(event):
    event.set()


async def test_only_rows_undecided_at_the_deadline_fall_back(
    autojump_clock,
):
    cluster = Cluster()
    slow, quick = key_of("a", DENY), key_of("b")
    cluster.owner(slow).held_answers = []

    with trio.fail_after(0.2):
        results = await cluster.check([slow, quick], within=0.1)

    assert codes(results) == [Code.DENIED, Code.ALLOWED]
    assert results.sources == [Source.POLICY, Source.OWNER]


async def test_a_single_check_falls_back_at_the_deadline(autojump_clock):
    cluster = Cluster()
    key = key_of("a")
    cluster.owner(key).held_answers = []

    with trio.fail_after(0.2):
        results = await cluster.check([key], within=0.1)

    assert results.sources == [Source.POLICY]


async def test_large_batches_are_cut_into_frames():
    cluster = Cluster(LONE)
    keys = [encode_key(PLAIN, [str(number)]) for number in range(MAX_KEYS + 10)]

    results = await cluster.check(keys)

    assert [len(batch) for batch, *_ in cluster.members["a"].asked] == [MAX_KEYS, 10]
    assert codes(results) == [Code.ALLOWED] * len(keys)


async def test_a_group_stays_in_one_frame():
    cluster = Cluster(LONE)
    keys = [encode_key(PLAIN, [str(number)]) for number in range(MAX_KEYS + 2)]
    groups = [MAX_KEYS - 1, 3]

    results = await cluster.check(keys, groups)

    assert [batch.groups for batch, *_ in cluster.members["a"].asked] == [[MAX_KEYS - 1], [3]]
    assert codes(results) == [Code.ALLOWED] * len(keys)


def router_of(cluster, **options):
    """Return a router to the members of a cluster, with the routes of its router."""
    router = Router(FailurePolicy(RULES.get, HandClock(), 1000), **options)
    router.routes = cluster.router.routes
    return router


def check_of(*keys, op=Op.CHECK):
    return Batch(op, list(keys), [1] * len(keys))


async def test_checks_that_the_failure_policy_decided_are_reported():
    cluster, seen = Cluster(), []
    router = router_of(cluster, undecided=lambda *row: seen.append(row))
    plain, deny, local, counted = key_of("a"), key_of("a", DENY), key_of("a", LOCAL), key_of("b")
    cluster.members["a"].is_lost = True
    cluster.members["c"].is_lost = True
    cluster.members["b"].ask = only_as_owner(cluster.members["b"])

    await router.decide(check_of(plain, counted, deny, local), lambda row: True)

    assert seen == [
        (plain, Code.ALLOWED, Source.POLICY),
        (deny, Code.DENIED, Source.POLICY),
        (local, Code.ALLOWED, Source.LOCAL),
    ]
    await router.decide(check_of(plain, op=Op.CHARGE), lambda row: True)
    assert len(seen) == 3
    cluster.members["a"].sheds = True
    await router.decide(check_of(plain), lambda row: True)
    assert seen[3:] == [(plain, Code.ALLOWED, Source.SHED)]


def only_as_owner(member):
    """Return an `ask` of a member that has no replicas."""
    ask = member.ask

    def ask_owner(batch, *, hops, as_standby, done):
        if as_standby:
            done(None)
            return None
        return ask(batch, hops=hops, as_standby=as_standby, done=done)

    return ask_owner


async def test_checks_that_a_member_refused_are_not_reported_as_undecided():
    cluster, seen = Cluster(), []
    router = router_of(cluster, undecided=lambda *row: seen.append(row))
    cluster.members["a"].ask = lambda batch, *, hops, as_standby, done: done(AccessDenied("no"))

    results = await router.decide(check_of(key_of("a")), lambda row: True)

    assert isinstance(results.refusal, AccessDenied)
    assert seen == []


@pytest.mark.parametrize(
    ("retries", "is_changed", "asked"),
    [
        (False, False, [("a", False), ("c", True)]),
        (True, False, [("a", False), ("c", True)]),
        (False, True, [("a", False), ("c", False)]),
        (True, True, [("a", False), ("c", False), ("b", True)]),
    ],
)
async def test_with_retries_the_new_owner_and_then_its_standby_are_asked(
    retries, is_changed, asked
):
    cluster, seen = Cluster(), []
    router = router_of(cluster, retries=retries)
    without_a = Ring.of(member for member in RING.members if member.name != "a")
    key = key_of("a", standby="c")
    assert without_a.owner(shard_of(key)) == "c"

    def fall_silent(name):
        def ask(batch, *, hops, as_standby, done):
            seen.append((name, as_standby))
            if is_changed:
                router.routes = Routes(without_a, cluster.members)
            done(None)

        return ask

    for name, member in cluster.members.items():
        member.ask = fall_silent(name)
    results = await router.decide(check_of(key), lambda row: True)

    assert seen == asked
    assert results.sources == [Source.POLICY]


async def test_each_check_of_an_owner_earns_hedging_budget_once():
    cluster = Cluster()
    keys = [key_of(owner) for owner in "abc"]
    await cluster.check(keys)
    assert cluster.router.hedging.checks == 3

    cluster.members["a"].is_lost = True
    await cluster.check(keys)
    assert cluster.router.hedging.checks == 6

    retrying = router_of(cluster, retries=True)
    cluster.members["a"].is_lost, cluster.members["a"].sheds = False, True
    await retrying.decide(check_of(*keys), lambda row: True)
    assert retrying.hedging.checks == 3


async def test_no_member_is_asked_after_the_deadline_of_a_single_check(autojump_clock):
    cluster = ClientCluster()
    key = key_of("a")
    owner, standby = cluster.owner(key), cluster.standby(key)
    owner.held_answers = []

    assert await cluster.check_one(key, within=0.25) == (Source.POLICY, Code.ALLOWED)

    assert trio.current_time() == pytest.approx(0.25)
    assert standby.asked == []
    assert len(owner.asked) == 1


@pytest.mark.parametrize(("lost_at", "source"), [(0.249, Source.STANDBY), (0.251, Source.POLICY)])
async def test_the_standby_of_a_single_check_is_asked_until_its_deadline(
    autojump_clock, lost_at, source
):
    cluster = ClientCluster()
    key = key_of("a")
    cluster.owner(key).held_answers = []

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def lose():
            await trio.sleep(lost_at)
            cluster.owner(key).dones[0](None)

        assert (await cluster.check_one(key, within=0.25))[0] is source


async def test_the_standby_of_a_single_check_has_the_rest_of_its_time(autojump_clock):
    cluster = ClientCluster()
    key = key_of("a", DENY)
    cluster.owner(key).held_answers = cluster.standby(key).held_answers = []

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def lose():
            await trio.sleep(0.1)
            cluster.owner(key).dones[0](None)

        assert await cluster.check_one(key, within=0.25) == (Source.POLICY, Code.DENIED)

    assert trio.current_time() == pytest.approx(0.25)
    assert len(cluster.standby(key).asked) == 1


async def test_a_refused_single_check_raises_the_refusal(autojump_clock):
    cluster = ClientCluster()
    key = key_of("a")
    cluster.owner(key).held_answers = []

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def refuse():
            await trio.sleep(0.1)
            cluster.owner(key).dones[0](AccessDenied("no scope"))

        with pytest.raises(AccessDenied, match="no scope"):
            await cluster.check_one(key, within=0.25)

    assert cluster.standby(key).asked == []


async def test_single_checks_follow_a_change_of_the_members():
    cluster = ClientCluster()
    key = key_of("a", standby="c")
    assert (await cluster.check_one(key))[0] is Source.OWNER

    without_a = Ring.of(member for member in RING.members if member.name != "a")
    cluster.router.routes = Routes(without_a, cluster.members)
    assert (await cluster.check_one(key))[0] is Source.OWNER

    asked = {name: len(member.asked) for name, member in cluster.members.items()}
    assert asked == {"a": 1, "b": 0, "c": 1}
    cluster.router.routes = None
    assert (await cluster.check_one(key))[0] is Source.POLICY


async def test_each_single_check_earns_hedging_budget_once():
    cluster = ClientCluster()
    key = key_of("a")
    await cluster.check_one(key)
    assert cluster.router.hedging.checks == 1

    cluster.owner(key).join = lambda key, cost, within: None
    assert (await cluster.check_one(key))[0] is Source.OWNER
    assert cluster.router.hedging.checks == 2


async def test_a_single_check_that_cannot_join_others_is_not_started():
    cluster = ClientCluster()
    key = key_of("a")
    cluster.owner(key).join = lambda key, cost, within: None

    assert not cluster.router.start(key, 1, None, None)
    cluster.router.routes = None
    assert not cluster.router.start(key, 1, None, None)
    assert cluster.router.hedging.checks == 0


async def test_members_may_forward_a_single_check_once(autojump_clock):
    cluster = ClientCluster()
    key = key_of("a")
    cluster.owner(key).is_lost = True

    assert (await cluster.check_one(key))[0] is Source.STANDBY

    assert [asked[1:] for asked in cluster.standby(key).asked] == [(0, True)]
