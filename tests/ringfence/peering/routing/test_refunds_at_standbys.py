"""Refunds of checks that a standby answered, itself or with the decision of the owner."""

import trio

from ringfence.limiter import Code
from ringfence.peering.routing import Routes
from ringfence.wire import Batch, Op, Source
from tests.ringfence.peering.routing.cluster import (
    NOW,
    Cluster,
    CountingMember,
    codes,
    denies_group,
    key_of,
)


async def test_charges_of_a_standby_are_refunded_at_the_standby():
    cluster = Cluster()
    moved, denied = key_of("b", standby="c"), key_of("a")
    cluster.members["b"].is_lost = True

    results = await cluster.check([moved, denied], [2], [1, 4])

    assert codes(results) == [Code.UNCHARGED, Code.NEVER]
    assert cluster.members["c"].left(moved) == 3
    assert [as_standby for *_, as_standby in cluster.members["c"].asked] == [True, True]


class RelayingMember(CountingMember):
    """Member that has asked the owner, or another data center, when it is asked as a standby."""

    def _decide(self, batch, as_standby, done):
        super()._decide(batch, False, done)


class RelayingCluster(Cluster):
    member_kind = RelayingMember


async def test_charges_that_a_standby_has_got_from_the_owner_are_refunded_at_the_standby():
    cluster = RelayingCluster()
    moved, denied = key_of("b", standby="c"), key_of("a")
    cluster.members["b"].is_lost = True

    results = await cluster.check([moved, denied], [2], [1, 4])

    assert codes(results) == [Code.UNCHARGED, Code.NEVER]
    assert results.sources == [Source.OWNER, Source.OWNER]
    assert cluster.members["c"].left(moved) == 3
    assert [as_standby for *_, as_standby in cluster.members["c"].asked] == [True, True]


async def test_a_late_charge_is_refunded_at_the_standby_that_reports_it(autojump_clock):
    cluster = RelayingCluster()
    moved, denied = key_of("b", standby="c"), key_of("a")
    cluster.members["b"].is_lost, cluster.members["c"].held_answers = True, []

    await cluster.check([moved, denied], [2], [1, 4], within=0.1)
    assert cluster.members["c"].left(moved) == 2
    cluster.members["c"].release_answers()

    assert cluster.members["c"].left(moved) == 3


async def test_a_cancelled_group_is_refunded_at_the_standby_that_has_answered(autojump_clock):
    cluster = RelayingCluster()
    moved, slow = key_of("b", standby="c"), key_of("a", standby="b")
    owners = [cluster.members["b"], cluster.members["a"]]
    for owner in owners:
        owner.held_answers = []

    with trio.move_on_after(0.1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.check, [moved, slow], [2])
            await trio.sleep(0.05)
            for owner in owners:
                owner.dones[0](None)  # No owner has answered in time, so the standbys are asked.

    assert cluster.members["c"].left(moved) == 3


async def test_a_refund_is_routed_again_when_the_member_that_answered_is_lost(autojump_clock):
    cluster = Cluster()
    quick, slow = key_of("a"), key_of("b")
    cluster.members["b"].held_answers = []

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cluster.check, [quick, slow], [2], [1, 4])
        await trio.sleep(0.05)
        successor = cluster.member_kind()
        cluster.members["a"].is_lost = True
        cluster.router.routes = Routes(cluster.ring, cluster.members | {"a": successor})
        successor.engine.decide([quick], [1], [], [], [], NOW)
        cluster.members["b"].release_answers()

    assert successor.left(quick) == 3


async def test_a_caller_refunds_a_charge_at_the_standby_that_has_got_it_from_the_owner():
    cluster = RelayingCluster()
    cluster.members["b"].is_lost = True
    keys = [key_of("a"), key_of("b", standby="c")]
    batch = Batch(Op.CHECK, keys, [1, 1])
    results = await cluster.router.decide(batch, denies_group(batch))
    assert results.sources == [Source.OWNER, Source.OWNER]

    cluster.router.refund(batch, [0, 1], results, trio.current_time())

    assert cluster.members["a"].left(keys[0]) == 3
    assert cluster.members["c"].left(keys[1]) == 3


async def test_a_caller_refunds_each_request_at_its_own_members():
    cluster = RelayingCluster()
    cluster.members["b"].is_lost = True
    relayed = Batch(Op.CHECK, [key_of("a"), key_of("b", standby="c")], [1, 1])
    direct = Batch(Op.CHECK, [key_of("a", skip=1), key_of("c")], [1, 1])
    results = await cluster.router.decide(direct, denies_group(direct))
    await cluster.router.decide(relayed, denies_group(relayed))

    cluster.router.refund(direct, [0, 1], results, trio.current_time())

    assert [cluster.left(key) for key in direct.keys] == [3, 3]
