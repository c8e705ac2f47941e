"""Long requests of one client do not delay other clients."""

from collections.abc import Callable
from typing import Any

import pytest
import trio

from node.node import Node
from node.requests.sessions.request_scheduler import MAX_WAITING, STEP_COST
from ringfence.wire import Answer, AskRules, ErrorCode, Message, Op, Refused, Rules, decode, encode
from tests.node.requests.sessions.session_world import (
    APP,
    OPERATOR,
    Caller,
    World,
    check,
    key_of,
    running_node,
)

_Send = Callable[[bytes], None]

ROWS = 1000
"""Rows of a long request, each with a different limit."""


def held_keys(node: Node, count: int) -> list[bytes]:
    """Return keys of shards that the node holds."""
    first = key_of("a")
    candidates = (first + b"%d" % number for number in range(10 * count))
    return [key for key in candidates if node.handler.placement.holds([key])][:count]


def rows_of(caller: Caller, seq: int) -> list[int]:
    answers = [each for each in caller.received if isinstance(each, Answer) and each.seq == seq]
    return [row for each in answers for row in each.rows or range(len(each.results.sources))]


async def answered_in(world: World, *asked: list[Message]) -> list[int]:
    """Send the messages of all callers to the node in one iteration of its loop.

    Returns the caller of each answer, in the order of the answers.
    """
    order: list[int] = []
    for number, (session, messages) in enumerate(
        zip(list(world.node.sessions.by_id.values()), asked, strict=True)
    ):
        send = session.send_payload

        def send_payload(payload: bytes, number: int = number, send: _Send = send) -> None:
            order.append(number)
            send(payload)

        session.send_payload = send_payload  # type: ignore[method-assign]
        for message in messages:
            session.on_message(encode(message))
    await trio.sleep(0.1)
    return order


async def test_a_check_is_answered_between_the_steps_of_anothers_long_request(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        busy, _ = await world.call(APP), await world.call(OPERATOR)
        keys = held_keys(world.node, ROWS)

        order = await answered_in(world, [check(1, *keys)], [check(1)])

        assert order == [1] + [0] * -(-ROWS * 16 // STEP_COST)
        assert sorted(rows_of(busy, 1)) == list(range(ROWS))
        assert world.count("checks") == ROWS + 1
        assert not world.node.dispatcher._scheduler


async def test_short_requests_of_a_client_are_decided_after_its_long_request(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        caller = await world.call(OPERATOR)
        keys = held_keys(world.node, 100)

        received = await caller.send(
            check(1, *keys), check(2, keys[-1], op=Op.RESET), check(3, keys[-1])
        )

        seqs = [each.seq for each in received if isinstance(each, Answer)]
        assert seqs == sorted(seqs)
        assert isinstance(received[-1], Answer)
        # Dropped after the first and before the third.
        assert received[-1].results.outcomes.remaining == [4]


async def test_a_repeated_long_request_is_decided_once(autojump_clock: object) -> None:
    async with running_node() as world:
        caller = await world.call(APP)
        request = check(1, *held_keys(world.node, ROWS))

        await caller.send(request, request)

        assert world.count("checks") == ROWS
        assert world.count("repeated") == 1


async def test_no_more_rows_wait_for_their_turn_than_the_bound(autojump_clock: object) -> None:
    async with running_node() as world:
        busy, other = await world.call(APP), await world.call(OPERATOR)
        keys = held_keys(world.node, ROWS)
        requests = [check(seq, *keys) for seq in range(1, MAX_WAITING // 2 // ROWS + 3)]

        received = await busy.send(*requests)
        await other.send(check(1, *keys))

        refused = [each for each in received if isinstance(each, Refused)]
        assert [each.code for each in refused] == [ErrorCode.OVERLOADED] * 2
        assert world.count("shed") == 2 * ROWS
        assert len(rows_of(other, 1)) == ROWS


async def test_a_client_that_requests_the_rules_repeatedly_waits_its_turn(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        busy, _ = await world.call(APP), await world.call(OPERATOR)
        asked: list[Message] = [AskRules(seq) for seq in range(1, 51)]

        order = await answered_in(world, asked, [check(1)])

        assert sum(isinstance(each, Rules) for each in busy.received) == 50
        assert order == [1] + [0] * 50


async def test_a_client_beyond_the_bound_is_rejected_in_turn(autojump_clock: object) -> None:
    async with running_node() as world:
        caller = await world.call(APP)
        keys = held_keys(world.node, ROWS)
        fitting = MAX_WAITING // 2 // ROWS

        received = await caller.send(*[check(seq, *keys) for seq in range(1, fitting + 2)])

        assert isinstance(received[-1], Refused)
        assert received[-1].seq == fitting + 1
        assert not world.node.dispatcher._scheduler


def decoded_in(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the sizes of the frames that sessions decode."""
    sizes: list[int] = []

    def counting(payload: bytes, **bounds: Any) -> Message:
        sizes.append(len(payload))
        return decode(payload, **bounds)

    monkeypatch.setattr("node.requests.sessions.session.decode", counting)
    return sizes


async def test_requests_behind_a_long_one_are_decoded_in_their_turn(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node() as world:
        busy, _ = await world.call(APP), await world.call(OPERATOR)
        [flooding, calm] = world.node.sessions.by_id.values()
        keys = held_keys(world.node, ROWS)
        decoded = decoded_in(monkeypatch)

        for seq in range(1, 9):
            flooding.on_message(encode(check(seq, *keys)))
        calm.on_message(encode(check(1)))
        at_once = len(decoded)
        await trio.sleep(0.1)

        assert at_once == 2  # The first long request and the one of the other client.
        assert len(decoded) == 9
        assert all(rows_of(busy, seq) for seq in range(1, 9))
        assert world.count("checks") == 8 * ROWS + 1


async def test_a_client_without_waiting_requests_is_decided_on_arrival(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node() as world:
        await world.call(APP)
        [session] = world.node.sessions.by_id.values()
        decoded = decoded_in(monkeypatch)

        for seq in range(1, 9):
            session.on_message(encode(check(seq)))

        assert len(decoded) == world.count("checks") == 8


async def test_requests_beyond_the_bound_are_rejected_without_decoding(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node() as world:
        caller = await world.call(APP)
        [session] = world.node.sessions.by_id.values()
        key = held_keys(world.node, 1)
        decoded = decoded_in(monkeypatch)

        session.on_message(encode(check(1, *held_keys(world.node, ROWS))))
        for seq in range(2, 400):
            session.on_message(encode(check(seq, *key)))
        assert len(decoded) == 1
        await trio.sleep(0.5)

        refused = [each.seq for each in caller.received if isinstance(each, Refused)]
        assert refused == [*range(257, 400)]
        assert len(decoded) == 256


async def test_invalid_bytes_in_a_queued_request_close_only_its_connection(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        await world.call(APP)
        [session] = world.node.sessions.by_id.values()
        keys = held_keys(world.node, ROWS)

        session.on_message(encode(check(1, *keys)))
        session.on_message(encode(check(2, *keys))[:-1])
        await trio.sleep(0.1)

        assert world.count("refused_bad_message_garbled") == 1
        assert not world.node.sessions
        assert not world.node.dispatcher._scheduler
