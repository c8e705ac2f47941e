from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.errors import AccessDenied, RemoteProtocolError
from ringfence.limiter import Code, Outcomes
from ringfence.peering.columns import SHED, Batch
from ringfence.peering.link.inflight import RequestQueue
from ringfence.peering.link.settings import LinkSettings
from ringfence.wire import (
    Answer,
    AskMembers,
    Done,
    Members,
    Op,
    Ping,
    Request,
    TransferOffer,
    decode,
)

PATIENCE = 0.5
VIEW = 11
SESSION = 77


def raise_(error):
    raise error


class Sky:
    """A flight, and the bytes that it sent."""

    def __init__(self, **limits):
        self.flight = RequestQueue(
            LinkSettings(answer_timeout=PATIENCE, **limits), lambda: VIEW, SESSION, raise_
        )
        self.sent = []

    def ask(self, *names, now=0.0):
        told = []
        self.flight.add(batch_of(*names), 0, False, told.append, now)
        return told

    def call(self, make=AskMembers, now=0.0, patience=PATIENCE):
        told = []
        self.flight.add_call(make, told.append, now, patience)
        return told

    def depart(self, now=0.0):
        """Send what waits; returns the messages."""
        before = len(self.sent)
        self.flight.depart(now, self.sent.append)
        return [decode(payload) for payload in self.sent[before:]]


def batch_of(*names):
    keys = [name.encode().rjust(8) for name in names]
    return Batch(Op.CHECK, keys, [1] * len(keys))


def answer_to(seq, rows):
    columns = [[0] * rows for _ in range(7)]
    return Answer(seq, VIEW, 1, Outcomes(*columns), [0] * rows)


def test_what_waits_leaves_together_under_numbers_of_its_own():
    sky = Sky()
    sky.ask("a")
    sky.ask("b", "c")
    sky.call()

    call, request = sky.depart(0.1)

    assert call == AskMembers(1)
    assert (request.seq, request.view, request.deadline_ms) == (2, VIEW, 900)
    assert len(request.keys) == 3
    assert sky.depart() == []


def test_each_ask_of_a_frame_is_told_its_rows():
    sky = Sky()
    one, two = sky.ask("a"), sky.ask("b", "c")
    sky.depart()

    assert sky.flight.answer(answer_to(1, 3))

    assert [len(verdicts.outcomes) for verdicts in (*one, *two)] == [1, 2]
    assert sky.flight.is_empty
    assert not sky.flight.answer(answer_to(1, 3))


@pytest.mark.parametrize("rows", [1, 3])
def test_an_answer_of_other_rows_than_were_asked_for_is_a_breach(rows):
    sky = Sky()
    told = sky.ask("a", "b")
    sky.depart()

    with pytest.raises(RemoteProtocolError, match=f"asked 2 checks, was answered {rows}"):
        sky.flight.answer(answer_to(1, rows))

    assert told == [None]


def test_a_reply_to_a_request_and_an_answer_to_a_call_are_breaches():
    sky = Sky()
    asked, called = sky.ask("a"), sky.call()
    sky.depart()

    with pytest.raises(RemoteProtocolError, match="a request was answered by a Members"):
        sky.flight.reply(Members(2, 1, []))
    with pytest.raises(RemoteProtocolError, match="asked 0 checks"):
        sky.flight.answer(answer_to(1, 1))

    assert asked == called == [None]


def test_a_reply_is_told_once():
    sky = Sky()
    told = sky.call()
    sky.depart()

    assert [sky.flight.reply(Done(1)) for _ in range(2)] == [True, False]
    assert told == [Done(1)]


def test_no_more_frames_of_checks_are_under_way_than_allowed():
    sky = Sky(max_frames=1)
    sky.ask("a")
    assert len(sky.depart()) == 1
    sky.ask("b")
    assert sky.depart() == []
    assert sky.flight.has_asks_waiting

    sky.flight.answer(answer_to(1, 1))

    assert len(sky.depart()) == 1


def test_there_is_room_for_so_many_keys_until_they_are_answered():
    sky = Sky(max_waiting=3)
    sky.ask("a", "b")
    assert sky.flight.has_room(1)
    assert not sky.flight.has_room(2)
    sky.depart()
    assert not sky.flight.has_room(2)

    sky.flight.answer(answer_to(1, 2))

    assert sky.flight.has_room(3)


def test_what_cannot_be_sent_is_given_up_and_nothing_else():
    sky = Sky()
    bad, good = (
        sky.call(lambda seq: TransferOffer(seq, [])),
        sky.call(lambda seq: TransferOffer(seq, [1])),
    )
    short = []
    batch = Batch(Op.CHECK, [b"short"], [1])
    sky.flight.add(batch, 0, False, short.append, 0.0)
    fine = sky.ask("a")

    sent = sky.depart()

    assert [type(message) for message in sent] == [TransferOffer, Request]
    assert bad == short == [None]
    assert good == fine == []


def test_everybody_is_given_up_when_their_own_time_is_over():
    sky = Sky()
    flying, patient = sky.ask("a", now=0.0), sky.call(now=0.0, patience=2.0)
    sky.depart(0.1)
    unsent, waiting = sky.call(now=0.2), sky.ask("b", now=0.3)

    assert sky.flight.first_due() == pytest.approx(0.1 + PATIENCE)
    assert [len(frame.asks) for frame in sky.flight.give_up_late(0.1 + PATIENCE, -1.0)] == [1]
    assert (flying, unsent, waiting, patient) == ([], [], [], []), "a doubt, no proof"
    assert sky.flight.give_up_late(0.3 + PATIENCE, -1.0) == []
    assert (unsent, waiting, patient) == ([None], [None], [])
    assert sky.flight.first_due() == pytest.approx(0.1 + 2 * PATIENCE)
    assert len(sky.flight.give_up_late(0.1 + 2 * PATIENCE, -1.0)) == 1
    assert (flying, patient) == ([None], [])
    assert sky.flight.first_due() == 2.0
    assert len(sky.flight.give_up_late(2.0, -1.0)) == 1
    assert patient == [None]
    assert sky.flight.is_empty
    assert sky.flight.first_due() == float("inf")


def test_who_may_not_ask_is_told_so():
    sky = Sky(max_waiting=1)
    told = sky.ask("a")
    sky.depart()
    error = AccessDenied("no")

    sky.flight.deny(sky.flight.frames.pop(1), error)

    assert told == [error]
    assert sky.flight.has_room(1)


def test_frames_are_sent_again_as_they_were_and_a_ping_is_one_of_them():
    sky = Sky()
    sky.ask("a")
    sky.depart()
    sky.flight.ping(0.0, sky.sent.append)
    before = list(sky.sent)

    sky.flight.send_again(sky.sent.append)

    assert sky.sent == before * 2
    assert decode(before[1]) == Ping(2)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_whatever_happens_everybody_is_told_once(seed):
    random = Random(seed)
    sky = Sky(max_frames=3)
    told = []
    now = 0.0
    for _ in range(60):
        now += random.choice((0.0, 0.05, 0.3))
        match random.randrange(6):
            case 0:
                told.append(sky.ask("a", now=now))
            case 1:
                told.append(sky.call(now=now, patience=random.choice((PATIENCE, 1.0))))
            case 2:
                sky.depart(now)
            case 3 if sky.flight.frames:
                seq, frame = random.choice(list(sky.flight.frames.items()))
                rows = sum(len(ask.batch) for ask in frame.asks)
                sky.flight.answer(answer_to(seq, rows)) if rows else sky.flight.reply(Done(seq))
            case 4:
                sky.flight.give_up_late(now, -1.0)
            case 5 if random.random() < 0.2:
                sky.flight.give_up_unsent()
    sky.flight.give_up_everything()

    assert all(len(each) == 1 for each in told)
    assert sky.flight.is_empty
    assert sky.flight.has_room(LinkSettings().max_waiting)


def test_a_late_answer_is_passed_on_to_those_who_were_given_up():
    sky = Sky()
    first = sky.ask("a", now=0.0)
    second = sky.ask("b", "c", now=0.25)
    sky.depart(0.25)
    sky.flight.give_up_late(2.0, -1.0)
    late = answer_to(1, 3)
    late.outcomes.codes[1] = Code.DENIED

    sky.flight.answer_late(late)
    sky.flight.answer_late(late)

    assert [len(first), len(second)] == [2, 2]
    assert first[1].outcomes.codes == [Code.ALLOWED]
    assert second[1].outcomes.codes == [Code.DENIED, Code.ALLOWED]


def test_a_late_answer_that_fits_no_question_is_ignored():
    sky = Sky(max_frames=1)
    told = sky.ask("a")
    sky.depart()
    sky.flight.give_up_late(2.0, -1.0)

    sky.flight.answer_late(answer_to(2, 1))
    sky.flight.answer_late(answer_to(1, 2))

    assert told == [None]


def test_a_check_has_the_identity_of_the_frame_and_row_that_it_left_in():
    sky = Sky()
    asks = [sky.flight.add(batch_of(*names), 0, False, print, 0.0) for names in ("ab", "c")]
    sky.depart()

    assert [ask.identify() for ask in asks] == [(SESSION, 1, 0), (SESSION, 1, 2)]


def test_a_check_that_has_not_left_is_withdrawn_when_it_is_asked_elsewhere():
    sky = Sky()
    told = []
    ask = sky.flight.add(batch_of("a"), 0, False, told.append, 0.0)

    assert ask.identify() is None
    assert (told, sky.depart(), sky.flight.is_empty) == ([None], [], True)
    assert ask.identify() is None


def test_silence_begins_with_the_first_frame_that_was_not_answered():
    sky = Sky()
    assert sky.flight.asked_since(float("-inf")) is None
    sky.ask("a", now=0.0)
    assert sky.flight.asked_since(float("-inf")) == 0.0, "it waits for a connection"
    sky.depart(1.0)
    sky.ask("b", now=2.0)
    sky.depart(2.0)

    assert sky.flight.asked_since(float("-inf")) == 1.0
    assert sky.flight.asked_since(1.5) == 1.5
    sky.flight.give_up_late(9.0, -1.0)
    assert sky.flight.asked_since(0.5) == 1.0, "what was given up is silence, too"
    assert sky.flight.asked_since(3.0) is None


def test_a_member_that_answers_others_is_waited_for_longer_but_not_for_ever():
    sky = Sky(slow_timeout=4 * PATIENCE)
    busy = sky.ask("a", now=0.0)
    sky.depart(0.0)

    for step in range(1, 4):
        assert sky.flight.give_up_late(step * PATIENCE, heard_at=(step - 0.1) * PATIENCE) == []
    assert busy == []
    sky.flight.give_up_late(4 * PATIENCE, heard_at=3.9 * PATIENCE)
    assert busy == [SHED]


def test_a_member_that_falls_silent_is_given_up_although_it_answered_others_before():
    sky = Sky(slow_timeout=4 * PATIENCE)
    asked = sky.ask("a", now=0.0)
    sky.depart(0.0)

    assert sky.flight.give_up_late(PATIENCE, heard_at=0.5 * PATIENCE) == []
    assert len(sky.flight.give_up_late(1.6 * PATIENCE, heard_at=0.5 * PATIENCE)) == 1
    assert asked == []
    assert len(sky.flight.give_up_late(2.7 * PATIENCE, heard_at=0.5 * PATIENCE)) == 1
    assert asked == [None]


def test_members_are_told_how_little_time_callers_have():
    hasty, usual = Sky(deadline=0.011), Sky()

    told = []
    for sky in (hasty, usual):
        for stand_in in (False, True):
            sky.flight.add(Batch(Op.CHECK, [b"12345678"], [1]), 0, stand_in, print, 0.0)
            [request] = sky.depart(now=0.001)
            told.append(request.deadline_ms)

    assert told == [10, 10, 999, 999]


def test_what_nobody_waits_for_any_more_does_not_leave():
    sky = Sky(deadline=0.25)
    old, young = sky.ask("old", now=0.0), sky.ask("young", now=0.1)

    [request] = sky.depart(now=0.3)

    assert (request.keys, request.deadline_ms) == ([b"   young"], 50)
    assert (old, young) == ([SHED], [])
    assert sky.flight.has_room(LinkSettings().max_waiting - 1)

    sky.flight.add(Batch(Op.REFUND, [b"12345678"], [1]), 0, False, print, 0.0)
    [refund] = sky.depart(now=0.3)
    assert (refund.op, refund.deadline_ms) == (Op.REFUND, 1)


def test_time_outs_follow_the_round_trips_of_frames_that_were_sent_once():
    sky = Sky(answer_timeout_least=0.05)
    for number in range(1, 60):
        now = number * 1.0
        sky.ask("a", now=now)
        sky.depart(now)
        sky.flight.measure(number, now + 0.01)
        sky.flight.measure(number, now + 0.4)  # The rest of a partial answer gives no sample.
        sky.flight.answer(answer_to(number, 1))
    assert sky.flight.answer_timeout == pytest.approx(0.06, abs=0.001)
    assert sky.flight.round_trips.mean == pytest.approx(0.01)

    sky.ask("again", now=100.0)
    sky.depart(100.0)
    sky.flight.send_again(sky.sent.append)
    sky.flight.measure(60, 100.4)
    assert sky.flight.round_trips.mean == pytest.approx(0.01), "Karn's rule"

    sky.ask("slow", now=200.0)
    sky.depart(200.0)
    sky.flight.measure(61, 200.3)
    assert sky.flight.answer_timeout > 0.3


def test_fewer_checks_wait_while_answers_come_close_to_the_deadline_and_then_more_again():
    sky, now = Sky(deadline=0.25), 0.0
    rooms = []
    for seq, took in enumerate((0.05, *[0.2] * 8, *[0.05] * 3), 1):
        now += 1.0
        rows = min(300, _room_of(sky.flight))
        sky.ask(*map(str, range(rows)), now=now)
        sky.depart(now)
        sky.flight.measure(seq, now + took)
        sky.flight.answer(answer_to(seq, rows))
        rooms.append(_room_of(sky.flight))

    assert rooms[:4] == [65_536, 225, 168, 126]
    assert rooms[8:] == [64, 97, 146, 220]


def test_answers_to_what_left_before_the_cut_do_not_cut_again():
    sky = Sky(deadline=0.25)
    for number in range(3):
        sky.ask(*[f"{number}{row}" for row in range(200)], now=0.0)
        sky.depart(0.0)
    for seq in (1, 2, 3):
        sky.flight.measure(seq, 0.24)

    for seq in (1, 2, 3):
        sky.flight.answer(answer_to(seq, 200))
    assert _room_of(sky.flight) == 450


def _room_of(flight):
    """How many more checks may wait."""
    least, most = 0, 100_000
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if flight.has_room(middle) else (least, middle - 1)
    return least


# Rows that are answered before others


def part_of(seq, *rows):
    columns = [[0] * len(rows) for _ in range(7)]
    columns[2] = list(rows)  # What remains tells which row it is.
    return Answer(seq, VIEW, 1, Outcomes(*columns), [0] * len(rows), list(rows))


def remaining(told):
    return [verdicts.outcomes.remaining for verdicts in told]


def test_an_ask_is_told_as_soon_as_all_its_rows_are_there():
    sky = Sky()
    first, second = sky.ask("a", "b"), sky.ask("c", "d", "e")
    sky.depart()

    assert sky.flight.answer(part_of(1, 0, 1, 3))
    assert remaining(first) == [[0, 1]]
    assert second == []
    assert not sky.flight.is_empty
    assert sky.flight.answer(part_of(1, 4))
    assert second == []
    assert sky.flight.answer(part_of(1, 2))

    assert remaining(second) == [[2, 3, 4]]
    assert sky.flight.is_empty
    assert sky.flight.has_room(LinkSettings().max_waiting)
    assert not sky.flight.answer(part_of(1, 2))


def test_rows_that_come_again_on_another_connection_are_told_once():
    sky = Sky()
    first, second = sky.ask("a"), sky.ask("b", "c")
    sky.depart()
    sky.flight.answer(part_of(1, 0, 1))

    sky.flight.send_again(sky.sent.append)
    sky.flight.answer(part_of(1, 0, 1))
    sky.flight.answer(part_of(1, 2))

    assert remaining(first) == [[0]]
    assert remaining(second) == [[1, 2]]


def test_an_answer_to_all_rows_completes_what_came_before():
    sky = Sky()
    first, second = sky.ask("a"), sky.ask("b")
    sky.depart()
    sky.flight.answer(part_of(1, 0))
    sky.flight.answer(answer_to(1, 2))

    assert (len(first), len(second)) == (1, 1)
    assert sky.flight.is_empty


def test_rows_that_were_not_asked_for_are_a_breach():
    sky = Sky()
    asked = sky.ask("a", "b")
    sky.depart()

    with pytest.raises(RemoteProtocolError, match="not asked for"):
        sky.flight.answer(part_of(1, 1, 2))
    assert asked == [None]
    assert sky.flight.has_room(LinkSettings().max_waiting)


def test_only_asks_that_miss_rows_are_given_up_and_hear_a_late_answer():
    sky = Sky()
    whole, part, nothing = sky.ask("a"), sky.ask("b", "c"), sky.ask("d")
    sky.depart()
    sky.flight.answer(part_of(1, 0, 1))

    sky.flight.give_up_late(2.0, -1.0)

    assert remaining(whole) == [[0]]
    assert part == nothing == [None]
    assert sky.flight.has_room(LinkSettings().max_waiting)
    sky.flight.answer_late(part_of(1, 0, 1, 2))
    assert remaining(whole) == [[0]], "a has come before"
    assert remaining(part[1:]) == [[1, 2]]
    sky.flight.answer_late(part_of(1, 3))
    sky.flight.answer_late(part_of(1, 3))
    assert remaining(nothing[1:]) == [[3]]


def test_a_refusal_after_some_rows_gives_up_the_others():
    sky = Sky()
    first, second = sky.ask("a"), sky.ask("b")
    sky.depart()
    sky.flight.answer(part_of(1, 0))
    sky.flight.refuse(1)

    assert remaining(first) == [[0]]
    assert second == [None]
    sky.flight.answer_late(part_of(1, 1))
    assert remaining(second[1:]) == [[1]]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_whatever_the_parts_each_ask_gets_its_rows_once(sizes, random):
    sky = Sky()
    told = [sky.ask(*("abcd"[:size])) for size in sizes]
    sky.depart()
    rows = list(range(sum(sizes)))
    random.shuffle(rows)
    while rows:
        cut = random.randint(1, len(rows))
        some, rows = sorted(rows[:cut]), rows[cut:]
        assert sky.flight.answer(part_of(1, *some))

    numbers = iter(range(sum(sizes)))
    assert [remaining(each) for each in told] == [
        [[next(numbers) for _ in range(size)]] for size in sizes
    ]
    assert sky.flight.is_empty
