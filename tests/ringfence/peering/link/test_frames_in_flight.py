"""Frames in flight: answers, time-outs and round trips."""

import gc
import weakref

import pytest

from ringfence.errors import AccessDenied, RemoteProtocolError
from ringfence.limiter import Code
from ringfence.peering.routing.pending_request import PendingRequest
from ringfence.peering.target import SHED
from ringfence.wire import (
    Done,
    Members,
    Ping,
    decode,
)
from tests.ringfence.peering.link.queue_sender import TIMEOUT, Sender, answer_to, batch_of


def test_each_batch_of_a_frame_gets_its_rows():
    sender = Sender()
    one, two = sender.ask("a"), sender.ask("b", "c")
    sender.flush()

    assert sender.in_flight.answer(answer_to(1, 3))

    assert [len(verdicts.outcomes) for verdicts in (*one, *two)] == [1, 2]
    assert sender.queue.is_empty
    assert not sender.in_flight.answer(answer_to(1, 3))


def test_an_answered_request_is_freed_without_garbage_collection():
    sender = Sender()
    request = PendingRequest(batch_of("a"), 0.0)
    part = request.add_request(request.batch, [0], None)
    part.sent = sender.queue.add(request.batch, 0, False, part.resolve, 0.0)
    sender.flush()
    freed, was_enabled = weakref.ref(request), gc.isenabled()

    gc.disable()
    try:
        sender.in_flight.answer(answer_to(1, 1))
        assert part.results is not None
        del request, part

        assert freed() is None
    finally:
        if was_enabled:
            gc.enable()


@pytest.mark.parametrize("rows", [1, 3])
def test_an_answer_with_a_wrong_row_count_is_a_protocol_error(rows):
    sender = Sender()
    received = sender.ask("a", "b")
    sender.flush()

    with pytest.raises(RemoteProtocolError, match=f"must have 2 rows, got {rows}"):
        sender.in_flight.answer(answer_to(1, rows))

    assert received == [None]


def test_replies_of_the_wrong_kind_are_protocol_errors():
    sender = Sender()
    asked, called = sender.ask("a"), sender.call()
    sender.flush()

    with pytest.raises(RemoteProtocolError, match="must be an Answer, got Members"):
        sender.in_flight.reply(Members(2, 1, []))
    with pytest.raises(RemoteProtocolError, match="must have 0 rows, got 1"):
        sender.in_flight.answer(answer_to(1, 1))

    assert asked == called == [None]


def test_a_reply_is_passed_on_once():
    sender = Sender()
    received = sender.call()
    sender.flush()

    assert [sender.in_flight.reply(Done(1)) for _ in range(2)] == [True, False]
    assert received == [Done(1)]


def test_a_refused_batch_gets_the_error():
    sender = Sender(max_waiting=1)
    received = sender.ask("a")
    sender.flush()
    error = AccessDenied("no")

    sender.in_flight.fail(sender.in_flight.by_seq.pop(1), error)

    assert received == [error]
    assert sender.queue.has_room(1)


def test_frames_and_pings_are_sent_again_unchanged():
    sender = Sender()
    sender.ask("a")
    sender.flush()
    sender.queue.ping(0.0, sender.sent.append)
    before = list(sender.sent)

    sender.in_flight.send_again(sender.sent.append)

    assert sender.sent == before * 2
    assert decode(before[1]) == Ping(2)


def test_a_late_answer_reaches_the_batches_that_expired():
    sender = Sender()
    first = sender.ask("a", now=0.0)
    second = sender.ask("b", "c", now=0.25)
    sender.flush(0.25)
    sender.queue.expire(2.0, -1.0)
    late = answer_to(1, 3)
    late.results.outcomes.codes[1] = Code.DENIED

    sender.in_flight.answer_late(late)
    sender.in_flight.answer_late(late)

    assert [len(first), len(second)] == [2, 2]
    assert first[1].outcomes.codes == [Code.ALLOWED]
    assert second[1].outcomes.codes == [Code.DENIED, Code.ALLOWED]


def test_a_late_answer_that_fits_no_frame_is_ignored():
    sender = Sender(max_frames=1)
    received = sender.ask("a")
    sender.flush()
    sender.queue.expire(2.0, -1.0)

    sender.in_flight.answer_late(answer_to(2, 1))
    sender.in_flight.answer_late(answer_to(1, 2))

    assert received == [None]


def test_frames_to_a_busy_member_wait_up_to_slow_timeout():
    sender = Sender(slow_timeout=4 * TIMEOUT)
    busy = sender.ask("a", now=0.0)
    sender.flush(0.0)

    for step in range(1, 4):
        assert sender.queue.expire(step * TIMEOUT, received_at=(step - 0.1) * TIMEOUT) == []
    assert busy == []
    sender.queue.expire(4 * TIMEOUT, received_at=3.9 * TIMEOUT)
    assert busy == [SHED]


def test_frames_fail_when_a_busy_member_falls_silent():
    sender = Sender(slow_timeout=4 * TIMEOUT)
    asked = sender.ask("a", now=0.0)
    sender.flush(0.0)

    assert sender.queue.expire(TIMEOUT, received_at=0.5 * TIMEOUT) == []
    assert len(sender.queue.expire(1.6 * TIMEOUT, received_at=0.5 * TIMEOUT)) == 1
    assert asked == []
    assert len(sender.queue.expire(2.7 * TIMEOUT, received_at=0.5 * TIMEOUT)) == 1
    assert asked == [None]


def test_time_outs_follow_the_round_trips_of_frames_sent_once():
    sender = Sender(answer_timeout_margin=0.05)
    for number in range(1, 60):
        now = number * 1.0
        sender.ask("a", now=now)
        sender.flush(now)
        sender.in_flight.measure(number, now + 0.01)
        sender.in_flight.measure(number, now + 0.4)  # The rest of a partial answer gives no sample.
        sender.in_flight.answer(answer_to(number, 1))
    assert sender.in_flight.answer_timeout == pytest.approx(0.06, abs=0.001)
    assert sender.in_flight.round_trips.mean == pytest.approx(0.01)

    sender.ask("again", now=100.0)
    sender.flush(100.0)
    sender.in_flight.send_again(sender.sent.append)
    sender.in_flight.measure(60, 100.4)
    assert sender.in_flight.round_trips.mean == pytest.approx(0.01), "Karn's rule"

    sender.ask("slow", now=200.0)
    sender.flush(200.0)
    sender.in_flight.measure(61, 200.3)
    assert sender.in_flight.answer_timeout > 0.3
