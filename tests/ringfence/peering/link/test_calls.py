"""Calls over a link, and their replies."""

import pytest
import trio

from ringfence.limiter import PackedSnapshot
from ringfence.peering.target import SHED
from ringfence.wire import (
    AskPeers,
    Batch,
    Copy,
    Digest,
    DigestMismatch,
    Done,
    ErrorCode,
    Exchange,
    Exchanged,
    Op,
    Peers,
    Pull,
    Pulled,
    Refused,
    Request,
    TransferOffer,
)
from tests.ringfence.peering.link.linked_world import (
    DELAY,
    MEMBERS,
    TIMEOUT,
    answer_to,
    ask,
    call,
    key,
    world,
)


async def test_a_call_gets_its_reply(autojump_clock):
    async with world() as w:
        replies = call(w.link)
        await trio.sleep(1)

        assert [reply.members for reply in replies] == [MEMBERS]


async def test_a_call_without_a_reply_fails_after_the_time_out(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        replies = call(w.link)
        await trio.sleep(2)

        assert replies == [None]


async def test_a_call_to_a_lost_member_fails_at_once(autojump_clock):
    async with world(serve=False) as w:
        ask(w.link, "a")
        await trio.sleep(1)

        assert call(w.link) == [None]


async def test_a_call_answered_by_an_answer_fails(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        replies = call(w.link)
        await trio.sleep(2 * DELAY)
        request = Request(1, 0, 1, 0, False, Batch(Op.CHECK, [key("a")], [1]))
        w.peer.send(answer_to(request))
        await trio.sleep(2 * DELAY)

        assert replies == [None]


NOTHING = PackedSnapshot(b"", 0, [], [])


@pytest.mark.parametrize(
    ("make", "reply"),
    [
        (lambda seq: Exchange(seq, b"mine"), lambda seq: Exchanged(seq, b"theirs")),
        (lambda seq: Pull(seq, [1], 0), lambda seq: Pulled(seq, [], NOTHING, [])),
        (lambda seq: Digest(seq, "eu", [1], [2]), lambda seq: DigestMismatch(seq, [1])),
        (lambda seq: Copy(seq, PackedSnapshot(b"", 0, [], [])), Done),
        (AskPeers, lambda seq: Peers(seq, [])),
    ],
)
async def test_calls_between_nodes_get_their_replies(autojump_clock, make, reply):
    async with world() as w:
        w.peer.reply_to_other = lambda question: reply(question.seq)
        replies = call(w.link, make)
        await trio.sleep(1)

        assert w.peer.questions == [make(1)]
        assert replies == [reply(1)]


async def test_a_refused_call_fails_alone(autojump_clock):
    async with world() as w:
        w.peer.reply_to_other = lambda question: Refused(
            question.seq, ErrorCode.OVERLOADED, "too many"
        )
        replies, asked = call(w.link, AskPeers), ask(w.link, "a")
        await trio.sleep(1)

        assert replies == [None]
        assert asked.is_answered
        assert w.link.is_ready


async def test_a_call_can_have_a_longer_time_out_than_a_check(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        patient, usual = call(w.link, AskPeers, 2.0), call(w.link, AskPeers)
        await trio.sleep(TIMEOUT + DELAY)
        assert (patient, usual) == ([], [None])

        asked = ask(w.link, "a")
        await trio.sleep(1.4 - TIMEOUT)
        w.peer.send(Peers(1, []))
        await trio.sleep(DELAY * 2)

        assert patient == [Peers(1, [])]
        assert asked.is_answered


async def test_a_long_call_does_not_delay_the_time_out_of_checks(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        patient = call(w.link, AskPeers, 2.0)
        began = trio.current_time()
        await trio.sleep(0.8)
        w.peer.answers = False
        asked = ask(w.link, "a")
        await trio.sleep(0.8)
        assert asked.received == [SHED]
        assert asked.at == [pytest.approx(began + 0.8 + TIMEOUT)]
        assert patient == []
        await trio.sleep(0.5)

        assert patient == [None]


async def test_a_call_that_cannot_be_encoded_fails_alone(autojump_clock):
    async with world() as w:
        w.peer.reply_to_other = lambda question: Done(question.seq)
        bad = call(w.link, lambda seq: TransferOffer(seq, []))
        good = call(w.link, lambda seq: TransferOffer(seq, [1]))
        await trio.sleep(1)

        assert bad == [None]
        assert good == [Done(2)]
