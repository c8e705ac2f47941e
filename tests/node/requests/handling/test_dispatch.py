"""Dispatch of requests: their estimated cost, and what is refused before it is decided."""

import pytest
import trio
from trio.testing import MockClock

from node.requests.request_parts import Part
from node.requests.sessions.caller import Caller
from node.requests.sessions.sent_answers import Sender, SentAnswers
from ringfence.wire import Answer, ErrorCode, Op, Refused, Request, Results, Role, Source, decode
from tests.node.requests.sessions.session_world import check, key_of, running_node, with_columns

OURS = [key_of("a", number) for number in range(65)]
THEIRS = [key_of("b", number) for number in range(65)]
MS = 1_000_000


def without_limits(*keys: bytes) -> Request:
    return with_columns(check(5, *keys), limits=[], which=[])


async def test_the_cost_of_a_request_depends_on_carried_limits_and_rows_of_other_owners(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as world:
        cost_of = world.node.dispatcher.cost_of

        assert [cost_of(check(5, *OURS[:rows])) for rows in (1, 3, 65)] == [16, 48, 1040]
        assert [cost_of(without_limits(*OURS[:rows])) for rows in (1, 64, 65)] == [0, 0, 0]
        assert [cost_of(without_limits(*THEIRS[:rows])) for rows in (1, 64, 65)] == [0, 0, 260]
        assert cost_of(without_limits(*OURS[:64], THEIRS[0])) == 260


@pytest.mark.parametrize(
    ("waited_ns", "is_late"), [(0, False), (500 * MS, False), (501 * MS, True)]
)
async def test_a_check_that_has_waited_longer_than_its_caller_waits_is_refused(
    autojump_clock: MockClock, *, waited_ns: int, is_late: bool
) -> None:
    async with running_node() as world:
        dispatcher = world.node.dispatcher
        for op in (Op.CHECK, Op.CHARGE, Op.REFUND):
            request = check(5, *OURS[:3], op=op, deadline_ms=500)

            answer = dispatcher.decide(request, request.batch, waited_ns)

            if is_late and op is Op.CHECK:
                assert isinstance(answer, Refused)
                assert (answer.seq, answer.code) == (5, ErrorCode.TOO_LATE)
                assert "501 ms" in answer.reason
            else:
                assert isinstance(answer, Results)
        assert world.count("shed") == 3 * is_late


async def test_refused_requests_are_counted_by_their_cause(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as world:
        dispatcher = world.node.dispatcher
        last = check(5, THEIRS[0], hops=2)
        refused = dispatcher.decide(last, last.batch, 0)
        assert isinstance(refused, Refused)
        assert refused.code == ErrorCode.NOT_HERE
        assert (world.count("refused_not_owner"), world.count("shed")) == (1, 0)

        world.node.handler.waiting = 50_000
        request = check(5, *THEIRS[:2])
        refused = dispatcher.decide(request, request.batch, 0)
        world.node.handler.waiting = 0
        assert isinstance(refused, Refused)
        assert refused.code == ErrorCode.OVERLOADED
        assert (world.count("refused_overloaded"), world.count("shed")) == (1, 2)


async def test_a_node_is_busy_while_checks_wait(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as world:
        dispatcher = world.node.dispatcher
        assert not dispatcher.is_busy

        world.node.handler.waiting = 1
        assert dispatcher.is_busy
        world.node.handler.waiting = 0
        assert not dispatcher.is_busy


@pytest.mark.parametrize(
    ("waited_ns", "answered_after_s"),
    [(0, 0.4), (999_999, 0.4), (300 * MS, 0.1), (399 * MS, 0.001), (900 * MS, 0.001)],
)
async def test_the_wait_of_a_request_shortens_the_time_for_other_members(
    autojump_clock: MockClock, *, waited_ns: int, answered_after_s: float
) -> None:
    async with running_node(delay_to_b=1.0) as world:  # Node `b` does not answer in time.
        sender: Sender[Caller] = SentAnswers().of(Role.CLIENT, "app", 77)
        request = check(5, *THEIRS[:2], deadline_ms=400)
        began = trio.current_time()

        world.node.dispatcher.forward(sender, request, Part(None, request.batch), waited_ns)
        while not sender.find(5)[0]:  # noqa: ASYNC110
            await trio.sleep(0.0005)

        assert trio.current_time() - began == pytest.approx(answered_after_s, abs=0.0015)
        [payload] = sender.answers_to(5)
        answer = decode(payload)
        assert isinstance(answer, Answer)
        assert answer.results.sources == [Source.POLICY] * 2


async def test_a_part_that_cannot_be_decided_is_refused(autojump_clock: MockClock) -> None:
    async with running_node() as world:
        sender: Sender[Caller] = SentAnswers().of(Role.NODE, "b", 77)
        request = check(5, *THEIRS[:2], hops=2, deadline_ms=400)

        world.node.dispatcher.forward(sender, request, Part(None, request.batch), 0)
        await trio.sleep(1)

        refused = decode(*sender.answers_to(5))
        assert isinstance(refused, Refused)
        assert (refused.seq, refused.code) == (5, ErrorCode.NOT_HERE)
