"""Frames in flight: answers, time-outs and round trips.

Most times of expiry are multiples of 1/16 s, so that sums are exact.
"""

import gc
import weakref
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import AccessDenied, RemoteProtocolError
from ringfence.limiter import Code
from ringfence.peering.link.request_queue import RequestQueue
from ringfence.peering.link.settings import LinkSettings
from ringfence.peering.routing.pending_request import PendingRequest
from ringfence.peering.target import SHED
from ringfence.wire import Done, Members, Op, Ping, decode
from tests.ringfence.peering.link.queue_sender import TIMEOUT, Sender, answer_to, batch_of, raise_


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


@given(sent_at=st.floats(0.0, 1e6))
def test_a_member_that_was_silent_for_exactly_one_time_out_is_pinged(sent_at):
    sender = Sender(slow_timeout=4 * TIMEOUT)
    asked = sender.ask("a", now=sent_at)
    sender.flush(sent_at)

    assert len(sender.queue.expire(sent_at + TIMEOUT, received_at=sent_at)) == 1
    assert asked == []


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


def test_results_of_each_batch_are_observed_before_its_caller_receives_them():
    sender, seen = Sender(), []
    sender.queue.add(batch_of("a"), 0, False, lambda _: seen.append("a"), 0.25)
    sender.queue.add(batch_of("b", "c"), 0, False, lambda _: seen.append("b"), 0.5)
    sender.flush(0.5)

    def observe(batch, results, asked_at):
        seen.append((len(batch), len(results.outcomes), asked_at))

    sender.in_flight.answer(answer_to(1, 3), observe)

    assert seen == [(1, 1, 0.25), "a", (2, 2, 0.5), "b"]


def test_an_exception_of_one_caller_is_reported_and_does_not_affect_the_others():
    reported, received = [], []
    queue = RequestQueue(LinkSettings(), lambda: 0, 1, reported.append)
    queue.add(batch_of("a"), 0, False, lambda _: raise_(KeyError("bug")), 0.0)
    queue.add(batch_of("b"), 0, False, received.append, 0.0)
    queue.flush(0.0, lambda _: None)

    assert queue.in_flight.answer(answer_to(1, 2))

    assert [type(error) for error in reported] == [KeyError]
    assert len(received) == 1


def test_room_is_made_by_the_number_of_answered_rows():
    sender = Sender(max_waiting=3)
    sender.ask("a"), sender.ask("b", "c")
    sender.flush()
    assert not sender.queue.has_room(1)

    sender.in_flight.answer(answer_to(1, 3))

    assert sender.queue.has_room(3)
    assert not sender.queue.has_room(4)


def sent(now=0.0, **limits):
    """Return a sender with one frame in flight, and what its caller received."""
    sender = Sender(**limits)
    received = sender.ask("a", now=now)
    sender.flush(now)
    return sender, received


@pytest.mark.parametrize(
    ("received_at", "silent", "due"),
    [
        (-inf, 1, 1.0),
        (0.0, 1, 1.0),
        (0.0625, 0, 0.5625),
        (0.5, 0, 1.0),
    ],
)
def test_a_due_frame_waits_longer(received_at, silent, due):
    sender, received = sent(slow_timeout=2.0)
    assert sender.in_flight.first_due() == TIMEOUT
    assert sender.queue.expire(0.4375, received_at) == []
    assert sender.in_flight.first_due() == TIMEOUT

    assert len(sender.queue.expire(TIMEOUT, received_at)) == silent

    assert sender.in_flight.first_due() == due
    assert received == []


def test_a_frame_of_a_silent_member_fails_after_two_time_outs():
    sender, received = sent(slow_timeout=2.0)
    assert len(sender.queue.expire(0.5, -1.0)) == 1
    assert sender.queue.expire(0.75, -1.0) == []
    assert sender.queue.expire(0.9375, -1.0) == []
    assert received == []

    assert len(sender.queue.expire(1.0, -1.0)) == 1

    assert received == [None]
    assert sender.in_flight.first_due() == inf


def test_a_message_of_the_member_ends_its_silence():
    sender, received = sent(slow_timeout=2.0)
    assert len(sender.queue.expire(0.5, -1.0)) == 1

    assert sender.queue.expire(1.0, 0.875) == []
    assert sender.in_flight.first_due() == 1.375
    assert len(sender.queue.expire(1.375, 0.875)) == 1
    assert sender.in_flight.first_due() == 1.875
    assert received == []
    assert len(sender.queue.expire(1.875, 0.875)) == 1
    assert received == [None]


@pytest.mark.parametrize(("received_at", "answer"), [(1.0, SHED), (0.0, None)])
def test_a_frame_fails_after_slow_timeout_in_any_case(received_at, answer):
    sender, received = sent(slow_timeout=0.75)
    sender.queue.expire(0.5, min(received_at, 0.5))
    assert sender.in_flight.first_due() == 0.75
    sender.queue.expire(0.6875, min(received_at, 0.6875))
    assert received == []

    silent = sender.queue.expire(0.75, min(received_at, 0.75))

    assert received == [answer]
    assert len(silent) == (answer is None)


def test_a_draining_member_has_the_longest_time_out_and_is_not_pinged():
    sender, _ = sent(answer_timeout_margin=0.125)
    sender.in_flight.round_trips.sample(0.0)
    sender.in_flight.answer(answer_to(1, 1))
    received = sender.ask("b")
    sender.flush()
    assert sender.in_flight.first_due() == 0.125

    assert sender.queue.expire(0.125, -1.0, is_draining=True) == []
    assert sender.in_flight.first_due() == TIMEOUT
    assert sender.queue.expire(0.4375, -1.0, is_draining=True) == []
    assert received == []
    sender.queue.expire(TIMEOUT, -1.0, is_draining=True)

    assert received == [None]


def test_a_busy_member_that_drains_does_not_shed():
    sender, received = sent(slow_timeout=0.75)

    sender.queue.expire(0.75, 0.75, is_draining=True)

    assert received == [None]


def test_time_outs_double_when_checks_expire_but_not_when_calls_expire():
    sender = Sender(answer_timeout_margin=0.0625)
    sender.in_flight.round_trips.sample(0.0)
    called = sender.call(timeout=0.25)
    sender.flush()
    assert sender.queue.expire(0.1875, 0.1875) == []
    assert called == []
    sender.queue.expire(0.25, 0.25)
    assert called == [None]
    assert sender.in_flight.answer_timeout == 0.0625

    received = sender.ask("a", now=1.0)
    sender.flush(1.0)
    sender.queue.expire(1.0625, -1.0)
    assert sender.in_flight.answer_timeout == 0.0625
    sender.queue.expire(1.125, -1.0)

    assert received == [None]
    assert sender.in_flight.answer_timeout == 0.125


def test_the_first_due_time_is_the_earliest_of_all_frames():
    sender = Sender()
    assert sender.in_flight.first_due() == inf
    sender.call(timeout=2.0)
    sender.ask("a", now=0.25)
    sender.flush(0.25)
    sender.call(now=0.125, timeout=0.25)
    sender.flush(0.25)

    assert sender.in_flight.first_due() == 0.375


def test_answers_reach_the_last_expired_frames():
    sender = Sender(max_frames=2)
    received = []
    for number in range(3):
        received.append(sender.ask("a", now=float(number)))
        sender.flush(float(number))
        sender.queue.expire(number + 1.0, -1.0)

    for seq in (1, 2, 3):
        sender.in_flight.answer_late(answer_to(seq, 1))

    assert [len(each) for each in received] == [1, 2, 2]


@pytest.mark.parametrize(
    ("received_at", "since"), [(-1.0, 0.0), (-0.0625, 0.0), (0.0, 2.0), (1.0, 2.0), (2.5, 2.5)]
)
def test_requests_wait_since_the_first_frame_after_the_last_message(received_at, since):
    sender, _ = sent()
    sender.queue.expire(1.0, -1.0)
    for now in (2.0, 3.0):
        sender.ask("a", now=now)
        sender.flush(now)

    assert sender.queue.waits_since(received_at) == since


def test_round_trips_are_measured_from_the_first_check_of_a_frame():
    sender = Sender()
    sender.ask("a", now=0.0)
    sender.ask("b", now=0.25)
    sender.flush(0.375)

    sender.in_flight.measure(1, 0.5)

    assert sender.in_flight.round_trips.mean == 0.5


def test_only_answers_of_an_owner_to_checks_give_a_sample():
    sender = Sender()
    sender.queue.add(batch_of("a"), 0, True, lambda _: None, 0.0)
    sender.flush()
    sender.call()
    sender.flush()

    for seq in (1, 2, 3):
        sender.in_flight.measure(seq, 0.25)

    assert sender.in_flight.round_trips.mean is None


def test_a_late_answer_gives_a_sample():
    sender, _ = sent()
    sender.queue.expire(1.0, -1.0)

    sender.in_flight.measure(1, 1.25)

    assert sender.in_flight.round_trips.mean == 1.25


def room(sender):
    """Return how many more checks may wait."""
    return next(rows for rows in range(2000) if not sender.queue.has_room(rows + 1))


def test_the_number_of_waiting_checks_follows_the_deadline():
    sender = Sender(max_waiting=1000, deadline=1.0)
    names = [str(number) for number in range(200)]
    sender.ask(*names)
    sender.ask(*names)
    sender.flush()
    assert room(sender) == 600

    sender.in_flight.measure(1, 0.8125)
    sender.in_flight.answer(answer_to(1, 400))
    assert room(sender) == 300

    sender.ask("a", "b", "c", now=1.0)
    sender.ask("d", "e", "f", now=1.0)
    sender.flush(1.0)
    sender.in_flight.measure(2, 1.75)
    sender.in_flight.answer(answer_to(2, 6))
    assert room(sender) == 304, "one more, and one for two answered checks"


def test_answers_without_a_deadline_do_not_change_the_number_of_waiting_checks():
    sender, _ = sent(max_waiting=1000)
    sender.in_flight.measure(1, 10.0)
    sender.in_flight.answer(answer_to(1, 1))

    assert room(sender) == 1000


def test_calls_fail_when_the_member_does_not_support_one_and_checks_do_not():
    sender, received = sent()
    called = sender.call(), sender.call()
    sender.flush()
    sender.queue.ping(0.0, sender.sent.append)

    sender.in_flight.fail_calls()

    assert called == ([None], [None])
    assert received == []
    assert list(sender.in_flight.by_seq) == [1, 4]


def test_all_frames_fail():
    sender, received = sent(max_waiting=1)
    called = sender.call()
    sender.flush()

    sender.in_flight.fail_all()

    assert (received, called) == ([None], [None])
    assert (sender.queue.is_empty, room(sender)) == (True, 1)


def test_batches_of_different_operations_are_sent_in_separate_frames():
    sender = Sender()
    for op in (Op.CHECK, Op.REFUND, Op.REFUND):
        batch = batch_of("a")
        batch.op = op
        sender.queue.add(batch, 0, False, lambda _: None, 0.0)

    assert [(each.batch.op, len(each.batch)) for each in sender.flush()] == [
        (Op.CHECK, 1),
        (Op.REFUND, 2),
    ]
