from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.errors import AccessDenied, RemoteProtocolError
from ringfence.limiter import Code, Outcomes
from ringfence.peering.link.request_queue import RequestQueue
from ringfence.peering.link.settings import LinkSettings
from ringfence.peering.target import SHED
from ringfence.wire import (
    Answer,
    AskMembers,
    Batch,
    Done,
    Members,
    Op,
    Ping,
    Request,
    Results,
    TransferOffer,
    decode,
)

TIMEOUT = 0.5
VIEW = 11
SESSION = 77


def raise_(error):
    raise error


class Sender:
    """A request queue, and the bytes that it sent."""

    def __init__(self, **limits):
        self.queue = RequestQueue(
            LinkSettings(answer_timeout=TIMEOUT, **limits), lambda: VIEW, SESSION, raise_
        )
        self.in_flight = self.queue.in_flight
        self.sent = []

    def ask(self, *names, now=0.0):
        told = []
        self.queue.add(batch_of(*names), 0, False, told.append, now)
        return told

    def call(self, make=AskMembers, now=0.0, timeout=TIMEOUT):
        told = []
        self.queue.add_call(make, told.append, now, timeout)
        return told

    def flush(self, now=0.0):
        """Send what waits; returns the messages."""
        before = len(self.sent)
        self.queue.flush(now, self.sent.append)
        return [decode(payload) for payload in self.sent[before:]]


def batch_of(*names):
    keys = [name.encode().rjust(8) for name in names]
    return Batch(Op.CHECK, keys, [1] * len(keys))


def answer_to(seq, rows):
    columns = [[0] * rows for _ in range(7)]
    return Answer(seq, VIEW, 1, Results(Outcomes(*columns), [0] * rows))


def test_what_waits_leaves_together_under_numbers_of_its_own():
    sender = Sender()
    sender.ask("a")
    sender.ask("b", "c")
    sender.call()

    call, request = sender.flush(0.1)

    assert call == AskMembers(1)
    assert (request.seq, request.view, request.deadline_ms) == (2, VIEW, 900)
    assert len(request.batch.keys) == 3
    assert sender.flush() == []


def test_each_ask_of_a_frame_is_told_its_rows():
    sender = Sender()
    one, two = sender.ask("a"), sender.ask("b", "c")
    sender.flush()

    assert sender.in_flight.answer(answer_to(1, 3))

    assert [len(verdicts.outcomes) for verdicts in (*one, *two)] == [1, 2]
    assert sender.queue.is_empty
    assert not sender.in_flight.answer(answer_to(1, 3))


@pytest.mark.parametrize("rows", [1, 3])
def test_an_answer_of_other_rows_than_were_asked_for_is_a_breach(rows):
    sender = Sender()
    told = sender.ask("a", "b")
    sender.flush()

    with pytest.raises(RemoteProtocolError, match=f"must have 2 rows, got {rows}"):
        sender.in_flight.answer(answer_to(1, rows))

    assert told == [None]


def test_a_reply_to_a_request_and_an_answer_to_a_call_are_breaches():
    sender = Sender()
    asked, called = sender.ask("a"), sender.call()
    sender.flush()

    with pytest.raises(RemoteProtocolError, match="must be an Answer, got Members"):
        sender.in_flight.reply(Members(2, 1, []))
    with pytest.raises(RemoteProtocolError, match="must have 0 rows, got 1"):
        sender.in_flight.answer(answer_to(1, 1))

    assert asked == called == [None]


def test_a_reply_is_told_once():
    sender = Sender()
    told = sender.call()
    sender.flush()

    assert [sender.in_flight.reply(Done(1)) for _ in range(2)] == [True, False]
    assert told == [Done(1)]


def test_no_more_frames_of_checks_are_under_way_than_allowed():
    sender = Sender(max_frames=1)
    sender.ask("a")
    assert len(sender.flush()) == 1
    sender.ask("b")
    assert sender.flush() == []
    assert sender.queue.has_batches

    sender.in_flight.answer(answer_to(1, 1))

    assert len(sender.flush()) == 1


def test_there_is_room_for_so_many_keys_until_they_are_answered():
    sender = Sender(max_waiting=3)
    sender.ask("a", "b")
    assert sender.queue.has_room(1)
    assert not sender.queue.has_room(2)
    sender.flush()
    assert not sender.queue.has_room(2)

    sender.in_flight.answer(answer_to(1, 2))

    assert sender.queue.has_room(3)


def test_what_cannot_be_sent_is_given_up_and_nothing_else():
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


def test_everybody_is_given_up_when_their_own_time_is_over():
    sender = Sender()
    flying, patient = sender.ask("a", now=0.0), sender.call(now=0.0, timeout=2.0)
    sender.flush(0.1)
    unsent, waiting = sender.call(now=0.2), sender.ask("b", now=0.3)

    assert sender.queue.first_due() == pytest.approx(0.1 + TIMEOUT)
    assert [len(frame.batches) for frame in sender.queue.expire(0.1 + TIMEOUT, -1.0)] == [1]
    assert (flying, unsent, waiting, patient) == ([], [], [], []), "a doubt, no proof"
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


def test_who_may_not_ask_is_told_so():
    sender = Sender(max_waiting=1)
    told = sender.ask("a")
    sender.flush()
    error = AccessDenied("no")

    sender.in_flight.fail(sender.in_flight.by_seq.pop(1), error)

    assert told == [error]
    assert sender.queue.has_room(1)


def test_frames_are_sent_again_as_they_were_and_a_ping_is_one_of_them():
    sender = Sender()
    sender.ask("a")
    sender.flush()
    sender.queue.ping(0.0, sender.sent.append)
    before = list(sender.sent)

    sender.in_flight.send_again(sender.sent.append)

    assert sender.sent == before * 2
    assert decode(before[1]) == Ping(2)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_whatever_happens_everybody_is_told_once(seed):
    random = Random(seed)
    sender = Sender(max_frames=3)
    told = []
    now = 0.0
    for _ in range(60):
        now += random.choice((0.0, 0.05, 0.3))
        match random.randrange(6):
            case 0:
                told.append(sender.ask("a", now=now))
            case 1:
                told.append(sender.call(now=now, timeout=random.choice((TIMEOUT, 1.0))))
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

    assert all(len(each) == 1 for each in told)
    assert sender.queue.is_empty
    assert sender.queue.has_room(LinkSettings().max_waiting)


def test_a_late_answer_is_passed_on_to_those_who_were_given_up():
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


def test_a_late_answer_that_fits_no_question_is_ignored():
    sender = Sender(max_frames=1)
    told = sender.ask("a")
    sender.flush()
    sender.queue.expire(2.0, -1.0)

    sender.in_flight.answer_late(answer_to(2, 1))
    sender.in_flight.answer_late(answer_to(1, 2))

    assert told == [None]


def test_a_check_has_the_identity_of_the_frame_and_row_that_it_left_in():
    sender = Sender()
    asks = [sender.queue.add(batch_of(*names), 0, False, print, 0.0) for names in ("ab", "c")]
    sender.flush()

    assert [ask.identify() for ask in asks] == [(SESSION, 1, 0), (SESSION, 1, 2)]


def test_a_check_that_has_not_left_is_withdrawn_when_it_is_asked_elsewhere():
    sender = Sender()
    told = []
    ask = sender.queue.add(batch_of("a"), 0, False, told.append, 0.0)

    assert ask.identify() is None
    assert (told, sender.flush(), sender.queue.is_empty) == ([None], [], True)
    assert ask.identify() is None


def test_silence_begins_with_the_first_frame_that_was_not_answered():
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


def test_a_member_that_answers_others_is_waited_for_longer_but_not_for_ever():
    sender = Sender(slow_timeout=4 * TIMEOUT)
    busy = sender.ask("a", now=0.0)
    sender.flush(0.0)

    for step in range(1, 4):
        assert sender.queue.expire(step * TIMEOUT, received_at=(step - 0.1) * TIMEOUT) == []
    assert busy == []
    sender.queue.expire(4 * TIMEOUT, received_at=3.9 * TIMEOUT)
    assert busy == [SHED]


def test_a_member_that_falls_silent_is_given_up_although_it_answered_others_before():
    sender = Sender(slow_timeout=4 * TIMEOUT)
    asked = sender.ask("a", now=0.0)
    sender.flush(0.0)

    assert sender.queue.expire(TIMEOUT, received_at=0.5 * TIMEOUT) == []
    assert len(sender.queue.expire(1.6 * TIMEOUT, received_at=0.5 * TIMEOUT)) == 1
    assert asked == []
    assert len(sender.queue.expire(2.7 * TIMEOUT, received_at=0.5 * TIMEOUT)) == 1
    assert asked == [None]


def test_members_are_told_how_little_time_callers_have():
    hasty, usual = Sender(deadline=0.011), Sender()

    told = []
    for sender in (hasty, usual):
        for as_standby in (False, True):
            sender.queue.add(Batch(Op.CHECK, [b"12345678"], [1]), 0, as_standby, print, 0.0)
            [request] = sender.flush(now=0.001)
            told.append(request.deadline_ms)

    assert told == [10, 10, 999, 999]


def test_what_nobody_waits_for_any_more_does_not_leave():
    sender = Sender(deadline=0.25)
    old, young = sender.ask("old", now=0.0), sender.ask("young", now=0.1)

    [request] = sender.flush(now=0.3)

    assert (request.batch.keys, request.deadline_ms) == ([b"   young"], 50)
    assert (old, young) == ([SHED], [])
    assert sender.queue.has_room(LinkSettings().max_waiting - 1)

    sender.queue.add(Batch(Op.REFUND, [b"12345678"], [1]), 0, False, print, 0.0)
    [refund] = sender.flush(now=0.3)
    assert (refund.batch.op, refund.deadline_ms) == (Op.REFUND, 1)


def test_time_outs_follow_the_round_trips_of_frames_that_were_sent_once():
    sender = Sender(answer_timeout_least=0.05)
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


def test_fewer_checks_wait_while_answers_come_close_to_the_deadline_and_then_more_again():
    sender, now = Sender(deadline=0.25), 0.0
    rooms = []
    for seq, took in enumerate((0.05, *[0.2] * 8, *[0.05] * 3), 1):
        now += 1.0
        rows = min(300, _room_of(sender.queue))
        sender.ask(*map(str, range(rows)), now=now)
        sender.flush(now)
        sender.in_flight.measure(seq, now + took)
        sender.in_flight.answer(answer_to(seq, rows))
        rooms.append(_room_of(sender.queue))

    assert rooms[:4] == [65_536, 225, 168, 126]
    assert rooms[8:] == [64, 97, 146, 220]


def test_answers_to_what_left_before_the_cut_do_not_cut_again():
    sender = Sender(deadline=0.25)
    for number in range(3):
        sender.ask(*[f"{number}{row}" for row in range(200)], now=0.0)
        sender.flush(0.0)
    for seq in (1, 2, 3):
        sender.in_flight.measure(seq, 0.24)

    for seq in (1, 2, 3):
        sender.in_flight.answer(answer_to(seq, 200))
    assert _room_of(sender.queue) == 450


def _room_of(queue):
    """How many more checks may wait."""
    least, most = 0, 100_000
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if queue.has_room(middle) else (least, middle - 1)
    return least


# Rows that are answered before others


def part_of(seq, *rows):
    columns = [[0] * len(rows) for _ in range(7)]
    columns[2] = list(rows)  # What remains tells which row it is.
    return Answer(seq, VIEW, 1, Results(Outcomes(*columns), [0] * len(rows)), list(rows))


def remaining(told):
    return [verdicts.outcomes.remaining for verdicts in told]


def test_an_ask_is_told_as_soon_as_all_its_rows_are_there():
    sender = Sender()
    first, second = sender.ask("a", "b"), sender.ask("c", "d", "e")
    sender.flush()

    assert sender.in_flight.answer(part_of(1, 0, 1, 3))
    assert remaining(first) == [[0, 1]]
    assert second == []
    assert not sender.queue.is_empty
    assert sender.in_flight.answer(part_of(1, 4))
    assert second == []
    assert sender.in_flight.answer(part_of(1, 2))

    assert remaining(second) == [[2, 3, 4]]
    assert sender.queue.is_empty
    assert sender.queue.has_room(LinkSettings().max_waiting)
    assert not sender.in_flight.answer(part_of(1, 2))


def test_rows_that_come_again_on_another_connection_are_told_once():
    sender = Sender()
    first, second = sender.ask("a"), sender.ask("b", "c")
    sender.flush()
    sender.in_flight.answer(part_of(1, 0, 1))

    sender.in_flight.send_again(sender.sent.append)
    sender.in_flight.answer(part_of(1, 0, 1))
    sender.in_flight.answer(part_of(1, 2))

    assert remaining(first) == [[0]]
    assert remaining(second) == [[1, 2]]


def test_an_answer_to_all_rows_completes_what_came_before():
    sender = Sender()
    first, second = sender.ask("a"), sender.ask("b")
    sender.flush()
    sender.in_flight.answer(part_of(1, 0))
    sender.in_flight.answer(answer_to(1, 2))

    assert (len(first), len(second)) == (1, 1)
    assert sender.queue.is_empty


def test_rows_that_were_not_asked_for_are_a_breach():
    sender = Sender()
    asked = sender.ask("a", "b")
    sender.flush()

    with pytest.raises(RemoteProtocolError, match="must be rows of its request"):
        sender.in_flight.answer(part_of(1, 1, 2))
    assert asked == [None]
    assert sender.queue.has_room(LinkSettings().max_waiting)


def test_only_asks_that_miss_rows_are_given_up_and_hear_a_late_answer():
    sender = Sender()
    whole, part, nothing = sender.ask("a"), sender.ask("b", "c"), sender.ask("d")
    sender.flush()
    sender.in_flight.answer(part_of(1, 0, 1))

    sender.queue.expire(2.0, -1.0)

    assert remaining(whole) == [[0]]
    assert part == nothing == [None]
    assert sender.queue.has_room(LinkSettings().max_waiting)
    sender.in_flight.answer_late(part_of(1, 0, 1, 2))
    assert remaining(whole) == [[0]], "a has come before"
    assert remaining(part[1:]) == [[1, 2]]
    sender.in_flight.answer_late(part_of(1, 3))
    sender.in_flight.answer_late(part_of(1, 3))
    assert remaining(nothing[1:]) == [[3]]


def test_a_refusal_after_some_rows_gives_up_the_others():
    sender = Sender()
    first, second = sender.ask("a"), sender.ask("b")
    sender.flush()
    sender.in_flight.answer(part_of(1, 0))
    sender.in_flight.refuse(1)

    assert remaining(first) == [[0]]
    assert second == [None]
    sender.in_flight.answer_late(part_of(1, 1))
    assert remaining(second[1:]) == [[1]]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_whatever_the_parts_each_ask_gets_its_rows_once(sizes, random):
    sender = Sender()
    told = [sender.ask(*("abcd"[:size])) for size in sizes]
    sender.flush()
    rows = list(range(sum(sizes)))
    random.shuffle(rows)
    while rows:
        cut = random.randint(1, len(rows))
        some, rows = sorted(rows[:cut]), rows[cut:]
        assert sender.in_flight.answer(part_of(1, *some))

    numbers = iter(range(sum(sizes)))
    assert [remaining(each) for each in told] == [
        [[next(numbers) for _ in range(size)]] for size in sizes
    ]
    assert sender.queue.is_empty
