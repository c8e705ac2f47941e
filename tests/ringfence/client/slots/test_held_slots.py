from ringfence.client.slots.held_slots import HeldSlots
from ringfence.wire import Batch, Op


def slots(slot_id=5):
    return Batch(Op.REFUND, [b"12345678k"], [1], slot_ids=[slot_id])


def test_slots_are_renewed_three_times_a_period():
    held, mine = HeldSlots(), slots()
    held.keep(mine, 60.0, 100.0)

    assert held.next_due() == 120.0
    assert held.due(119.9) == []
    [due] = held.due(120.0)
    assert (due.renewal().op, due.renewal().slot_ids) == (Op.RENEW, [5])
    due.on_renewed(120.0)
    assert held.next_due() == 140.0


def test_a_renewal_without_an_answer_is_tried_again_sooner():
    held = HeldSlots()
    mine = slots()
    held.keep(mine, 60.0, 0.0)
    [due] = held.due(20.0)
    due.on_unanswered(20.0)
    assert held.next_due() == 25.0


def test_a_release_has_the_newest_slot_ids_and_their_age():
    held, mine = HeldSlots(), slots()
    held.keep(mine, 60.0, 0.0)
    [due] = held.due(20.0)
    due.release = slots(9)

    released = held.stop_renewing(mine, 30.0)

    assert released.slot_ids == [9]
    assert released.ages_ns == [30 * 10**9]
    assert due.is_released
    assert held.next_due() is None
    assert held.stop_renewing(mine, 31.0) is mine


def test_slots_of_dropped_decisions_are_not_renewed():
    held, mine = HeldSlots(), slots()
    held.keep(mine, 60.0, 0.0)
    assert held.origins() == [mine]

    del mine

    assert held.origins() == []
    assert held.due(20.0) == []
    assert held.next_due() is None
