"""Counting of checks at their owner: repeats, refunds, borrowed units, and metrics."""

import pytest
import trio
from trio.testing import MockClock

from node.metrics.detailed import Metrics
from node.requests.request_parts import Part
from ringfence.limiter import Code, Limit, Snapshot
from ringfence.rules import RuleSet
from ringfence.wire import Op, Request, Results, Source
from tests.node.requests.handling.handling_host import (
    NOW,
    SPLIT,
    A,
    Asked,
    B,
    HandlingHost,
    key_of,
)

OURS, OTHER, THEIRS = key_of(A), key_of(A, number=1), key_of(B)
SHARED, THEIR_SHARED = key_of(A, SPLIT), key_of(B, SPLIT)


def now(host: HandlingHost, request: Request) -> Results:
    decided = host.handler.decide_now(request, request.batch)
    assert isinstance(decided, Results)
    return decided


@pytest.mark.parametrize(
    ("op", "used"), [(Op.CHECK, 2), (Op.CHARGE, 2), (Op.REFUND, 3), (Op.RESET, 0)]
)
async def test_a_repeated_request_has_the_outcome_of_the_first(
    host: HandlingHost, op: Op, used: int
) -> None:
    host.hold(OURS)
    now(host, host.request(OURS, costs=[0 if used < 3 else 5]))
    request = host.request(OURS, op=op, costs=[2], ids=[(1, 1, 0)])

    first = now(host, request)
    assert host.used(OURS) == [used]
    again = now(host, host.request(OURS, op=op, costs=[2], ids=[(1, 1, 0)]))

    assert host.used(OURS) == [used]
    assert again.outcomes.remaining == first.outcomes.remaining == [5 - used]
    assert host.count("repeated_checks") == 1


@pytest.mark.parametrize("is_blind", [False, True])
async def test_a_repeated_reset_removes_no_later_units(
    host: HandlingHost, *, is_blind: bool
) -> None:
    if is_blind:
        host.ownership.take_over_blind(host.shards(THEIRS), B, NOW, ())
    else:
        host.hold(THEIRS)
    now(host, host.request(THEIRS, costs=[2], as_standby=True))
    reset = host.request(THEIRS, op=Op.RESET, costs=[0], ids=[(1, 1, 0)], as_standby=True)
    now(host, reset)
    now(host, host.request(THEIRS, costs=[3], as_standby=True))

    now(host, reset)

    assert host.used(THEIRS) == [3]


@pytest.mark.parametrize("is_blind", [False, True])
async def test_a_reset_moves_with_its_shard_unless_the_owner_must_still_apply_it(
    host: HandlingHost, *, is_blind: bool
) -> None:
    [shard] = host.shards(THEIRS)
    if is_blind:
        host.ownership.take_over_blind([shard], B, NOW, ())
    else:
        host.hold(THEIRS)
    now(host, host.request(THEIRS, op=Op.RESET, costs=[0], ids=[(1, 1, 0)], as_standby=is_blind))

    moved = host.decided_checks.of_shard(shard, 0, host.clock.time)

    assert [(check.id, check.cost, check.is_reset) for check in moved] == (
        [] if is_blind else [((1, 1, 0), 0, True)]
    )


async def test_a_reset_by_a_standby_has_the_age_of_the_owners_replica(host: HandlingHost) -> None:
    [shard] = host.shards(THEIRS)
    replica = Snapshot([THEIRS], [[3, 0]], [Limit.of_ns(5, 60 * 10**9)], [0], [])
    host.ownership.take_over(shard, B, [(NOW - 80, replica)], NOW, ())
    host.clock.time = NOW + 20
    now(host, host.request(THEIRS, op=Op.RESET, costs=[0], ids=[(1, 1, 0)], as_standby=True))

    [reset] = host.decided_checks.of_shard(shard, 0, host.clock.time)

    assert (reset.is_reset, reset.replica_age_ns) == (True, 100)


async def test_a_request_without_identities_is_counted_again(host: HandlingHost) -> None:
    host.hold(OURS)

    for _ in range(2):
        now(host, host.request(OURS))

    assert host.used(OURS) == [2]


async def test_only_the_unknown_rows_of_a_request_are_counted(host: HandlingHost) -> None:
    host.hold(OURS, OTHER)
    now(host, host.request(OURS, costs=[4], ids=[(1, 1, 1)]))

    decided = now(host, host.request(OTHER, OURS, costs=[2, 4], ids=[(1, 1, 0), (1, 1, 1)]))

    assert decided.outcomes.remaining == [3, 1]
    assert host.used(OTHER, OURS) == [2, 4]
    assert [batch.keys for batch in host.decided] == [[OURS], [OTHER]]


@pytest.mark.parametrize(("op", "used"), [(Op.CHECK, 4), (Op.CHARGE, 4), (Op.REFUND, 2)])
async def test_checks_that_are_twice_in_one_batch_count_once(
    host: HandlingHost, op: Op, used: int
) -> None:
    """Requests that wait for a connection are sent in one batch, also a check and its repeat."""
    host.hold(OURS)
    now(host, host.request(OURS, costs=[3]))
    ids = [(1, 1, 0), (0, 0, 0), (1, 1, 0), (0, 0, 0)]

    decided = now(host, host.request(*[OURS] * 4, op=op, costs=[1, 0, 1, 0], ids=ids))

    assert host.used(OURS) == [used]
    assert decided.rows()[2] == decided.rows()[0]
    assert host.count("repeated_checks") == 1


async def test_a_repeated_denial_is_not_counted_when_units_are_free_again(
    host: HandlingHost,
) -> None:
    host.hold(OURS)
    now(host, host.request(OURS, costs=[5]))
    assert now(host, host.request(OURS, ids=[(1, 1, 0)])).outcomes.codes == [Code.DENIED]
    now(host, host.request(OURS, op=Op.REFUND, costs=[5]))

    assert now(host, host.request(OURS, ids=[(1, 1, 0)])).outcomes.codes == [Code.DENIED]
    assert host.used(OURS) == [0]


async def test_a_repeated_refund_removes_nothing_after_it_removed_less_than_asked(
    host: HandlingHost,
) -> None:
    host.hold(OURS)
    now(host, host.request(OURS, costs=[2]))
    refund = host.request(OURS, op=Op.REFUND, costs=[4], ids=[(1, 1, 0)])
    now(host, refund)
    now(host, host.request(OURS, costs=[3]))

    now(host, refund)

    assert host.used(OURS) == [3]


async def test_the_units_that_each_request_has_changed_move_with_its_shard(
    host: HandlingHost,
) -> None:
    host.hold(OURS)
    requests = [(Op.CHECK, 2), (Op.CHARGE, 1), (Op.REFUND, 1), (Op.REFUND, 4)]
    for seq, (op, cost) in enumerate(requests, 1):
        now(host, host.request(OURS, op=op, costs=[cost], ids=[(1, seq, 0)]))

    [shard] = host.shards(OURS)
    moved = host.decided_checks.of_shard(shard, 0, host.clock.time)

    assert [(check.id[1], check.cost, check.is_refund) for check in moved] == [
        (1, 2, False),
        (2, 1, False),
        (3, 1, True),
        (4, 2, True),  # Only two units were left.
    ]


@pytest.mark.parametrize("op", [Op.CHECK, Op.CHARGE, Op.REFUND, Op.RESET])
async def test_refunds_and_resets_may_end_denials_early(host: HandlingHost, op: Op) -> None:
    host.hold(OURS, OTHER)

    now(host, host.request(OURS, OTHER, op=op))

    assert host.freed == ([OURS, OTHER] if op in (Op.REFUND, Op.RESET) else [])
    assert [batch.op for batch in host.decided] == [op]


# -- units of other data centers -------------------------------------------------------------------


async def used_up(host: HandlingHost, *keys: bytes) -> None:
    host.hold(*keys)
    for key in keys:
        results = now(host, host.request(key, costs=[5], hops=2))
        assert results.outcomes.codes == [Code.ALLOWED]


@pytest.mark.parametrize("hops", [0, 1])
async def test_an_owner_asks_another_data_center_for_a_denied_check_only(
    autojump_clock: MockClock, host: HandlingHost, hops: int
) -> None:
    await used_up(host, SHARED)
    host.hold(OURS)
    request = host.request(OURS, SHARED, hops=hops)

    parts = host.parts(request)
    assert [(part.rows, part.is_decided) for part in parts] == [([0], True), ([1], False)]
    assert await host.handler.decide(request, parts[1]) is parts[1].results

    assert parts[1].results is not None
    assert parts[1].results.outcomes.codes == [Code.ALLOWED]
    assert host.far.asked == [Asked([SHARED], 2)]
    assert host.count("borrowed") == 1


async def test_units_are_not_borrowed_at_the_last_hop(
    autojump_clock: MockClock, host: HandlingHost
) -> None:
    await used_up(host, SHARED)

    held = now(host, host.request(SHARED, hops=2))
    parts = host.parts(host.request(SHARED, OURS, hops=2))
    waited = await host.decide(host.request(SHARED, hops=2))

    assert held.outcomes.codes == [Code.DENIED]
    assert [(part.rows, part.is_decided) for part in parts] == [([0], True), ([1], False)]
    assert waited is not None
    assert waited.outcomes.codes == [Code.DENIED]
    assert host.far.asked == []


async def test_no_units_are_borrowed_while_too_many_checks_wait(host: HandlingHost) -> None:
    await used_up(host, SHARED)
    host.handler.waiting = 49_999
    [part] = host.parts(host.request(SHARED))
    assert not part.is_decided

    host.handler.waiting = 50_000
    [part] = host.parts(host.request(SHARED))
    assert part.is_decided
    assert part.results is not None
    assert part.results.outcomes.codes == [Code.DENIED]


@pytest.mark.parametrize("as_standby", [False, True])
async def test_a_standby_borrows_nothing_in_place_of_the_owner(
    autojump_clock: MockClock, host: HandlingHost, *, as_standby: bool
) -> None:
    await used_up(host, SHARED, THEIR_SHARED)

    parts = host.parts(host.request(SHARED, THEIR_SHARED, as_standby=as_standby))

    short = [row for part in parts if not part.is_decided for row in part.rows or [0, 1]]
    assert short == ([0] if as_standby else [0, 1])


@pytest.mark.parametrize(
    ("key", "hops", "code"),
    [
        (SHARED, 0, Code.ALLOWED),
        (SHARED, 1, Code.ALLOWED),
        (SHARED, 2, Code.DENIED),
        (THEIR_SHARED, 0, Code.DENIED),
        (OURS, 0, Code.DENIED),
    ],
)
async def test_an_owner_that_waited_for_its_shard_borrows_before_the_last_hop(
    autojump_clock: MockClock, host: HandlingHost, key: bytes, hops: int, code: Code
) -> None:
    await used_up(host, key)

    decided = await host.decide(host.request(key, hops=hops, as_standby=True))

    assert decided is not None
    assert decided.outcomes.codes == [code]
    assert host.far.asked == ([Asked([key], 2)] if code is Code.ALLOWED else [])


@pytest.mark.parametrize(("seconds", "code"), [(0.19, Code.ALLOWED), (0.21, Code.DENIED)])
@pytest.mark.parametrize("waited_for", ["nothing", "the node", "its shard"])
async def test_a_check_waits_for_another_data_center_for_half_of_the_time_that_is_left(
    autojump_clock: MockClock, host: HandlingHost, waited_for: str, seconds: float, code: Code
) -> None:
    await used_up(host, SHARED)
    host.far.seconds = seconds
    request = host.request(SHARED, deadline_ms=400 if waited_for == "nothing" else 1000)
    request.as_standby = waited_for == "its shard"
    part = Part(None, request.batch)
    if waited_for == "its shard":
        host.ownership.held[host.shards(SHARED)[0]] = False
        host.handoff.seconds = 0.6
        host.handoff.take = lambda shards: host.ownership.held.__setitem__(shards[0], True)
    else:
        [part] = host.parts(request)
    found: list[Results | None] = []

    async def decide() -> None:
        found.append(await host.handler.decide(request, part))

    async with trio.open_nursery() as nursery:
        if waited_for == "the node":
            host.handler.suspend()
        nursery.start_soon(decide)
        await trio.sleep(0.6)
        host.handler.resume()

    assert [each and each.outcomes.codes for each in found] == [[code]]


async def test_a_hedged_repeat_of_a_borrowed_check_has_its_outcome(
    autojump_clock: MockClock, host: HandlingHost
) -> None:
    await used_up(host, SHARED)
    request = host.request(SHARED, ids=[(1, 1, 0)])
    [part] = host.parts(request)
    now(host, host.request(SHARED, op=Op.REFUND, costs=[2], hops=2))
    # Before the other data center answers, the repeat finds the denial.
    assert now(host, host.request(SHARED, hops=2, ids=[(1, 1, 0)])).outcomes.codes == [Code.DENIED]

    await host.handler.decide(request, part)

    repeated = now(host, host.request(SHARED, hops=2, ids=[(1, 1, 0)]))
    assert repeated.outcomes.codes == [Code.ALLOWED]
    assert host.used(SHARED) == [3]


async def test_a_node_that_its_router_asks_borrows_before_it_answers(
    autojump_clock: MockClock, host: HandlingHost
) -> None:
    await used_up(host, SHARED)
    answers: list[object] = []

    host.handler.ask(host.request(SHARED).batch, hops=1, as_standby=False, done=answers.append)
    assert answers == []
    await trio.sleep(1)

    [answer] = answers
    assert isinstance(answer, Results)
    assert answer.outcomes.codes == [Code.ALLOWED]
    assert host.far.asked == [Asked([SHARED], 2)]


# -- metrics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "undecided"),
    [
        (Source.OWNER, 0),
        (Source.STANDBY, 0),
        (Source.LOCAL, 2),
        (Source.POLICY, 2),
        (Source.SHED, 2),
    ],
)
async def test_forwarded_checks_that_no_member_decided_are_counted(
    host: HandlingHost, source: Source, undecided: int
) -> None:
    host.router.source = source
    await host.decide(host.request(THEIRS, OURS))
    assert (host.count("forwarded"), host.count("undecided")) == (1, undecided)

    seen = recorded(host)
    await host.decide(host.request(THEIRS, OURS))
    assert seen == (["undecided"] if undecided else [])


async def test_detailed_metrics_contain_decided_checks_while_they_are_on(
    host: HandlingHost,
) -> None:
    host.hold(OURS)
    now(host, host.request(OURS))
    seen = recorded(host)

    now(host, host.request(OURS))

    assert seen == ["decided"]


def recorded(host: HandlingHost) -> list[str]:
    """Turn on detailed metrics; return the names of the calls that they receive from now on."""
    seen: list[str] = []
    metrics: Metrics = host.metrics.turn_on(RuleSet(), 0)
    metrics.decided = lambda *fields, **named: seen.append("decided")  # type: ignore[method-assign]
    metrics.undecided = lambda *fields: seen.append("undecided")  # type: ignore[method-assign]
    return seen
