"""Path of each check through one node: decided here, fetched, forwarded, or refused."""

import pytest
import trio
from trio.testing import MockClock

from hashring import Member, Ring, shard_of
from ringfence.limiter import Code
from ringfence.peering.routing import Routes
from ringfence.wire import Batch, ErrorCode, Op, Results, Source
from tests.node.requests.handling.handling_host import (
    HOME,
    QUOTA,
    RING,
    SHADOW,
    A,
    Asked,
    B,
    C,
    HandlingHost,
    key_of,
)

OURS, THEIRS, OTHERS = key_of(A), key_of(B), key_of(C)
HOPS = (0, 1, 2)
MOST_WAITING = 50_000


@pytest.mark.parametrize("hops", HOPS)
@pytest.mark.parametrize("as_standby", [False, True])
async def test_a_holder_decides_at_once(host: HandlingHost, *, hops: int, as_standby: bool) -> None:
    host.hold(OURS, THEIRS)
    request = host.request(OURS, THEIRS, hops=hops, as_standby=as_standby)
    decided = host.handler.decide_now(request, request.batch)

    assert isinstance(decided, Results)
    assert decided.outcomes.codes == [Code.ALLOWED] * 2
    # One key has another owner, so the node decides the request as the standby.
    assert decided.sources == [Source.STANDBY if as_standby else Source.OWNER] * 2
    assert host.used(OURS, THEIRS) == [1, 1]
    assert [batch.keys for batch in host.decided] == [[OURS, THEIRS]]
    assert host.count("decided_as_standby") == 2 * as_standby


async def test_an_owner_that_is_asked_as_the_standby_decides_as_the_owner(
    host: HandlingHost,
) -> None:
    host.hold(OURS)
    request = host.request(OURS, as_standby=True)
    decided = host.handler.decide_now(request, request.batch)

    assert isinstance(decided, Results)
    assert decided.sources == [Source.OWNER]


@pytest.mark.parametrize("hops", HOPS)
async def test_an_owner_that_has_not_fetched_its_shard_waits_for_it(
    host: HandlingHost, hops: int
) -> None:
    request = host.request(OURS, hops=hops)
    [part] = host.parts(request)
    assert (part.rows, part.batch, part.is_decided) == (None, request.batch, False)

    decided = await host.handler.decide(request, part)

    assert decided is not None
    assert decided.outcomes.codes == [Code.ALLOWED]
    if hops < 2:  # The router asks this node itself, see `ask`.
        assert host.router.asked == [Asked([OURS], hops + 1, 1.0)]
    else:
        assert host.handoff.acquired == [[shard_of(OURS)]]
        assert host.used(OURS) == [1]


@pytest.mark.parametrize("hops", HOPS)
async def test_a_check_of_another_owner_is_forwarded_at_most_twice(
    host: HandlingHost, hops: int
) -> None:
    if hops == 2:
        assert host.refusal(THEIRS, hops=2) == ErrorCode.NOT_HERE
        return
    request = host.request(THEIRS, OTHERS, OURS, hops=hops, deadline_ms=300)
    parts = host.parts(request)
    assert [(part.rows, part.batch.keys) for part in parts] == [
        ([0], [THEIRS]),
        ([1], [OTHERS]),
        ([2], [OURS]),
    ]

    for part in parts:
        assert await host.handler.decide(request, part) is not None

    assert host.router.asked == [Asked([key], hops + 1, 0.3) for key in (THEIRS, OTHERS, OURS)]
    assert host.count("forwarded") == 2  # Without the own key.
    assert host.count("undecided") == 0


async def test_a_node_refuses_a_batch_that_it_may_not_forward_if_any_key_has_another_owner(
    host: HandlingHost,
) -> None:
    host.hold(OURS)

    assert host.refusal(OURS, THEIRS, hops=2) == ErrorCode.NOT_HERE
    assert host.used(OURS) == [0]


@pytest.mark.parametrize(("hops", "hops_to_owner"), [(0, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("is_answering", [False, True])
async def test_a_standby_asks_the_owner_before_it_takes_over(
    host: HandlingHost, *, hops: int, hops_to_owner: int, is_answering: bool
) -> None:
    host.takeover.is_answering = is_answering
    request = host.request(THEIRS, hops=hops, as_standby=True)
    [part] = host.parts(request)

    decided = await host.handler.decide(request, part)

    assert decided is not None
    assert decided.sources == [Source.OWNER if is_answering else Source.STANDBY]
    assert host.takeover.asked == [Asked([THEIRS], hops_to_owner, owner=B)]
    assert host.takeover.taken == ([] if is_answering else [[shard_of(THEIRS)]])
    assert host.router.asked == []


async def test_a_standby_asks_several_owners_together_for_400_ms(host: HandlingHost) -> None:
    request = host.request(THEIRS, OTHERS, as_standby=True, groups=[2], deadline_ms=60_000)

    assert await host.decide(request) is not None

    assert host.router.asked == [Asked([THEIRS, OTHERS], 1, 0.4)]
    assert host.takeover.asked == []


async def test_a_standby_fetches_its_own_shards_instead_of_taking_them_over(
    host: HandlingHost,
) -> None:
    request = host.request(OURS, THEIRS, as_standby=True)

    decided = await host.decide(request)

    assert decided is not None
    assert host.handoff.acquired == [[shard_of(OURS)]]
    assert host.takeover.taken == [[shard_of(THEIRS)]]
    assert host.used(OURS, THEIRS) == [1, 1]


async def test_a_standby_gives_up_when_the_owner_is_reachable_but_never_answers(
    host: HandlingHost,
) -> None:
    host.takeover.is_unreachable = False

    assert await host.decide(host.request(THEIRS, as_standby=True)) is None
    assert len(host.takeover.taken) == 3


@pytest.mark.parametrize(
    ("moved_on", "acquired", "is_decided"),
    [(0, 1, True), (1, 2, True), (2, 3, True), (3, 3, False)],
)
@pytest.mark.parametrize("is_asked_by_router", [False, True])
async def test_a_check_waits_for_at_most_three_transfers(
    autojump_clock: MockClock,
    host: HandlingHost,
    *,
    is_asked_by_router: bool,
    moved_on: int,
    acquired: int,
    is_decided: bool,
) -> None:
    host.handoff.moved_on = moved_on
    request = host.request(OURS, hops=2)
    if is_asked_by_router:
        decided = await asked_by_router(host, request.batch)
    else:
        decided = await host.decide(request)

    assert (decided is not None) == is_decided
    assert len(host.handoff.acquired) == acquired
    assert host.used(OURS) == [is_decided]


async def asked_by_router(
    host: HandlingHost, batch: Batch, *, as_standby: bool = False
) -> Results | None:
    """Ask a node through its own router; return the answer after a second."""
    answers: list[object] = []
    host.handler.ask(batch, hops=1, as_standby=as_standby, done=answers.append)
    await trio.sleep(1)
    [answer] = answers
    assert answer is None or isinstance(answer, Results)
    return answer


async def test_a_router_that_asks_this_node_gets_the_answer_at_once_from_a_holder(
    host: HandlingHost,
) -> None:
    host.hold(OURS)
    answers: list[object] = []
    batch = host.request(OURS).batch

    host.handler.ask(batch, hops=1, as_standby=False, done=answers.append)

    [answer] = answers
    assert isinstance(answer, Results)
    assert answer.outcomes.codes == [Code.ALLOWED]


@pytest.mark.parametrize("is_unreachable", [False, True])
async def test_a_router_that_asks_this_node_as_the_standby_does_not_ask_the_owner_again(
    autojump_clock: MockClock, host: HandlingHost, *, is_unreachable: bool
) -> None:
    host.takeover.is_unreachable = is_unreachable
    decided = await asked_by_router(host, host.request(THEIRS).batch, as_standby=True)

    assert host.takeover.asked == []
    if is_unreachable:
        assert decided is not None
        assert decided.sources == [Source.STANDBY]
        assert host.takeover.taken == [[shard_of(THEIRS)]]
    else:
        assert decided is None
        assert len(host.takeover.taken) == 3
    assert shard_of(THEIRS) not in [each for some in host.handoff.acquired for each in some]


# -- rules of other data centers, and groups -----------------------------------------------------


@pytest.mark.parametrize("as_standby", [False, True])
@pytest.mark.parametrize("is_held", [False, True])
async def test_a_check_that_another_data_center_decides_is_forwarded_even_if_the_shard_is_here(
    host: HandlingHost, *, is_held: bool, as_standby: bool
) -> None:
    key = key_of(A, HOME)
    if is_held:
        host.hold(key)
    for hops in (0, 1):
        request = host.request(key, hops=hops, as_standby=as_standby)
        [part] = host.parts(request)
        assert await host.handler.decide(request, part) is not None

    assert host.router.asked == [Asked([key], 1, 1.0), Asked([key], 2, 1.0)]
    assert host.used(key) == [0]


async def test_a_check_from_another_data_center_is_decided_here_at_its_last_hop(
    host: HandlingHost,
) -> None:
    key = key_of(A, HOME)
    decided = await host.decide(host.request(key, hops=2))

    assert decided is not None
    assert host.used(key) == [1]
    assert host.router.asked == []


@pytest.mark.parametrize("as_standby", [False, True])
async def test_checks_are_grouped_by_the_members_that_decide_them(
    host: HandlingHost, *, as_standby: bool
) -> None:
    held, far = key_of(A, number=1), key_of(B, HOME)
    host.hold(held)
    keys = [held, THEIRS, OTHERS, key_of(B, number=1), far, key_of(C, HOME), OURS]

    parts = host.parts(host.request(*keys, as_standby=as_standby))

    assert [(part.rows, part.is_decided) for part in parts] == [
        ([0], True),
        ([1, 3], False),
        ([2], False),
        ([4, 5], False),  # Both are decided by the same member of the other data center.
        ([6], False),
    ]
    assert [part.batch.keys for part in parts] == [
        [keys[row] for row in part.rows or []] for part in parts
    ]


async def test_a_group_waits_for_the_members_of_all_its_checks(host: HandlingHost) -> None:
    held = [key_of(A, number=number) for number in (1, 2, 3)]
    host.hold(*held)
    keys = [held[0], THEIRS, held[1], held[2], THEIRS, key_of(B, number=1)]

    parts = host.parts(host.request(*keys, groups=[2, 2, 1, 1]))

    assert [(part.rows, part.is_decided, part.batch.groups) for part in parts] == [
        ([2, 3], True, [2]),
        ([0, 1], False, [2]),  # Here and at `b`.
        ([4, 5], False, [1, 1]),
    ]


async def test_a_group_that_another_data_center_decides_in_part_is_forwarded_as_a_whole(
    host: HandlingHost,
) -> None:
    near, far = key_of(A), key_of(A, HOME)
    host.hold(near, far)
    request = host.request(near, far, groups=[2])

    [part] = host.parts(request)

    assert (part.rows, part.batch.keys, part.is_decided) == (None, [near, far], False)


async def test_a_node_without_routes_waits_for_the_members_in_its_ring(host: HandlingHost) -> None:
    host.router.routes = None

    parts = host.parts(host.request(THEIRS, OTHERS, key_of(B, number=1), OURS))

    assert [part.rows for part in parts] == [[0, 2], [1], [3]]


@pytest.mark.parametrize(
    ("rule", "denies"), [(THEIRS[:8], True), (SHADOW, False), (QUOTA, False), (b"unknown.", True)]
)
async def test_only_shadow_and_quota_rules_never_deny_their_group(
    host: HandlingHost, *, rule: bytes, denies: bool
) -> None:
    await host.decide(host.request(key_of(B, rule)))

    assert host.router.groups_denied_by == [denies]


@pytest.mark.parametrize(("as_standby", "rows"), [(False, [[0, 1]]), (True, [[0], [1]])])
async def test_checks_are_forwarded_by_the_routes_and_taken_over_by_the_ring(
    host: HandlingHost, *, as_standby: bool, rows: list[list[int]]
) -> None:
    host.router.routes = Routes(Ring.of([Member(B)]), {})  # Of another moment than the ring.

    parts = host.parts(host.request(THEIRS, OTHERS, as_standby=as_standby))

    assert [part.rows or [0, 1] for part in parts] == rows


@pytest.mark.parametrize("as_standby", [False, True])
async def test_shards_that_arrive_are_waited_for_together_at_the_last_hop(
    host: HandlingHost, *, as_standby: bool
) -> None:
    host.router.routes = Routes(RING, {})
    keys = [key_of(A, number=1), key_of(A, HOME), OURS]

    [part] = host.parts(host.request(*keys, hops=2, as_standby=as_standby))

    assert (part.rows, part.batch.keys) == (None, keys)


async def test_a_caller_waits_for_a_slot_where_all_its_keys_are_held(host: HandlingHost) -> None:
    host.hold(OURS)
    cases = [([OURS], [9], True), ([OURS], [], False), ([THEIRS], [9], False)]
    cases.append(([OURS, THEIRS], [9, 9], False))

    for keys, slot_ids, waits in cases:
        batch = Batch(Op.CHECK, keys, [1] * len(keys), slot_ids=slot_ids)
        assert host.handler.waits_here(batch) is waits


async def test_a_router_may_wait_for_this_node_as_long_as_its_caller_waits(
    host: HandlingHost,
) -> None:
    assert host.handler.answer_timeout(0.1, 3.5) == 3.5
    assert not host.handler.is_alive()  # Other members may be silent.
