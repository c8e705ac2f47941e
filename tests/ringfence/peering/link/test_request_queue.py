"""The send queue of a link: frames, deadlines and bounds."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.peering.link.settings import LinkSettings
from ringfence.peering.target import SHED
from ringfence.wire import (
    AskMembers,
    Batch,
    Done,
    Op,
    Ping,
    Request,
    TransferOffer,
    decode,
)
from tests.ringfence.peering.link.queue_sender import (
    SESSION,
    TIMEOUT,
    VIEW,
    Sender,
    answer_to,
    batch_of,
)


def test_waiting_batches_share_a_frame_and_calls_have_their_own():
    sender = Sender()
    sender.ask("a")
    sender.ask("b", "c")
    sender.call()

    call, request = sender.flush(0.1)

    assert call == AskMembers(1)
    assert (request.seq, request.view, request.deadline_ms) == (2, VIEW, 900)
    assert len(request.batch.keys) == 3
    assert sender.flush() == []


def test_at_most_max_frames_are_sent():
    sender = Sender(max_frames=1)
    sender.ask("a")
    assert len(sender.flush()) == 1
    sender.ask("b")
    assert sender.flush() == []
    assert sender.queue.has_batches

    sender.in_flight.answer(answer_to(1, 1))

    assert len(sender.flush()) == 1


def test_only_messages_that_cannot_be_encoded_fail():
    sender = Sender()
    bad, good = (
        sender.call(lambda seq: TransferOffer(seq, [])),
        sender.call(lambda seq: TransferOffer(seq, [1])),
    )
    short = []
    batch = Batch(Op.CHECK, [b"short"], [1])
    sender.queue.add(batch, 0, False, short.append, 0.0)
    fine = sender.ask("a")

    sent = sender.flush()

    assert [type(message) for message in sent] == [TransferOffer, Request]
    assert bad == short == [None]
    assert good == fine == []


def test_checks_that_cannot_be_encoded_are_logged_at_most_every_ten_seconds(caplog):
    sender = Sender()
    invalid = Batch(Op.CHECK, [b"short"], [1])
    for now in (0.0, 1.0, 9.9, 10.0, 10.1):
        sender.queue.add(invalid, 0, False, lambda results: None, now)
        sender.flush(now)

    logged = [record.getMessage() for record in caplog.records]
    assert [message.partition(" error=")[0] for message in logged] == [
        "checks or calls not sent: count=1",
        "checks or calls not sent: count=3",
    ]


def test_an_unsent_call_expires_at_the_end_of_its_time_out():
    sender = Sender()
    call = sender.call(now=0.0, timeout=2.0)

    sender.queue.expire(1.99, -1.0)
    assert call == []
    sender.queue.expire(2.0, -1.0)

    assert call == [None]
    assert sender.flush() == []


def test_each_batch_and_call_expires_after_its_own_time_out():
    sender = Sender()
    flying, patient = sender.ask("a", now=0.0), sender.call(now=0.0, timeout=2.0)
    sender.flush(0.1)
    unsent, waiting = sender.call(now=0.2), sender.ask("b", now=0.3)

    assert sender.queue.first_due() == pytest.approx(0.1 + TIMEOUT)
    assert [len(frame.batches) for frame in sender.queue.expire(0.1 + TIMEOUT, -1.0)] == [1]
    assert (flying, unsent, waiting, patient) == ([], [], [], []), "overdue, but not failed yet"
    assert sender.queue.expire(0.3 + TIMEOUT, -1.0) == []
    assert (unsent, waiting, patient) == ([None], [None], [])
    assert sender.queue.first_due() == pytest.approx(0.1 + 2 * TIMEOUT)
    assert len(sender.queue.expire(0.1 + 2 * TIMEOUT, -1.0)) == 1
    assert (flying, patient) == ([None], [])
    assert sender.queue.first_due() == 2.0
    assert len(sender.queue.expire(2.0, -1.0)) == 1
    assert patient == [None]
    assert sender.queue.is_empty
    assert sender.queue.first_due() == float("inf")


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_under_random_events_each_batch_gets_one_answer(seed):
    random = Random(seed)
    sender = Sender(max_frames=3)
    received = []
    now = 0.0
    for _ in range(60):
        now += random.choice((0.0, 0.05, 0.3))
        match random.randrange(6):
            case 0:
                received.append(sender.ask("a", now=now))
            case 1:
                received.append(sender.call(now=now, timeout=random.choice((TIMEOUT, 1.0))))
            case 2:
                sender.flush(now)
            case 3 if sender.in_flight.by_seq:
                seq, frame = random.choice(list(sender.in_flight.by_seq.items()))
                rows = sum(len(ask.batch) for ask in frame.batches)
                sender.in_flight.answer(answer_to(seq, rows)) if rows else sender.in_flight.reply(
                    Done(seq)
                )
            case 4:
                sender.queue.expire(now, -1.0)
            case 5 if random.random() < 0.2:
                sender.queue.fail_unsent()
    sender.queue.fail_all()

    assert all(len(each) == 1 for each in received)
    assert sender.queue.is_empty
    assert sender.queue.has_room(LinkSettings().max_waiting)


def test_a_check_is_identified_by_session_frame_and_row():
    sender = Sender()
    asks = [sender.queue.add(batch_of(*names), 0, False, print, 0.0) for names in ("ab", "c")]
    sender.flush()

    assert [ask.identify() for ask in asks] == [(SESSION, 1, 0), (SESSION, 1, 2)]


def test_an_unsent_batch_is_withdrawn_when_its_identity_is_asked_for():
    sender = Sender()
    received = []
    ask = sender.queue.add(batch_of("a"), 0, False, received.append, 0.0)

    assert ask.identify() is None
    assert (received, sender.flush(), sender.queue.is_empty) == ([None], [], True)
    assert ask.identify() is None


def test_a_queue_is_empty_when_nothing_waits_or_is_in_flight():
    sender = Sender()
    assert (sender.queue.is_empty, sender.queue.has_batches) == (True, False)
    sender.call()
    assert (sender.queue.is_empty, sender.queue.has_batches) == (False, False)
    sender.flush()
    assert sender.queue.is_empty is False, "the call is in flight"
    sender.in_flight.reply(Done(1))
    assert sender.queue.is_empty
    sender.ask("a")
    assert (sender.queue.is_empty, sender.queue.has_batches) == (False, True)


@pytest.mark.parametrize(
    ("deadline", "slow_timeout", "due"), [(None, 1.0, 2.0), (None, 3.0, 3.5), (0.25, 3.0, 2.0)]
)
def test_a_ping_expires_after_two_time_outs_or_when_no_caller_waits(deadline, slow_timeout, due):
    sender = Sender(deadline=deadline, slow_timeout=slow_timeout)

    assert sender.queue.ping(1.0, sender.sent.append) == 1

    assert decode(sender.sent[0]) == Ping(1)
    assert sender.queue.first_due() == due


def test_a_queue_is_busy_after_it_sent_more_than_one_check():
    sender = Sender()
    busy = [sender.queue.is_busy]
    for names in ("a", "ab", "a"):
        for name in names:
            sender.ask(name)
        sender.flush()
        busy.append(sender.queue.is_busy)
    for keys in (1, 2):
        pending = sender.queue.open_pending_batch(0.0)
        for number in range(keys):
            pending.join(b"%08d" % number, 1)
        sender.flush()
        busy.append(sender.queue.is_busy)
    sender.flush()

    assert busy == [False, False, True, False, False, True]
    assert sender.queue.is_busy, "nothing was sent since"


def test_a_batch_that_single_checks_join_takes_all_room_until_it_is_closed():
    sender = Sender(max_waiting=5)
    sender.ask("a", "b")
    pending = sender.queue.open_pending_batch(0.0)
    assert pending.room == 3
    assert not sender.queue.has_room(1)
    pending.join(b"12345678", 1)

    assert sender.queue.open_pending_batch(0.0).room == 2
    sender.flush()

    assert sender.queue.has_room(2)
    assert not sender.queue.has_room(3)


def test_no_check_joins_a_full_queue():
    sender = Sender(max_waiting=2)
    sender.ask("a")
    assert sender.queue.open_pending_batch(0.0).room == 1
    sender.ask("b", "c")

    assert sender.queue.open_pending_batch(0.0) is None


def test_silence_begins_with_the_first_unanswered_frame():
    sender = Sender()
    assert sender.queue.waits_since(float("-inf")) is None
    sender.ask("a", now=0.0)
    assert sender.queue.waits_since(float("-inf")) == 0.0, "it waits for a connection"
    sender.flush(1.0)
    sender.ask("b", now=2.0)
    sender.flush(2.0)

    assert sender.queue.waits_since(float("-inf")) == 1.0
    assert sender.queue.waits_since(1.5) == 1.5
    sender.queue.expire(9.0, -1.0)
    assert sender.queue.waits_since(0.5) == 1.0, "what was given up is silence, too"
    assert sender.queue.waits_since(3.0) is None


def test_requests_carry_the_time_left_until_the_deadline():
    hasty, usual = Sender(deadline=0.011), Sender()

    received = []
    for sender in (hasty, usual):
        for as_standby in (False, True):
            sender.queue.add(Batch(Op.CHECK, [b"12345678"], [1]), 0, as_standby, print, 0.0)
            [request] = sender.flush(now=0.001)
            received.append(request.deadline_ms)

    assert received == [10, 10, 999, 999]


def test_checks_past_their_deadline_are_shed_instead_of_sent():
    sender = Sender(deadline=0.25)
    old, young = sender.ask("old", now=0.0), sender.ask("young", now=0.1)

    [request] = sender.flush(now=0.3)

    assert (request.batch.keys, request.deadline_ms) == ([b"   young"], 50)
    assert (old, young) == ([SHED], [])
    assert sender.queue.has_room(LinkSettings().max_waiting - 1)

    sender.queue.add(Batch(Op.REFUND, [b"12345678"], [1]), 0, False, print, 0.0)
    [refund] = sender.flush(now=0.3)
    assert (refund.batch.op, refund.deadline_ms) == (Op.REFUND, 250)


@pytest.mark.parametrize(
    ("op", "can_send", "answer"),
    [(Op.CHECK, True, SHED), (Op.CHECK, False, None), (Op.CHARGE, True, None)],
)
def test_only_checks_that_an_overloaded_process_could_not_send_in_time_are_shed(
    op, can_send, answer
):
    sender, received = Sender(), []
    sender.queue.add(Batch(op, [b"12345678"], [1]), 0, False, received.append, 0.0)

    sender.queue.expire(TIMEOUT, -1.0, can_send=can_send)

    assert received == [answer]


@pytest.mark.parametrize(("can_send", "answer"), [(True, []), (False, [None])])
def test_only_refunds_of_a_lost_member_expire_before_they_are_sent(can_send, answer):
    sender = Sender()
    check, refund = sender.ask("a"), sender.ask("b", op=Op.REFUND)
    late = sender.ask("c", op=Op.REFUND, now=0.1)

    sender.queue.expire(TIMEOUT + 0.1, -1.0, can_send=can_send)

    assert check == [SHED if can_send else None]
    assert refund == late == answer
    requests = sender.flush(now=TIMEOUT + 0.1)
    assert [each.batch.keys for each in requests] == [[b"       b", b"       c"]] * can_send
    assert [each.deadline_ms for each in requests] == [1000] * can_send


def test_refunds_leave_before_a_member_has_answered_the_most_frames():
    sender = Sender(max_frames=2)
    for name in "ab":
        sender.ask(name)
        sender.flush()
    sender.ask("c")
    assert sender.flush() == []
    sender.queue.fail_unsent()

    refunds = []
    for number in range(33):
        refunds.append(sender.ask(f"{number}", op=Op.REFUND))
        sender.flush()

    assert len(sender.in_flight.by_seq) == 2 + 32
    sender.queue.expire(TIMEOUT, TIMEOUT, can_send=True)
    assert refunds == [[]] * 32 + [[SHED]]


def test_requests_without_a_connection_wait_since_the_first_of_them():
    sender = Sender()
    sender.ask("a", now=1.0)
    sender.ask("b", now=2.0)

    assert sender.queue.waits_since(float("-inf")) == 1.0
    assert sender.queue.waits_since(1.5) == 1.5


def test_all_unsent_batches_and_calls_that_are_due_expire_at_a_late_time():
    sender = Sender()
    due = [sender.ask("a", now=0.0), sender.ask("b", now=0.25), sender.call(now=0.25)]
    later = [sender.ask("c", now=1.0), sender.call(now=1.0)]
    assert sender.queue.first_due() == TIMEOUT

    sender.queue.expire(1.25, -1.0)

    assert due == [[None]] * 3
    assert later == [[], []]
    assert sender.queue.first_due() == 1.0 + TIMEOUT
