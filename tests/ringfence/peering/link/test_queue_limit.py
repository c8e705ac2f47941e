"""The adaptive bound of waiting checks."""

from ringfence.wire import Op
from tests.ringfence.peering.link.queue_sender import Sender, answer_to


def test_rows_take_room_until_they_are_answered():
    sender = Sender(max_waiting=3)
    sender.ask("a", "b")
    assert sender.queue.has_room(1)
    assert not sender.queue.has_room(2)
    sender.flush()
    assert not sender.queue.has_room(2)

    sender.in_flight.answer(answer_to(1, 2))

    assert sender.queue.has_room(3)


def test_refunds_have_as_much_room_again():
    sender = Sender(max_waiting=3)
    sender.ask("a", "b", "c")

    assert not sender.queue.has_room(1)
    assert [sender.queue.has_room(rows, Op.REFUND) for rows in (3, 4)] == [True, False]

    sender.ask("d", op=Op.REFUND)
    assert [sender.queue.has_room(rows, Op.REFUND) for rows in (2, 3)] == [True, False]
    assert sender.queue.open_pending_batch(0.0) is None


def test_slow_answers_lower_the_bound_and_quick_answers_raise_it():
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


def test_answers_to_frames_sent_before_a_cut_do_not_cut_again():
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
    """Return how many more checks may wait."""
    least, most = 0, 100_000
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if queue.has_room(middle) else (least, middle - 1)
    return least
