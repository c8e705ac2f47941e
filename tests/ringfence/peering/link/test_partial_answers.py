"""Rows that are answered before others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import RemoteProtocolError
from ringfence.limiter import Outcomes
from ringfence.peering.link.settings import LinkSettings
from ringfence.wire import (
    Answer,
    Results,
)
from tests.ringfence.peering.link.queue_sender import VIEW, Sender, answer_to


def part_of(seq, *rows):
    columns = [[0] * len(rows) for _ in range(7)]
    columns[2] = list(rows)  # `remaining` identifies the row.
    return Answer(seq, VIEW, 1, Results(Outcomes(*columns), [0] * len(rows)), list(rows))


def remaining(received):
    return [verdicts.outcomes.remaining for verdicts in received]


def test_a_batch_is_answered_when_all_its_rows_have_come():
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


def test_rows_repeated_on_another_connection_are_passed_on_once():
    sender = Sender()
    first, second = sender.ask("a"), sender.ask("b", "c")
    sender.flush()
    sender.in_flight.answer(part_of(1, 0, 1))

    sender.in_flight.send_again(sender.sent.append)
    sender.in_flight.answer(part_of(1, 0, 1))
    sender.in_flight.answer(part_of(1, 2))

    assert remaining(first) == [[0]]
    assert remaining(second) == [[1, 2]]


def test_a_whole_answer_completes_partial_answers():
    sender = Sender()
    first, second = sender.ask("a"), sender.ask("b")
    sender.flush()
    sender.in_flight.answer(part_of(1, 0))
    sender.in_flight.answer(answer_to(1, 2))

    assert (len(first), len(second)) == (1, 1)
    assert sender.queue.is_empty


def test_rows_that_were_not_requested_are_a_protocol_error():
    sender = Sender()
    asked = sender.ask("a", "b")
    sender.flush()

    with pytest.raises(RemoteProtocolError, match="must be rows of its request"):
        sender.in_flight.answer(part_of(1, 1, 2))
    assert asked == [None]
    assert sender.queue.has_room(LinkSettings().max_waiting)


def test_only_incomplete_batches_expire_and_get_the_late_answer():
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


def test_a_refusal_after_some_rows_fails_the_other_rows():
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
def test_each_batch_gets_its_rows_once_from_any_parts(sizes, random):
    sender = Sender()
    received = [sender.ask(*("abcd"[:size])) for size in sizes]
    sender.flush()
    rows = list(range(sum(sizes)))
    random.shuffle(rows)
    while rows:
        cut = random.randint(1, len(rows))
        some, rows = sorted(rows[:cut]), rows[cut:]
        assert sender.in_flight.answer(part_of(1, *some))

    numbers = iter(range(sum(sizes)))
    assert [remaining(each) for each in received] == [
        [[next(numbers) for _ in range(size)]] for size in sizes
    ]
    assert sender.queue.is_empty


def room(sender):
    """Return how many more checks may wait."""
    return next(rows for rows in range(100) if not sender.queue.has_room(rows + 1))


def test_a_batch_makes_room_when_all_its_rows_are_answered():
    sender = Sender(max_waiting=5)
    sender.ask("a", "b"), sender.ask("c", "d", "e")
    sender.flush()
    rooms = [room(sender)]
    for rows in ((0,), (2, 3), (1,), (4,)):
        sender.in_flight.answer(part_of(1, *rows))
        rooms.append(room(sender))

    assert rooms == [0, 0, 0, 2, 5]


def test_single_checks_of_a_frame_get_their_rows_at_once_and_make_room_together():
    sender = Sender(max_waiting=3)
    pending = sender.queue.open_pending_batch(0.0)
    for key in (b"first...", b"second..", b"third..."):
        pending.join(key, 1)
    received = []
    pending.sent.on_rows = lambda rows, results: received.append((rows, remaining([results])))
    sender.flush()
    rooms = []
    for rows in ((2,), (0, 2), (1,)):
        sender.in_flight.answer(part_of(1, *rows))
        rooms.append(room(sender))

    assert received == [([2], [[2]]), ([0], [[0]]), ([1], [[1]])]
    assert rooms == [0, 0, 3]


def test_late_rows_of_single_checks_are_passed_on_at_once():
    sender = Sender()
    pending = sender.queue.open_pending_batch(0.0)
    for key in (b"first...", b"second.."):
        pending.join(key, 1)
    received = []
    pending.sent.on_rows = lambda rows, results: received.append((rows, remaining([results])))
    sender.flush()
    sender.queue.expire(2.0, -1.0)
    for rows in ((1,), (0, 1), (0,)):
        sender.in_flight.answer_late(part_of(1, *rows))

    assert received == [([1], [[1]]), ([0], [[0]])]


def test_results_are_observed_with_their_batch_and_time_before_the_caller_receives_them():
    sender, seen = Sender(), []

    def observe(batch, results, asked_at):
        seen.append((batch.keys, remaining([results]), asked_at))

    first = sender.ask("a", "b", now=0.25)
    second = sender.ask("c", now=0.5)
    pending = sender.queue.open_pending_batch(0.75)
    for key in (b"first...", b"second.."):
        pending.join(key, 1)
    sender.flush(0.75)
    sender.in_flight.answer(part_of(1, 0, 2, 4), observe)
    sender.in_flight.answer(part_of(1, 1, 3), observe)

    assert seen == [
        ([b"       c"], [[2]], 0.5),
        ([b"second.."], [[4]], 0.75),
        ([b"       a", b"       b"], [[0, 1]], 0.25),
        ([b"first..."], [[3]], 0.75),
    ]
    assert (len(first), len(second)) == (1, 1)


def test_rows_beyond_those_of_the_frame_are_a_protocol_error():
    for rows, is_valid in (((0, 2), True), ((0, 3), False), ((3,), False)):
        sender = Sender()
        received = sender.ask("a", "b", "c")
        sender.flush()
        if is_valid:
            assert sender.in_flight.answer(part_of(1, *rows))
            assert received == []
        else:
            with pytest.raises(RemoteProtocolError, match="must be rows of its request"):
                sender.in_flight.answer(part_of(1, *rows))
            assert received == [None]


def test_a_late_answer_with_rows_beyond_those_of_the_frame_is_ignored():
    sender = Sender()
    received = sender.ask("a")
    sender.flush()
    sender.queue.expire(2.0, -1.0)

    sender.in_flight.answer_late(part_of(1, 1))
    assert received == [None]
    sender.in_flight.answer_late(part_of(1, 0))
    assert remaining(received[1:]) == [[0]]


def test_a_refused_frame_without_partial_answers_gets_no_late_answer():
    sender = Sender()
    received = sender.ask("a")
    sender.flush()
    sender.in_flight.refuse(1)

    sender.in_flight.answer_late(answer_to(1, 1))

    assert received == [None]
