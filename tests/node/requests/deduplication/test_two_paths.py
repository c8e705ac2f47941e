"""Checks that reach whole nodes on two paths count once."""

import pytest
from msgspec.structs import replace
from trio.testing import MockClock

from hashring import shard_of
from ringfence.limiter import Code
from ringfence.wire import Answer, Batch, Hello, Op, Pull, Pulled, Request, Role, Source
from tests.node.cluster import counter, owned
from tests.node.cluster import world as cluster_world
from tests.node.requests.deduplication.decided_hosts import outcomes
from tests.node.requests.sessions.session_world import (
    APP,
    check,
    remaining,
    running_node,
    with_columns,
)
from tests.node.requests.sessions.session_world import key_of as session_key_of
from tests.security.requests.test_takeover import call


@pytest.mark.parametrize(
    "asks",
    [["first", "repeat"], ["repeat", "first"], ["repeat", "repeat"], ["repeat", "repeat", "first"]],
    ids=" ".join,
)
async def test_a_check_sent_on_two_paths_counts_once_with_one_outcome(
    asks: list[str], autojump_clock: object
) -> None:
    async with running_node() as world:
        app = await world.call(APP)
        gateway = await world.call(replace(APP, session=2))
        reported = []
        for number, ask in enumerate(asks):
            if ask == "first":
                reported += outcomes(await app.send(check(5)))
            else:
                repeat = with_columns(check(20 + number), ids=[(APP.session, 5, 0)])
                reported += outcomes(await gateway.send(repeat))

        assert [left for _, _, left in reported] == [4] * len(asks)
        assert {code for _, code, _ in reported} == {Code.ALLOWED}
        assert world.count("checks") == 1
        assert world.count("repeated_checks") == len(asks) - 1
        assert remaining(await app.send(check(6))) == [3]


@pytest.mark.parametrize(
    "asks",
    [["first", "repeat"], ["repeat", "first"], ["repeat", "repeat", "first"]],
    ids=" ".join,
)
async def test_a_refund_sent_on_two_paths_is_applied_once(
    asks: list[str], autojump_clock: object
) -> None:
    async with running_node() as world:
        app = await world.call(APP)
        gateway = await world.call(replace(APP, session=2))
        await app.send(check(4, cost=3))
        reported = []
        for number, ask in enumerate(asks):
            if ask == "first":
                reported += outcomes(await app.send(check(5, op=Op.REFUND)))
            else:
                repeat = with_columns(check(20 + number, op=Op.REFUND), ids=[(APP.session, 5, 0)])
                reported += outcomes(await gateway.send(repeat))

        assert [left for _, _, left in reported] == [3] * len(asks)
        assert world.count("refunds") == 1
        assert remaining(await app.send(check(6))) == [2]


async def test_direct_refunds_and_resets_move_with_their_shard(autojump_clock: object) -> None:
    async with running_node() as world:
        app = await world.call(APP)
        await app.send(check(5, cost=3))
        await app.send(check(6, op=Op.REFUND))
        operator = replace(APP, name="operator", session=2)
        await (await world.call(operator)).send(check(7, cost=0, op=Op.RESET))
        b = await world.call(Hello(Role.NODE, "b", b"", 7))

        [pulled] = await b.send(Pull(9, [shard_of(check(5).batch.keys[0])], 0))

        assert isinstance(pulled, Pulled)
        assert sorted(
            [(each.id, each.cost, each.is_refund, each.is_reset) for each in pulled.decided]
        ) == [
            ((APP.session, 5, 0), 3, False, False),
            ((APP.session, 6, 0), 1, True, False),
            ((operator.session, 7, 0), 0, False, True),
        ]


async def test_decided_rows_of_a_frame_are_repeated_and_other_rows_counted(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        app = await world.call(APP)
        await app.send(check(5))
        key = check(5).batch.keys[0]

        frame = with_columns(
            check(6, key, key, key), ids=[(0, 0, 0), (APP.session, 5, 0), (9, 9, 0)]
        )
        [frame_answer] = await app.send(frame)

        assert isinstance(frame_answer, Answer)
        assert frame_answer.results.outcomes.remaining == [3, 4, 2]
        assert frame_answer.results.sources == [Source.OWNER] * 3


async def test_a_direct_check_moves_with_its_shard(autojump_clock: object) -> None:
    async with running_node() as world:
        app = await world.call(APP)
        key = check(5).batch.keys[0]
        await app.send(check(5, key, key))
        b = await world.call(Hello(Role.NODE, "b", b"", 7))

        [pulled] = await b.send(Pull(9, [shard_of(key)], 0))

        assert isinstance(pulled, Pulled)
        assert [(each.id, each.key, each.row[2]) for each in pulled.decided] == [
            ((APP.session, 5, 0), key, 4),
            ((APP.session, 5, 1), key, 3),
        ]


async def test_a_row_answered_early_moves_with_its_position_in_the_request(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as world:
        app = await world.call(APP)
        key = session_key_of("a")
        await app.send(check(5, session_key_of("b"), key))  # `b` is unreachable, so its row waits.
        b = await world.call(Hello(Role.NODE, "b", b"", 7))

        [pulled] = await b.send(Pull(9, [shard_of(key)], 0))

        assert isinstance(pulled, Pulled)
        assert [each.id for each in pulled.decided] == [(APP.session, 5, 1)]


async def test_a_check_with_a_lost_answer_counts_once_after_its_shard_moved(
    autojump_clock: MockClock,
) -> None:
    async with cluster_world("a") as w:
        client = owned(w.rules, "client", "b", names=("a", "b"))
        key = counter(w.rules, "client", client["client"])
        request = Request(5, 0, 1000, 0, False, Batch(Op.CHECK, [key], [1]))
        at_a = await call(w, "a", 900)
        reported = outcomes(await at_a.send(request))
        await w.start("b")
        await w.settle()
        at_b = await call(w, "b", 901)

        reported += outcomes(
            await at_b.send(with_columns(replace(request, seq=1), ids=[(900, 5, 0)]))
        )
        reported += outcomes(await at_b.send(replace(request, seq=2)))

        assert [left for _, _, left in reported] == [4, 4, 3]
