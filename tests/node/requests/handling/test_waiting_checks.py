"""Bounds, deadlines and suspensions of the checks that wait at one node."""

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from ringfence.limiter import Code
from ringfence.wire import ErrorCode, Results
from tests.node.requests.handling.handling_host import A, Asked, B, C, HandlingHost, key_of

OURS, THEIRS, OTHERS = key_of(A), key_of(B), key_of(C)
HOPS = (0, 1, 2)
MOST_WAITING = 50_000


@pytest.mark.parametrize("as_standby", [False, True])
async def test_the_number_of_waiting_checks_is_bounded(
    host: HandlingHost, *, as_standby: bool
) -> None:
    host.hold(OURS)
    host.handler.waiting = MOST_WAITING - 2
    assert len(host.parts(host.request(OURS, THEIRS, OTHERS, as_standby=as_standby))) == 3

    host.handler.waiting = MOST_WAITING - 1
    assert len(host.parts(host.request(OURS, THEIRS, as_standby=as_standby))) == 2
    code = host.refusal(OURS, THEIRS, OTHERS, as_standby=as_standby)
    assert code == ErrorCode.OVERLOADED
    assert host.used(OURS) == [2]  # Nothing of the refused request.

    host.handler.waiting = 2 * MOST_WAITING
    request = host.request(OURS, as_standby=as_standby)
    assert isinstance(host.handler.decide_now(request, request.batch), Results)


async def test_checks_count_as_waiting_until_they_are_decided(
    autojump_clock: MockClock, host: HandlingHost
) -> None:
    host.handoff.seconds = 0.25
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.decide, host.request(OURS, key_of(A, number=1), hops=2))
        await trio.sleep(0.2)
        nursery.start_soon(host.decide, host.request(OURS, hops=2))
        await trio.sleep(0.01)
        assert host.handler.waiting == 3
        await trio.sleep(0.1)
        assert host.handler.waiting == 1

    assert host.handler.waiting == 0


@pytest.mark.parametrize("as_standby", [False, True])
@pytest.mark.parametrize(("seconds", "is_decided"), [(0.29, True), (0.31, False)])
async def test_a_check_waits_for_a_shard_until_the_deadline_of_its_caller(
    autojump_clock: MockClock,
    host: HandlingHost,
    *,
    seconds: float,
    is_decided: bool,
    as_standby: bool,
) -> None:
    host.handoff.seconds = seconds
    began = trio.current_time()

    decided = await host.decide(host.request(OURS, hops=2, as_standby=as_standby, deadline_ms=300))

    assert (decided is not None) is is_decided
    assert trio.current_time() - began == pytest.approx(min(seconds, 0.3))


# -- suspension ----------------------------------------------------------------------------------


async def test_a_suspended_node_decides_nothing_until_it_resumes(
    autojump_clock: MockClock, host: HandlingHost
) -> None:
    host.hold(OURS)
    host.handler.suspend()
    host.handler.suspend()
    request = host.request(OURS, hops=2)
    [part] = host.parts(request)
    assert (part.rows, part.batch, part.is_decided) == (None, request.batch, False)

    decided: list[Results | None] = []

    async def decide() -> None:
        decided.append(await host.handler.decide(request, part))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(decide)
        await trio.sleep(0.9)
        assert decided == []
        host.handler.resume()
        host.handler.resume()
        await trio.sleep(0.01)
        assert [each and each.outcomes.codes for each in decided] == [[Code.ALLOWED]]

    assert isinstance(host.handler.decide_now(request, request.batch), Results)


@pytest.mark.parametrize("hops", HOPS)
async def test_a_suspended_node_decides_no_check_whose_deadline_has_passed(
    autojump_clock: MockClock, host: HandlingHost, hops: int
) -> None:
    host.hold(OURS)
    host.handler.suspend()
    began = trio.current_time()

    assert await host.decide(host.request(OURS, hops=hops, deadline_ms=300)) is None

    assert trio.current_time() - began == pytest.approx(0.3)
    assert (host.used(OURS), host.router.asked) == ([0], [])


async def test_a_suspension_shortens_the_time_for_other_members(
    autojump_clock: MockClock, host: HandlingHost
) -> None:
    host.handler.suspend()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.decide, host.request(THEIRS, deadline_ms=1000))
        await trio.sleep(0.4)
        host.handler.resume()

    assert host.router.asked == [Asked([THEIRS], 1, 0.6)]


async def test_a_suspended_node_bounds_the_number_of_waiting_checks(host: HandlingHost) -> None:
    host.handler.suspend()
    host.handler.waiting = MOST_WAITING - 2

    assert len(host.parts(host.request(OURS, THEIRS))) == 1
    assert host.refusal(OURS, THEIRS, OTHERS) == ErrorCode.OVERLOADED
