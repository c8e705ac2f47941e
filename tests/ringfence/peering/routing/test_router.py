"""Which member decides a check: owner, standby, failure policy."""

import trio

from hashring import Ring
from ringfence.errors import AccessDenied
from ringfence.limiter import Code
from ringfence.peering.routing import Routes
from ringfence.rules import encode_key
from ringfence.wire import MAX_KEYS, Source
from tests.ringfence.peering.routing.cluster import (
    DENY,
    LOCAL,
    LONE,
    PLAIN,
    RING,
    Cluster,
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
    """While the lost owner of one is waited for it goes; the other's stays and is as silent."""
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
