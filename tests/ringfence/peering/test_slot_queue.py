"""Queue of callers that wait for a slot: served in order of arrival, with a slot kept for each."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter import Algorithm, Code, Limit
from ringfence.peering.slot_queue import ASK_AGAIN_NS
from ringfence.wire import Batch, Op
from tests.ringfence.peering.slot_owner import (
    KEY,
    RATE,
    RULES,
    SECOND,
    SHADOWED,
    USER,
    Owner,
    full,
)


def test_waiters_are_called_in_order_and_take_their_slot():
    owner, first, second = full()
    assert not owner.check(11)
    assert not owner.check(12)

    owner.release(first)
    assert owner.called == [11]
    assert not owner.check(), "the slot is kept"
    assert not owner.check(12), "it is the turn of another waiter"
    assert owner.check(11)

    owner.release(second)
    assert owner.called == [11, 12]
    assert owner.check(12)
    assert len(owner.queue) == 0


def test_a_called_waiter_without_a_slot_remains_the_first():
    owner, first, _ = full()
    owner.check(11)
    owner.check(12)
    owner.release(first)

    assert not owner.check(11, cost=2), "only one slot is free"

    assert owner.called == [11, 11]


def test_no_slot_remains_for_a_check_that_would_overtake():
    owner, first, _ = full()
    owner.check(11)
    owner.release(first)

    assert owner.ask(Batch(Op.CHECK, [KEY], [1])).remaining == [0]


def test_a_called_waiter_that_does_not_ask_loses_its_slot():
    owner, first, _ = full()
    owner.check(11)
    owner.check(12)

    owner.release(first)
    owner.later(SECOND)

    assert owner.called == [11, 12]
    assert owner.check(12)


def test_an_expired_slot_is_kept_for_the_next_waiter():
    owner, _, _ = full()
    owner.later(59 * SECOND)
    owner.check(11)

    assert owner.queue.next_deadline() == owner.now + SECOND
    owner.later(SECOND)

    assert owner.called == [11]
    assert owner.check(11)


def test_a_silent_waiter_is_dropped():
    owner, first, _ = full()
    owner.check(11)
    owner.later(2 * ASK_AGAIN_NS)
    owner.check(12)
    owner.later(ASK_AGAIN_NS)
    assert len(owner.queue) == 1

    owner.release(first)
    assert owner.called == [12]


def test_waiters_are_dropped_six_seconds_after_their_last_check_even_if_the_tick_is_late():
    owner, _, _ = full()
    owner.check(11)
    owner.later(6 * SECOND - 1)
    assert len(owner.queue) == 1
    owner.check(12)
    owner.later(2)
    assert len(owner.queue) == 1

    owner.later(6 * SECOND)

    assert len(owner.queue) == 0


def test_a_waiter_that_gives_up_makes_room_for_the_next():
    owner, first, _ = full()
    owner.check(11)
    owner.check(12)
    owner.release(first)

    owner.leave(11)

    assert owner.called == [11, 12]


def test_the_waiters_of_a_closed_connection_are_dropped():
    owner, first, _ = full()
    owner.check(11, who="one")
    owner.check(12, who="other")

    owner.queue.on_caller_gone("one", owner.now)
    owner.release(first)

    assert owner.called == [12]


def test_a_waiter_keeps_its_turn_after_a_reconnection():
    owner, first, _ = full()
    owner.check(11, who="one")
    owner.check(12, who="other")
    owner.check(11, who="again")

    owner.queue.on_caller_gone("one", owner.now)
    owner.release(first)

    assert owner.called == [11]


def test_a_waiter_for_many_units_is_not_starved():
    owner, first, second = full()
    owner.check(11, cost=2)
    owner.check(12)

    owner.release(first)
    assert owner.called == []
    assert not owner.check()
    owner.release(second)
    assert owner.called == [11]
    assert owner.check(11, cost=2)


def test_a_group_with_a_row_that_would_overtake_charges_nothing():
    owner, first, _ = full()
    owner.check(11)
    owner.release(first)

    group = owner.ask(Batch(Op.CHECK, [USER, KEY], [1, 1], [2]))

    assert group.codes == [Code.UNCHARGED, Code.DENIED]
    assert owner.ask(Batch(Op.CHECK, [USER], [1])).codes == [Code.ALLOWED]


def test_a_denied_group_keeps_no_slot_from_others():
    owner, first, _ = full()
    owner.check(11)
    owner.check(12)
    owner.ask(Batch(Op.CHECK, [USER], [1]))
    owner.release(first)

    group = owner.ask(Batch(Op.CHECK, [USER, KEY], [1, 1], [2], slot_ids=[0, 11]))

    assert group.codes == [Code.DENIED, Code.UNCHARGED]
    assert owner.called == [11, 12]


def test_only_limits_with_slots_that_can_deny_have_waiters():
    owner = Owner()
    owner.ask(Batch(Op.CHECK, [USER], [1]))
    owner.check(0, SHADOWED)
    for key in (USER, SHADOWED):
        owner.ask(Batch(Op.CHECK, [key], [1], slot_ids=[11]))
    assert len(owner.queue) == 0


def test_a_batch_queues_its_denied_checks_in_any_order():
    owner = Owner()
    owner.check()

    owner.ask(Batch(Op.CHECK, [USER, KEY, KEY], [1, 1, 1], slot_ids=[10, 11, 12]))

    assert len(owner.queue) == 1


def test_a_check_can_wait_if_the_limit_that_it_carries_has_slots():
    owner = Owner()
    rate, slots = RULES[RATE].limit, Limit.of_ns(1, 60 * SECOND, Algorithm.CONCURRENCY)
    for which in (1, 2):
        for ticket in (11, 12):
            batch = Batch(
                Op.CHECK,
                [USER + bytes([which])],
                [1],
                slot_ids=[ticket],
                limits=[rate, slots],
                which=[which],
            )
            owner.ask(batch)

    assert len(owner.queue) == 1


def test_at_most_1024_checks_of_a_connection_wait():
    owner, _, _ = full()
    for ticket in range(1, 1026):
        owner.check(ticket)

    assert len(owner.queue) == 1024
    assert owner.queue.refused == 1


def test_waiters_are_bounded_in_all_and_by_connection():
    owner = Owner(most=3, most_of=lambda _: 2)
    owner.check()
    owner.check()
    for ticket, who in ((11, "one"), (12, "one"), (13, "one"), (14, "other"), (15, "third")):
        owner.check(ticket, who=who)
    assert len(owner.queue) == 3
    assert owner.queue.refused == 2


def test_all_waiters_are_called_when_another_node_decides():
    owner, _, _ = full()
    owner.check(11)
    owner.check(12)

    owner.queue.call_all()

    assert owner.called == [11, 12]
    assert len(owner.queue) == 0
    assert owner.queue.next_deadline() is None


def test_a_denial_estimates_when_a_slot_will_be_free():
    owner, first, second = full()
    assert owner.retry_after_ns() == SECOND, "nothing is known yet"

    owner.release(first, age_ns=8 * SECOND)
    third = owner.check()
    assert owner.retry_after_ns() == 4 * SECOND, "two slots, each held for eight seconds"
    owner.check(11)
    assert owner.retry_after_ns() == 8 * SECOND, "one waits already"
    owner.leave(11)

    owner.now += 59 * SECOND
    assert owner.retry_after_ns() == SECOND, "then the second one's time has ended"
    owner.release(second)
    owner.release(third)


def test_the_time_until_a_slot_is_free_follows_the_last_releases_slowly():
    owner, first, second = full()
    owner.release(first, age_ns=8 * SECOND)
    owner.release(second, age_ns=24 * SECOND)
    full_again = owner.check(), owner.check()

    assert all(full_again)
    assert owner.retry_after_ns() == 5 * SECOND, "(8 + (24 - 8) / 8) / 2"


def test_a_denied_check_is_repeated_after_a_millisecond_at_the_earliest():
    owner, first, _ = full()
    owner.release(first, age_ns=1)
    owner.check()

    assert owner.retry_after_ns() == SECOND // 1000


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["wait", "leave", "release", "check", "time"]), st.integers(0, 20)
        ),
        max_size=80,
    )
)
def test_slots_are_never_overdrawn_and_free_slots_reach_waiters(steps):
    owner = Owner()
    held, waiting, ticket = [], [], 100

    def serve():
        while owner.called:
            called = owner.called.pop(0)
            if called in waiting:
                slot_id = owner.check(called)
                if slot_id:
                    waiting.remove(called)
                    held.append(slot_id)

    for what, number in steps:
        match what:
            case "wait":
                ticket += 1
                slot_id = owner.check(ticket)
                if slot_id:
                    held.append(slot_id)
                else:
                    waiting.append(ticket)
            case "leave" if waiting:
                owner.leave(waiting.pop(number % len(waiting)))
            case "release" if held:
                owner.release(held.pop(number % len(held)))
            case "check":
                slot_id = owner.check()
                assert not (slot_id and waiting), "it overtook"
                if slot_id:
                    held.append(slot_id)
            case "time":
                owner.later(number * 10**6)
        serve()
        assert len(held) <= 2
        assert not waiting or len(held) == 2
        assert len(owner.queue) == len(waiting)


def test_a_release_without_a_time_or_a_slot_does_not_change_the_expected_time():
    owner, first, second = full()
    owner.release(first, age_ns=8 * SECOND)
    owner.release(second)
    owner.ask(Batch(Op.REFUND, [KEY], [1], slot_ids=[0], ages_ns=[80 * SECOND]))

    assert all([owner.check(), owner.check()])
    assert owner.retry_after_ns() == 4 * SECOND
