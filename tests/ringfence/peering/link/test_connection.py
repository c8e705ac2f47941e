"""Connection of a link: silence, loss, refusals, goodbyes and bad messages."""

from random import Random

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from ringfence.errors import AccessDenied, PeerUnavailable
from ringfence.peering.link import LinkSettings
from ringfence.peering.link.connection import _Backoff
from ringfence.peering.target import SHED
from ringfence.wire import (
    Batch,
    ErrorCode,
    Goodbye,
    Hello,
    Members,
    Op,
    Ping,
    Pong,
    Refused,
    Role,
    Welcome,
    encode,
)
from tests.ringfence.peering.link.linked_world import (
    DELAY,
    HERE,
    MEMBERS,
    THERE,
    TIMEOUT,
    answer_to,
    ask,
    call,
    key,
    world,
)


async def test_a_batch_without_an_answer_in_time_fails(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        started = trio.current_time()
        asked = ask(w.link, "a")
        await trio.sleep(2)

        assert asked.received == [SHED], "it answers pings"
        assert asked.at == [pytest.approx(started + TIMEOUT)]


async def test_a_member_that_answers_the_ping_stays_connected(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        ask(w.link, "a")
        await trio.sleep(5)

        assert w.link.is_ready
        w.peer.answers = True
        asked = ask(w.link, "b")
        await trio.sleep(1)
        assert asked.is_answered
        assert len(w.peer.hellos) == 1


async def test_a_member_that_misses_the_ping_is_lost_and_reconnected(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = w.peer.answers_pings = w.peer.sends_welcome = False
        asked = ask(w.link, "a")
        await trio.sleep(3 * TIMEOUT)

        assert asked.received == [None]
        assert w.link.is_lost
        assert w.listener.reachable == [True, False]
        assert ask(w.link, "b").received == [None]
        assert "has not answered" in str(w.link.refusal)

        w.peer.answers = w.peer.answers_pings = w.peer.sends_welcome = True
        await trio.sleep(10)
        assert w.link.is_ready
        assert w.listener.reachable == [True, False, True]
        asked = ask(w.link, "c")
        await trio.sleep(1)
        assert asked.is_answered


async def test_one_lost_frame_among_answered_ones_keeps_the_member(
    autojump_clock,
):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.reply = lambda request: Pong(10**6)
        lost = ask(w.link, "lost")
        await trio.sleep(3 * DELAY)
        w.peer.reply = w.peer.answer
        for _ in range(5):
            await trio.sleep(TIMEOUT / 4)
            ask(w.link, "other")
        await trio.sleep(3)

        assert lost.received == [SHED]
        assert w.listener.reachable == [True]


async def test_batches_do_not_wait_for_a_slow_handshake(autojump_clock):
    async with world(serve=False) as w:
        w.network.cut(HERE, THERE)
        started = trio.current_time()
        asked = ask(w.link, "a")
        await trio.sleep(1)

        assert asked.received == [None]
        assert asked.at == [pytest.approx(started + TIMEOUT)]
        assert w.link.is_lost
        assert ask(w.link, "b").received == [None]


async def test_a_handshake_that_succeeds_late_brings_the_member_back(autojump_clock):
    async with world() as w:
        w.network.set_delay(HERE, THERE, 0.4)
        asked = ask(w.link, "a")
        await trio.sleep(5)

        assert asked.received == [None]
        assert w.link.is_ready
        assert not w.link.is_lost


@pytest.mark.parametrize("seed", range(20))
def test_a_time_out_comes_once_at_any_clock_reading(seed):
    random = Random(seed)

    async def run():
        async with world() as w:
            w.link.open()
            await trio.sleep(1 + random.random() * 1e6)
            w.peer.answers = False
            asked = ask(w.link, "a")
            await trio.sleep(5)
            assert asked.received == [SHED]
            assert w.link.is_ready

    trio.run(run, clock=MockClock(autojump_threshold=0))


async def test_frames_in_flight_are_sent_again_under_their_numbers(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        asked = ask(w.link, "a", "b")
        await trio.sleep(2 * DELAY)
        w.peer.answers = True
        w.peer.hang_up()
        await trio.sleep(1)

        assert asked.is_answered
        first, again = w.peer.requests
        assert first == again
        assert [hello.session for hello in w.peer.hellos] == [5, 5]
        assert w.listener.reachable == [True, True]


async def test_batches_wait_while_the_link_reconnects(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.hang_up()
        await trio.sleep(1.5 * DELAY)
        asked = ask(w.link, "a")
        await trio.sleep(1)

        assert asked.is_answered


async def test_sequence_numbers_are_never_used_twice(autojump_clock):
    async with world() as w:
        for number in range(6):
            ask(w.link, number)
            await trio.sleep(1)
            if number % 2:
                w.peer.hang_up()
        numbers = [request.seq for request in w.peer.requests]

        assert len(set(numbers)) == len(numbers) == 6


async def test_a_restarted_member_gets_the_frames_in_flight(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        asked = ask(w.link, "a")
        await trio.sleep(2 * DELAY)
        w.crash()
        w.peer.answers = True
        await w.serve()
        w.link.connection.on_close(ErrorCode.IDLE, "the old one forgot us")
        await trio.sleep(1)

        assert asked.is_answered


async def test_a_stopped_member_is_lost_at_once_and_found_after_start(autojump_clock):
    async with world(serve=False) as w:
        asked = ask(w.link, "a")
        await trio.sleep(5 * DELAY)

        assert asked.received == [None]
        assert isinstance(w.link.refusal, PeerUnavailable)
        assert "no process listens at node:7101" in str(w.link.refusal)
        assert ask(w.link, "b").received == [None]
        await w.serve()
        await trio.sleep(5)
        assert w.link.is_ready
        assert w.link.refusal is None


async def test_reconnection_backs_off(autojump_clock):
    async with world() as w:
        w.peer.refusal = Refused(0, ErrorCode.OVERLOADED, "full")
        w.link.open()
        await trio.sleep(1)
        early = len(w.peer.hellos)
        await trio.sleep(59)
        late = len(w.peer.hellos) - early

        assert 2 <= early <= 8
        assert 25 <= late <= 62


class Drawn(Random):
    """Random number generator that always returns the same number."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def random(self):
        return self.number


@pytest.mark.parametrize(("number", "share"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_pauses_between_attempts_double_up_to_the_maximum_with_jitter(number, share):
    backoff = _Backoff(LinkSettings(min_backoff=1.0, max_backoff=6.0), Drawn(number))

    def pause():
        return backoff.next_pause(was_ready=False, was_idle=False, lasted=0.0)

    assert [pause() for _ in range(5)] == [share * each for each in (1, 2, 4, 6, 6)]
    backoff.reset()
    assert pause() == share


def test_an_attempt_has_no_pause_after_a_connection_that_lasted_longer_than_the_pause():
    backoff = _Backoff(LinkSettings(min_backoff=1.0, max_backoff=6.0), Drawn(1.0))

    def pause(lasted, *, was_idle=False):
        return backoff.next_pause(was_ready=True, was_idle=was_idle, lasted=lasted)

    assert [pause(0.0), pause(2.0), pause(3.9), pause(1.0, was_idle=True)] == [0.0, 2.0, 4.0, 6.0]
    assert [pause(1.1, was_idle=True), pause(2.1)] == [0.0, 0.0]


async def test_an_idle_link_reconnects_without_pause_after_each_break(autojump_clock):
    async with world() as w:
        w.link.open()
        for number in range(8):
            await trio.sleep(3)
            assert len(w.peer.hellos) == number + 1
            w.peer.hang_up()
            await trio.sleep(7 * DELAY)
            assert w.link.is_ready


async def test_an_idle_link_reconnects_soon_although_earlier_connections_were_short(autojump_clock):
    async with world() as w:
        w.peer.hangs_up = True
        w.link.open()
        await trio.sleep(10)
        w.peer.hangs_up = False
        while not w.link.is_ready:  # noqa: ASYNC110 - a link has no event.
            await trio.sleep(DELAY)
        for _ in range(8):
            await trio.sleep(30 * DELAY)
            w.peer.hang_up()
            await trio.sleep(7 * DELAY)

            assert w.link.is_ready


@pytest.mark.parametrize("delay", [DELAY, 20 * DELAY])
async def test_a_member_that_always_hangs_up_after_its_welcome_causes_back_off(
    autojump_clock, delay
):
    async with world() as w:
        w.network.set_delay(HERE, THERE, delay)
        w.peer.hangs_up = True
        w.link.open()
        await trio.sleep(60)

        assert len(w.peer.hellos) <= 60


async def test_a_member_that_welcomes_and_hangs_up_causes_back_off(autojump_clock):
    async with world() as w:

        def hang_up(request):
            w.peer.hang_up()
            return Pong(1)

        w.peer.reply = hang_up
        for _ in range(20):
            ask(w.link, "a")
            await trio.sleep(0.5)

        assert len(w.peer.hellos) <= 40


async def test_a_handshake_time_out_leads_to_reconnection(autojump_clock):
    async with world() as w:
        w.peer.sends_welcome = False
        asked = ask(w.link, "a")
        await trio.sleep(4)
        assert asked.received == [None]
        assert len(w.peer.hellos) == 1
        w.peer.sends_welcome = True
        await trio.sleep(4)

        assert w.link.is_ready


async def test_a_refused_credential_is_reported_as_access_denied(autojump_clock):
    async with world() as w:
        w.peer.refusal = Refused(0, ErrorCode.BAD_CREDENTIAL, "no such token")
        asked = ask(w.link, "a")
        await trio.sleep(5 * DELAY)

        assert asked.received == [None]
        assert isinstance(w.link.refusal, AccessDenied)
        assert "no such token" in str(w.link.refusal)


async def test_a_credential_that_is_accepted_later_brings_the_member_back(autojump_clock):
    async with world() as w:
        w.peer.refusal = Refused(0, ErrorCode.BAD_CREDENTIAL, "no such token")
        ask(w.link, "a")
        await trio.sleep(1)
        w.peer.refusal = None
        await trio.sleep(5)

        assert w.link.is_ready
        assert w.link.refusal is None


async def test_a_refused_request_fails_alone(autojump_clock):
    async with world() as w:
        w.peer.reply = lambda request: (
            Refused(request.seq, ErrorCode.NOT_PERMITTED, "the token lacks the scope 'reset'")
            if request.batch.op is Op.RESET
            else answer_to(request)
        )
        refused, allowed = ask(w.link, "a", op=Op.RESET), ask(w.link, "b")
        await trio.sleep(1)

        assert [type(received) for received in refused.received] == [AccessDenied]
        assert "the token lacks the scope 'reset'" in str(refused.received[0])
        assert allowed.is_answered
        assert w.link.is_ready
        assert w.link.refusal is None


async def test_a_draining_member_answers_and_gets_no_more_requests(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        in_flight = ask(w.link, "a")
        await trio.sleep(2 * DELAY)
        w.peer.send(Goodbye("maintenance"))
        await trio.sleep(2 * DELAY)

        assert in_flight.received == []
        assert ask(w.link, "b").received == [None]
        assert w.listener.reachable == [True, False]
        w.peer.send(answer_to(w.peer.requests[0]))
        await trio.sleep(3 * DELAY)
        assert in_flight.is_answered
        assert w.peer.closings == [ErrorCode.OK]


async def test_unsent_batches_fail_at_a_goodbye(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.send(Goodbye("maintenance"))
        await trio.sleep(0.9 * DELAY)
        in_flight = ask(w.link, "a")
        waiting, replies = ask(w.link, "b"), call(w.link)
        w.link.connection.on_message(encode(Goodbye("maintenance")))

        assert waiting.received == [None]
        assert replies == [None]
        await trio.sleep(1)
        assert in_flight.is_answered


async def test_requests_to_a_member_that_left_expire(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        in_flight = ask(w.link, "a")
        await trio.sleep(2 * DELAY)
        w.peer.send(Goodbye("maintenance"))
        await trio.sleep(TIMEOUT)

        assert in_flight.received == [None]


async def test_a_member_that_left_is_reconnected_after_its_return(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.refusal = Refused(0, ErrorCode.DRAINING, "leaving")
        w.peer.send(Goodbye("maintenance"))
        await trio.sleep(1)
        assert w.link.is_lost
        w.peer.refusal = None
        await trio.sleep(5)

        assert w.link.is_ready
        assert w.listener.reachable == [True, False, True]


@pytest.mark.parametrize(
    "reply",
    [
        lambda request: Members(request.seq, 11, MEMBERS),
        lambda request: Pong(request.seq),
        lambda request: answer_to(replace(request, batch=Batch(Op.CHECK, [key("x")] * 3, [1] * 3))),
        lambda request: Welcome("n1", 11, 22),
        lambda request: Ping(3),
        lambda request: Hello(Role.NODE, "n1", b"", 1),
    ],
    ids=["members", "pong", "wrong count", "second welcome", "ping", "hello"],
)
async def test_a_protocol_error_fails_one_batch_and_reconnects(autojump_clock, reply):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.reply = reply
        odd = ask(w.link, "a", "b")
        await trio.sleep(1.5 * DELAY)
        w.peer.reply = w.peer.answer
        await trio.sleep(2)
        good = ask(w.link, "c")
        await trio.sleep(1)

        assert odd.is_answered in (None, True)
        assert good.is_answered
        assert len(w.peer.hellos) == 2


@pytest.mark.parametrize("payload", [b"\xc1", b"\x90", b"\x91\x07"])
async def test_undecodable_bytes_close_the_connection_only(autojump_clock, payload):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.send_payload(payload)
        await trio.sleep(1)
        asked = ask(w.link, "a")
        await trio.sleep(1)

        assert asked.is_answered
        assert len(w.peer.hellos) == 2


async def test_an_answer_to_an_unknown_request_is_ignored(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        ask(w.link, "a")
        await trio.sleep(1)
        w.peer.send(answer_to(w.peer.requests[0]))
        await trio.sleep(1)

        assert w.link.is_ready
