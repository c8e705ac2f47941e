"""Retiring and closing a link."""

import pytest
import trio

from ringfence.wire import (
    ErrorCode,
    Goodbye,
)
from tests.ringfence.peering.link.linked_world import (
    DELAY,
    MEMBERS,
    TIMEOUT,
    answer_to,
    ask,
    call,
    world,
)
from tests.ringfence.peering.link.test_link import disturb


async def test_a_retired_link_waits_for_its_answers_and_closes(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        in_flight, waiting, replies = ask(w.link, "a"), ask(w.link, "b"), call(w.link)
        w.link.retire()
        assert ask(w.link, "c").received == [None]
        assert call(w.link) == [None]
        await trio.sleep(1)

        assert in_flight.is_answered
        assert waiting.is_answered
        assert [reply.members for reply in replies] == [MEMBERS]
        assert w.peer.closings == [ErrorCode.OK]
        await trio.sleep(60)
        assert len(w.peer.hellos) == 1


async def test_a_retired_link_keeps_the_usual_time_outs(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        asked = ask(w.link, "a")
        began = trio.current_time()
        w.link.retire()
        await trio.sleep(60)

        assert asked.received == [None]
        assert asked.at == [pytest.approx(began + TIMEOUT)]
        assert w.peer.closings == [ErrorCode.OK]
        assert len(w.peer.hellos) == 1


@pytest.mark.parametrize("moment", [0.0, 0.5, 1.5, 2.5, 3.5, 4.5, 20.0])
async def test_a_link_can_be_retired_at_any_moment(autojump_clock, moment):
    async with world() as w:
        asked = ask(w.link, "a")
        await trio.sleep(moment * DELAY)
        w.link.retire()
        w.link.retire()
        await trio.sleep(60)

        assert len(asked.received) == 1
        assert len(w.peer.hellos) <= 1
        assert all(not connection.is_open for connection in w.peer.connections)


@pytest.mark.parametrize("fault", ["hang up", "crash", "goodbye", "garbage"])
async def test_a_retired_link_never_reconnects(autojump_clock, fault):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        asked = ask(w.link, "a")
        reachable = list(w.listener.reachable)
        w.link.retire()
        if fault == "garbage":
            w.peer.send_payload(b"junk")
        else:
            await disturb(w, fault)
        await trio.sleep(60)

        assert asked.received == [None]
        assert len(w.peer.hellos) == 1
        assert w.listener.reachable == reachable


async def test_a_link_retired_after_a_goodbye_still_gets_answers(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        asked = ask(w.link, "a")
        w.peer.answers = False
        await trio.sleep(1.5 * DELAY)
        w.peer.send(Goodbye("leaving"))
        await trio.sleep(1.5 * DELAY)
        w.link.retire()
        assert asked.received == []
        w.peer.send(answer_to(w.peer.requests[0]))
        await trio.sleep(60)

        assert asked.is_answered
        assert len(w.peer.hellos) == 1


async def test_closing_fails_waiting_requests_and_informs_the_member(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        in_flight, waiting, replies = ask(w.link, "a"), ask(w.link, "b"), call(w.link)
        w.link.close()
        await trio.sleep(1)

        assert in_flight.received == waiting.received == replies == [None]
        assert w.peer.closings == [ErrorCode.OK]
        assert ask(w.link, "c").received == [None]
        assert call(w.link) == [None]


@pytest.mark.parametrize("moment", [0.0, 0.5, 1.5, 2.5, 3.5, 4.5])
async def test_a_link_can_be_closed_at_any_moment(autojump_clock, moment):
    async with world() as w:
        asked = ask(w.link, "a")
        await trio.sleep(moment * DELAY)
        w.link.close()
        w.link.close()
        await trio.sleep(10)

        assert len(asked.received) == 1
        assert len(w.peer.hellos) <= 1
