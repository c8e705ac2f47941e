"""Slot queue: times, bounds, deadlines and estimates, with both sides of each bound."""

import pytest

from ringfence.limiter import Algorithm, Code, Limit
from ringfence.rules import Rule
from ringfence.wire import Batch, Op
from tests.ringfence.peering.slot_owner import (
    KEY,
    RATE,
    RULES,
    SECOND,
    SLOTS,
    SOFT_KEY,
    USER,
    WIDE_KEY,
    Owner,
    full,
)


def user(number):
    """Return a key of the rule without slots, which admits one check."""
    return RATE.to_bytes(8, "big") + b"user %d" % number


def other_rules(count, start=1000):
    """Return keys of rules that the owner does not know."""
    return [(start + number).to_bytes(8, "big") + b"x" for number in range(count)]


def test_a_slot_is_kept_for_a_second():
    owner, first, _ = full()
    owner.check(11)
    owner.check(12)
    owner.release(first)

    owner.later(SECOND - 1)
    assert owner.called == [11]
    assert not owner.check(12)
    owner.later(1)
    assert owner.called == [11, 12]


def test_a_late_tick_ends_all_reservations_and_waiters_that_are_due():
    owner, first, _ = full()
    owner.check(11)
    owner.check(12)
    owner.release(first)
    owner.later(SECOND + 1)
    assert owner.called == [11, 12]

    owner, _, _ = full()
    owner.check(11)
    owner.check(12)
    owner.later(5 * SECOND)
    owner.check(11)
    owner.later(SECOND + 1)
    assert len(owner.queue) == 1, "only the second one was silent for six seconds"


def test_the_next_deadline_is_that_of_the_first_key():
    owner = Owner()
    keys = KEY, WIDE_KEY, SOFT_KEY
    for number, key in enumerate(keys):
        for _ in range(4):
            owner.check(key=key)
        owner.check(11 + number, key)
        owner.later(SECOND)
    start = owner.now - 3 * SECOND

    for number in range(3):
        assert owner.queue.next_deadline() == start + (6 + number) * SECOND
        owner.later(start + (6 + number) * SECOND - owner.now)
        assert len(owner.queue) == 2 - number
    assert owner.queue.next_deadline() is None


def test_the_next_deadline_is_the_first_time_at_which_a_waiter_can_change():
    owner, first, _ = full()
    start = owner.now
    assert owner.queue.next_deadline() is None
    owner.check(11)
    assert owner.queue.next_deadline() == start + 6 * SECOND

    owner.later(5 * SECOND)
    owner.check(11)
    assert owner.queue.next_deadline() == start + 6 * SECOND
    owner.later(SECOND)
    assert owner.queue.next_deadline() == start + 12 * SECOND

    owner.release(first)
    assert owner.queue.next_deadline() == start + 7 * SECOND
    assert owner.check(11)
    assert owner.queue.next_deadline() is None


def test_the_caller_is_notified_when_the_deadline_becomes_earlier():
    owner, first, _ = full()
    owner.check(11)
    assert owner.earlier == 1
    owner.check(12)
    assert owner.earlier == 1

    for _ in range(4):
        owner.check(key=WIDE_KEY)
    owner.later(1)
    owner.check(13, WIDE_KEY)
    assert owner.earlier == 1, "its deadline is later"

    owner.release(first)
    assert owner.earlier == 2
    owner.check(11)
    assert owner.queue.next_deadline() == owner.now - 1 + 6 * SECOND


def test_a_reset_of_the_key_frees_all_slots():
    owner, _, _ = full()
    for ticket in (11, 12, 13):
        owner.check(ticket)

    owner.ask(Batch(Op.RESET, [KEY], [0]))

    assert owner.called == [11, 12]


def test_a_closed_connection_frees_the_slots_that_were_kept_for_it():
    owner, first, _ = full()
    owner.check(11, who="one")
    owner.check(12, who="other")
    owner.release(first)

    owner.queue.on_caller_gone("third", owner.now)
    assert owner.called == [11]
    owner.queue.on_caller_gone("one", owner.now)

    assert owner.called == [11, 12]
    assert len(owner.queue) == 1


def test_a_check_that_does_not_wait_can_give_up():
    owner, first, _ = full()
    owner.check(11)

    owner.leave(99)
    owner.release(first)

    assert (len(owner.queue), owner.called) == (1, [11])


@pytest.mark.parametrize("slots", [1, 3])
def test_a_released_slot_is_kept_by_the_limit_that_the_check_carried(slots):
    owner = Owner()
    limits = [Limit.of_ns(slots, 60 * SECOND, Algorithm.CONCURRENCY)]

    def check(ticket):
        columns = {"slot_ids": [ticket], "limits": limits, "which": [1]}
        return owner.ask(Batch(Op.CHECK, [KEY], [1], **columns)).slot_ids[0]

    held = [check(0) for _ in range(slots)]
    check(11), check(12)
    owner.ask(Batch(Op.REFUND, [KEY], [1], limits=limits, which=[1], slot_ids=held[:1]))

    assert owner.called == [11]
    assert check(11)
    assert len(owner.queue) == 1


def test_waiters_for_several_units_get_them_in_order():
    owner = Owner()
    held = [owner.check(key=WIDE_KEY, cost=cost) for cost in (1, 1, 2)]
    for ticket, cost in ((11, 2), (12, 1), (13, 1), (14, 1)):
        owner.check(ticket, WIDE_KEY, cost)

    owner.release(held[0], key=WIDE_KEY)
    assert owner.called == []
    owner.release(held[1], key=WIDE_KEY)
    assert owner.called == [11]
    owner.release(held[2], key=WIDE_KEY)
    assert owner.called == [11, 12, 13]

    assert owner.check(11, WIDE_KEY, 2)
    assert owner.called == [11, 12, 13], "two units are in use, and two are kept"
    assert not owner.check(14, WIDE_KEY)
    assert owner.check(12, WIDE_KEY)
    taken = owner.check(13, WIDE_KEY)
    assert not owner.check(14, WIDE_KEY)
    owner.release(taken, key=WIDE_KEY)
    assert owner.called == [11, 12, 13, 14]


def test_each_caller_is_notified_once_for_all_its_waiters():
    owner, _, _ = full()
    for ticket, who in ((11, "one"), (12, "other"), (13, "one")):
        owner.check(ticket, who=who)

    owner.ask(Batch(Op.RESET, [KEY], [0]))
    assert owner.called_of == [("one", [11]), ("other", [12])]
    owner.queue.call_all()

    assert owner.called_of[2:] == [("one", [11, 13]), ("other", [12])]


def test_checks_can_wait_again_after_all_waiters_were_called():
    owner = Owner(most=1, most_of=lambda _: 1)
    owner.check(), owner.check()
    owner.check(11)

    owner.queue.call_all()
    owner.check(12)

    assert len(owner.queue) == 1
    assert owner.queue.refused == 0


def test_a_rule_that_gets_slots_has_waiters_from_the_next_call_of_all_waiters():
    rules = dict(RULES)
    owner = Owner(rules=rules)
    owner.ask(Batch(Op.CHECK, [USER], [1]))
    waiting = Batch(Op.CHECK, [USER], [1], slot_ids=[11])
    owner.ask(waiting)
    assert len(owner.queue) == 0

    rules[RATE] = Rule(RATE, "d", (("user", None),), RULES[SLOTS].limit)
    owner.queue.call_all()
    owner.ask(waiting)

    assert len(owner.queue) == 1


def test_repeated_checks_and_checks_that_gave_up_do_not_count_as_further_waiters():
    owner = Owner(most_of=lambda _: 1)
    owner.check(), owner.check()
    for ticket, who in ((11, "one"), (11, "one"), (11, "again"), (12, "one"), (13, "again")):
        owner.check(ticket, who=who)
    assert (len(owner.queue), owner.queue.refused) == (2, 1)

    owner.leave(11)
    owner.check(13, who="again")

    assert (len(owner.queue), owner.queue.refused) == (2, 1)


def test_only_the_group_of_a_check_that_would_overtake_is_not_charged():
    owner, first, _ = full()
    owner.check(11)
    owner.release(first)
    keys = [user(1), user(2), KEY, user(3), user(4)]

    outcomes = owner.ask(Batch(Op.CHECK, keys, [1] * 5, [1, 2, 2]))

    assert outcomes.codes == [
        *(Code.ALLOWED, Code.UNCHARGED, Code.DENIED),
        *(Code.ALLOWED, Code.ALLOWED),
    ]
    assert outcomes.remaining[2] == 0
    assert owner.ask(Batch(Op.CHECK, [user(2)], [1])).codes == [Code.ALLOWED]
    assert owner.ask(Batch(Op.CHECK, [user(3)], [1])).codes == [Code.DENIED]


def test_checks_without_a_group_are_charged_beside_a_check_that_would_overtake():
    owner, first, _ = full()
    owner.check(11)
    owner.release(first)

    outcomes = owner.ask(Batch(Op.CHECK, [user(1), KEY, user(2)], [1, 1, 1]))

    assert outcomes.codes == [Code.ALLOWED, Code.DENIED, Code.ALLOWED]
    assert owner.ask(Batch(Op.CHECK, [user(1)], [1])).codes == [Code.DENIED]


def test_a_check_above_the_hard_limit_cannot_overtake_either():
    owner = Owner()
    held = [owner.check(key=SOFT_KEY) for _ in range(3)]
    owner.check(11, SOFT_KEY)
    owner.release(held[0], key=SOFT_KEY)

    group = owner.ask(Batch(Op.CHECK, [SOFT_KEY, user(1)], [1, 1], [2]))

    assert group.codes == [Code.DENIED, Code.UNCHARGED]
    assert (owner.called, group.remaining[0]) == ([11], 0)


def test_a_peek_at_a_key_with_waiters_is_answered():
    owner, first, _ = full()
    owner.check(11)
    owner.release(first)

    assert owner.ask(Batch(Op.CHECK, [KEY], [0])).codes == [Code.ALLOWED]


def test_denials_of_limits_without_slots_keep_their_time():
    owner = Owner()
    owner.check(), owner.check()
    owner.ask(Batch(Op.CHECK, [USER], [1]))
    slots = RULES[SLOTS].limit

    outcomes = owner.ask(
        Batch(
            Op.CHECK,
            [USER, KEY, KEY, USER],
            [1] * 4,
            limits=[RULES[RATE].limit, slots],
            which=[0, 0, 2, 1],
        )
    )

    assert outcomes.retry_after_ns == [20 * SECOND, SECOND, SECOND, 20 * SECOND]


def test_the_time_until_a_slot_is_free_includes_all_waiters():
    owner, first, _ = full()
    owner.release(first, age_ns=8 * SECOND)
    second = owner.check()
    owner.check(11), owner.check(12)
    owner.release(second)
    assert owner.called == [11]

    assert owner.retry_after_ns() == 12 * SECOND, "one slot is kept, and one check waits"


def test_the_time_until_a_slot_is_free_is_a_second_while_nothing_is_known():
    owner, first, _ = full()
    owner.check(11)
    owner.release(first)

    assert owner.retry_after_ns() == SECOND


def test_the_hold_times_of_the_last_4096_rules_are_known():
    owner, first, _ = full()

    def release_others(count, start=1000):
        for keys in (other_rules(count, start)[i : i + 1000] for i in range(0, count, 1000)):
            ages = [80 * SECOND] * len(keys)
            owner.ask(Batch(Op.REFUND, keys, [1] * len(keys), slot_ids=ages, ages_ns=ages))

    owner.release(first, age_ns=8 * SECOND)
    owner.check()
    release_others(4095)
    assert owner.retry_after_ns() == 4 * SECOND
    release_others(1, start=9000)
    assert owner.retry_after_ns() == SECOND


def test_a_release_renews_the_hold_time_of_its_rule():
    owner, first, second = full()
    owner.release(first, age_ns=8 * SECOND)
    keys = other_rules(4095)
    ages = [SECOND] * 4095
    owner.ask(Batch(Op.REFUND, keys, [1] * 4095, slot_ids=ages, ages_ns=ages))
    owner.release(second, age_ns=8 * SECOND)
    assert all((owner.check(), owner.check()))

    owner.ask(Batch(Op.REFUND, other_rules(1, 9000), [1], slot_ids=[1], ages_ns=[SECOND]))

    assert owner.retry_after_ns() == 4 * SECOND


@pytest.mark.parametrize(("which", "waits"), [([1, 2], 11), ([2, 1], 10)])
def test_each_check_can_wait_by_the_limit_that_it_carries(which, waits):
    owner = Owner()
    limits = [RULES[RATE].limit, Limit.of_ns(1, 60 * SECOND, Algorithm.CONCURRENCY)]
    keys = [user(1), user(2)]
    batch = Batch(Op.CHECK, keys, [1, 1], slot_ids=[10, 11], limits=limits, which=which)
    owner.ask(Batch(Op.CHECK, keys, [1, 1], limits=limits, which=which))
    owner.ask(batch)

    owner.queue.call_all()

    assert owner.called == [waits]
