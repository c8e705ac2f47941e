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
    columns[2] = list(rows)  # What remains tells which row it is.
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
