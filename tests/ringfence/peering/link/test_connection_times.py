"""Connection of a link: exact times of pings, losses, handshakes and new attempts, and pauses of
this process."""

import pytest
import trio

from ringfence.errors import AccessDenied, PeerUnavailable
from ringfence.peering.link.connection import Destination
from ringfence.peering.target import SHED
from ringfence.wire import AskStats, ErrorCode, Hello, Refused, Role
from tests.ringfence.peering.link.linked_world import (
    DELAY,
    HERE,
    THERE,
    TIMEOUT,
    ask,
    call,
    world,
)

ROUND_TRIP = 2 * DELAY
HANDSHAKE = 2.5 * ROUND_TRIP
"""Two round trips, and a margin."""
ADAPTED = ROUND_TRIP + 0.2
"""Time-out after the handshake: the round trip plus the margin."""


async def until(started, seconds):
    await trio.sleep_until(started + seconds)


async def test_after_a_pause_of_this_process_answers_are_read_before_requests_expire(
    autojump_clock,
):
    async with world(answer_timeout_margin=TIMEOUT) as w:
        w.link.open()
        await trio.sleep(1)
        asked = ask(w.link, "a")
        autojump_clock.jump(TIMEOUT + 0.06)
        await trio.sleep(1)

        assert asked.is_answered


async def test_a_timer_may_be_a_little_late(autojump_clock):
    async with world(answer_timeout_margin=TIMEOUT) as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        asked = ask(w.link, "a")
        autojump_clock.jump(TIMEOUT + 0.04)
        await trio.sleep(DELAY / 2)

        assert asked.received == [None]


async def test_after_a_long_pause_a_silent_member_is_noticed_50_ms_later(autojump_clock):
    async with world(answer_timeout_margin=TIMEOUT) as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        asked = ask(w.link, "a")
        autojump_clock.jump(60)
        started = trio.current_time()
        await until(started, 0.049)
        assert asked.received == []
        await until(started, 0.051)

        assert len(asked.received) == 1


@pytest.mark.parametrize("answers", [True, False])
async def test_checks_of_a_process_that_is_always_late_end_after_slow_timeout(
    autojump_clock, answers
):
    async with world(slow_timeout=1.0) as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = answers
        asked = []
        for number in range(20):
            asked.append(ask(w.link, number))
            autojump_clock.jump(0.3)
            for _ in range(20):  # Turns of the event loop; the clock does not advance in them.
                await trio.lowlevel.checkpoint()

        decided = [each.received for each in asked[:10]]
        if answers:
            assert all(each.is_answered for each in asked[:10])
        else:
            assert all(received in ([None], [SHED]) for received in decided)
        assert w.link.is_ready
        assert len(w.peer.hellos) == 1


async def test_a_process_that_is_always_late_notices_that_a_member_is_silent(autojump_clock):
    async with world(slow_timeout=1.0) as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = w.peer.answers_pings = False
        asked = []
        for number in range(10):
            asked.append(ask(w.link, number))
            autojump_clock.jump(0.3)
            for _ in range(20):
                await trio.lowlevel.checkpoint()

        assert asked[0].received == [None]
        assert False in w.listener.reachable


async def test_one_pause_after_an_overload_fails_no_check(autojump_clock):
    async with world(slow_timeout=1.0) as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        ask(w.link, "a")
        for _ in range(8):
            autojump_clock.jump(0.3)
            for _ in range(20):
                await trio.lowlevel.checkpoint()
        w.peer.answers = True
        await trio.sleep(60)
        asked = ask(w.link, "b")

        autojump_clock.jump(1.1)
        await trio.sleep(1)

        assert asked.is_answered


async def test_the_handshake_is_the_first_round_trip(autojump_clock):
    async with world() as w:
        w.link.open()
        assert w.link.answer_timeout(0.0, 9.0) == 9.0
        await trio.sleep(1)

        assert w.link.answer_timeout(0.0, 9.0) == pytest.approx(ROUND_TRIP * 3)
        assert w.link.answer_timeout(0.2, 9.0) == pytest.approx(ADAPTED)


@pytest.mark.parametrize(
    ("limits", "lost_after"),
    [({}, 3 * ADAPTED), ({"slow_timeout": 1.0}, 1.0), ({"deadline": 0.9}, 3 * ADAPTED)],
)
async def test_a_silent_member_is_pinged_after_a_time_out_and_lost_after_three_or_slow_timeout(
    autojump_clock, limits, lost_after
):
    async with world(**limits) as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = w.peer.answers_pings = w.peer.sends_welcome = False
        started = trio.current_time()
        ask(w.link, "a")
        await until(started, ADAPTED - 0.001)
        assert w.link.is_alive()
        await until(started, ADAPTED + 0.001)
        assert not w.link.is_alive()
        assert w.link.is_ready

        await until(started, lost_after - 0.001)
        assert w.link.is_ready
        assert not w.link.is_lost
        await until(started, lost_after + 0.001)
        assert not w.link.is_ready
        assert w.link.is_lost
        assert "node:7101 has not answered for" in str(w.link.refusal)
        silence = float(str(w.link.refusal).split()[-2])
        assert silence == pytest.approx(lost_after, abs=0.1)  # Without the idle second before.


async def test_a_member_that_answers_the_ping_is_alive_again(autojump_clock):
    async with world(slow_timeout=1.0) as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        started = trio.current_time()
        ask(w.link, "a")
        await until(started, ADAPTED + 0.001)
        assert not w.link.is_alive()
        await until(started, ADAPTED + ROUND_TRIP + 0.001)

        assert w.link.is_alive()


async def test_a_member_without_a_welcome_is_dropped_after_the_handshake_time_out(autojump_clock):
    async with world(handshake_timeout=0.75) as w:
        w.peer.sends_welcome = False
        w.link.open()
        while not w.peer.hellos:  # noqa: ASYNC110 - a link has no event.
            await trio.sleep(DELAY / 4)
        started = trio.current_time() - DELAY
        await until(started, 0.74)
        assert w.link.refusal is None
        await until(started, 0.76)

        assert isinstance(w.link.refusal, PeerUnavailable)
        assert "sent no welcome" in str(w.link.refusal)


async def test_a_handshake_time_out_does_not_end_a_connection_with_a_welcome(autojump_clock):
    async with world(handshake_timeout=0.75) as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.hang_up()
        await trio.sleep(1)

        assert w.link.is_ready
        assert len(w.peer.hellos) == 2


async def test_a_link_connects_once(autojump_clock):
    async with world() as w:
        for _ in range(3):
            w.link.open()
            await trio.sleep(1)

        assert len(w.peer.hellos) == 1


async def test_requests_fail_at_once_when_a_member_ends_the_connection_for_its_credential(
    autojump_clock,
):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        asked = ask(w.link, "a")
        await trio.sleep(2 * DELAY)
        w.peer.refusal = Refused(0, ErrorCode.BAD_CREDENTIAL, "revoked")
        w.peer.connections[-1].close(ErrorCode.BAD_CREDENTIAL, "revoked")
        w.peer.transport.flush()
        await trio.sleep(1.5 * DELAY)

        assert asked.received == [None]
        assert w.link.is_lost
        assert isinstance(w.link.refusal, AccessDenied)
        assert w.listener.reachable == [True, False]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.NOT_PERMITTED, AccessDenied),
        (ErrorCode.OVERLOADED, type(None)),
        (ErrorCode.TOO_LATE, type(None)),
        (ErrorCode.NOT_HERE, PeerUnavailable),
    ],
)
async def test_a_refused_call_fails_and_others_continue(autojump_clock, code, kind):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.reply_to_other = lambda question: Refused(question.seq, code, "no")
        refused = call(w.link, AskStats)
        asked = ask(w.link, "a")
        await trio.sleep(1)

        assert refused == [None]
        assert asked.is_answered
        assert w.link.is_ready
        assert isinstance(w.link.refusal, kind)


def hello(credential=b""):
    return Hello(Role.CLIENT, "web", credential, 5)


def test_the_credential_is_made_for_each_connection():
    given = Destination(THERE, hello(b"fixed"))
    assert given.hello_on(None).credential == b"fixed"

    made = Destination(THERE, hello(), lambda connection: b"for %d" % connection)
    assert [made.hello_on(number).credential for number in (1, 2)] == [b"for 1", b"for 2"]
    assert made.hello.credential == b""


@pytest.mark.parametrize(
    ("destination", "needs_token"),
    [
        (Destination(THERE, hello()), True),
        (Destination(THERE, hello(b"secret")), False),
        (Destination(THERE, hello(), lambda _: b"secret"), False),
    ],
)
def test_only_errors_for_a_missing_credential_mention_a_token(destination, needs_token):
    error = destination.error_of(ErrorCode.BAD_CREDENTIAL, "unknown")

    assert isinstance(error, AccessDenied)
    assert ("requires a token" in str(error)) == needs_token


async def test_a_shed_batch_leaves_room(autojump_clock):
    async with world(max_waiting=1) as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.reply = lambda request: Refused(request.seq, ErrorCode.OVERLOADED, "behind")
        for _ in range(3):
            asked = ask(w.link, "a")
            await trio.sleep(0.1)
            assert asked.received == [SHED]
        w.peer.reply = w.peer.answer
        asked = ask(w.link, "a")
        await trio.sleep(0.1)

        assert asked.is_answered


async def test_a_member_that_answers_calls_is_reconnected_without_a_pause(autojump_clock):
    async with world(min_backoff=1.0) as w:
        w.link.open()
        await trio.sleep(1)
        for _ in range(6):
            replies = call(w.link)
            await trio.sleep(3 * DELAY)
            assert len(replies) == 1
            w.peer.hang_up()
            await trio.sleep(7 * DELAY)
            assert w.link.is_ready


@pytest.mark.parametrize("is_report", [True, False])
@pytest.mark.parametrize("code", [ErrorCode.BAD_MESSAGE, ErrorCode.INTERNAL])
async def test_a_member_that_rejects_a_report_as_invalid_gets_no_more(
    autojump_clock, code, is_report
):
    async with world() as w:
        w.link.open()
        await trio.sleep(1)
        w.peer.answers = False
        replies = []
        if is_report:
            w.link.report(AskStats, replies.append)
        else:
            w.link.call(AskStats, replies.append)
        await trio.sleep(2 * DELAY)
        w.peer.connections[-1].close(code, "no")
        w.peer.transport.flush()
        await trio.sleep(1.5 * DELAY)

        is_rejected = is_report and code == ErrorCode.BAD_MESSAGE
        assert w.link.takes_reports != is_rejected
        assert replies == [None] * is_rejected


# -- a lost member that is alive ------------------------------------------------------------------


async def test_a_member_that_is_alive_is_connected_again_without_a_pause(autojump_clock):
    async with world(serve=False, min_backoff=100.0, max_backoff=100.0) as w:
        ask(w.link, "a")
        await trio.sleep(1)
        assert w.link.is_lost
        await w.serve()
        w.link.retry()
        await trio.sleep(HANDSHAKE)

        assert w.link.is_ready
        assert not w.link.is_lost
        await trio.sleep(200)
        assert len(w.peer.hellos) == 1


async def test_an_attempt_whose_packet_was_lost_is_repeated_at_once(autojump_clock):
    async with world() as w:
        w.network.cut(HERE, THERE)
        ask(w.link, "a")
        await trio.sleep(1.5)
        w.network.heal(HERE, THERE)
        w.link.retry()
        await trio.sleep(HANDSHAKE)

        assert w.link.is_ready
        await trio.sleep(10)
        assert len(w.peer.hellos) == 1


async def test_an_attempt_that_reached_the_member_continues(autojump_clock):
    async with world() as w:
        w.peer.sends_welcome = False
        ask(w.link, "a")
        await trio.sleep(1)
        assert w.link.is_lost
        w.link.retry()
        await trio.sleep(1)

        assert len(w.peer.hellos) == 1


async def test_a_member_that_refuses_the_link_is_retried_once_per_longest_pause(autojump_clock):
    async with world(min_backoff=100.0, max_backoff=10.0) as w:
        w.peer.refusal = Refused(0, ErrorCode.OVERLOADED, "full")
        w.link.open()
        await trio.sleep(0.5)
        assert len(w.peer.hellos) == 1
        attempts = []
        for _ in range(30):
            before = len(w.peer.hellos)
            w.link.retry()
            await trio.sleep(0.1)
            attempts.append(len(w.peer.hellos) - before)

        assert attempts == [1] + [0] * 29


@pytest.mark.parametrize("state", ["idle", "connecting", "ready", "leaving", "closed"])
async def test_only_a_lost_member_is_connected_again(autojump_clock, state):
    async with world() as w:
        if state != "idle":
            w.link.open()
        if state in ("ready", "leaving"):
            await trio.sleep(1)
        if state == "leaving":
            w.peer.answers = False
            ask(w.link, "a")
            w.link.retire()
        if state == "closed":
            w.link.close()
        w.link.retry()
        await trio.sleep(0.2)

        assert len(w.peer.hellos) == (state not in ("idle", "closed"))
        assert len(w.peer.connections) == len(w.peer.hellos)


async def test_an_attempt_that_is_not_lost_goes_on(autojump_clock):
    async with world() as w:
        w.link.open()
        await trio.sleep(0.7 * ROUND_TRIP)
        w.link.retry()
        await trio.sleep(1.8 * ROUND_TRIP)

        assert w.link.is_ready


async def test_a_retry_replaces_the_next_planned_attempt(autojump_clock):
    async with world(min_backoff=100.0, max_backoff=100.0) as w:
        w.peer.refusal = Refused(0, ErrorCode.OVERLOADED, "full")
        w.link.open()
        await trio.sleep(0.5)
        w.link.retry()
        await trio.sleep(0.5)
        began = len(w.peer.hellos)
        await trio.sleep(100)

        assert (began, len(w.peer.hellos)) == (2, 3)
