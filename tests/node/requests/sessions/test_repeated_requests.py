"""Requests that arrive again on one or several connections count once."""

import trio

from ringfence.wire import Hello, Role
from tests.node.requests.sessions.session_world import (
    APP,
    SECRET,
    check,
    key_of,
    remaining,
    running_node,
)


async def test_a_repeated_request_is_answered_twice_and_counted_once(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        caller = await world.call(APP)

        first = await caller.send(check(1, cost=3))
        second = await caller.send(check(1, cost=3))

        assert first == second
        assert remaining(await caller.send(check(2, cost=1))) == [1]
        assert world.count("repeated") == 1
        assert world.count("checks") == 2


async def test_a_repeat_over_a_new_connection_counts_once(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        one = await world.call(APP)
        first = await one.send(check(1, cost=3))
        assert one.connection is not None
        one.connection.close(0, "lost")
        two = await world.call(APP)

        assert await two.send(check(1, cost=3)) == first


async def test_another_process_with_the_same_token_counts_for_itself(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        one = await world.call(APP)
        two = await world.call(Hello(Role.CLIENT, "app", SECRET, 2))

        assert remaining(await one.send(check(1)) + await two.send(check(1))) == [4, 3]


async def test_a_request_still_being_forwarded_is_not_forwarded_again(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        caller = await world.call(APP)
        asked = check(1, key_of("b"), deadline_ms=2000)

        await caller.send(asked, asked)
        await trio.sleep(1)

        assert len(remaining(caller.received)) == 1
        assert world.count("forwarded") == 1
        assert world.count("repeated") == 1


async def test_an_answer_after_a_reconnect_uses_the_new_connection(
    autojump_clock: object,
) -> None:
    async with running_node(delay_to_b=1.0) as world:  # The handshake with b takes a while.
        one = await world.call(APP)
        await one.send(check(1, key_of("b"), deadline_ms=5000))
        assert one.connection is not None
        one.connection.close(0, "lost")
        two = await world.call(APP)

        await two.send(check(1, key_of("b"), deadline_ms=5000))
        await trio.sleep(1)

        assert one.received[1:] == []
        assert len(remaining(two.received)) == 1
