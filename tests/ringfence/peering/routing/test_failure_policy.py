import pytest

from ringfence.limiter import Algorithm, Code, Limit, Outcome
from ringfence.peering.routing.failure_policy import FailurePolicy
from ringfence.rules import OnFailure, Rule, adhoc_rule, encode_key
from ringfence.wire import Batch, Op, Source

MINUTE = 60_000_000_000
LIMIT = Limit.of_ns(2, MINUTE, Algorithm.FIXED_WINDOW)


class HandClock:
    def __init__(self):
        self.at = 0

    def now(self):
        return self.at


def rule(on_failure, limit=LIMIT, number=7):
    return Rule(number, "d", (("key", None),), limit, on_failure=on_failure)


def policy(*rules, clock=None, max_keys=100):
    known = {each.id: each for each in rules}
    return FailurePolicy(known.get, clock or HandClock(), max_keys)


def batch(op=Op.CHECK, cost=1, number=7, value="a", **columns):
    return Batch(op, [encode_key(number, [value])], [cost], **columns)


def test_by_default_every_check_is_allowed_uncounted():
    outage = policy(rule(OnFailure.ALLOW))

    answers = [outage.decide(batch(), 0) for _ in range(3)]

    assert answers == [(Outcome(Code.ALLOWED, 2, 0), Source.POLICY)] * 3


def test_a_rule_can_deny_with_retry_after():
    outcome, source = policy(rule(OnFailure.DENY)).decide(batch(), 0)

    assert outcome.code is Code.DENIED
    assert outcome.retry_after_ns > 0
    assert (outcome.limit, outcome.remaining) == (2, 0)
    assert source is Source.POLICY


@pytest.mark.parametrize("op", [Op.REFUND, Op.RESET])
def test_only_a_check_can_be_denied(op):
    assert policy(rule(OnFailure.DENY)).decide(batch(op), 0)[0].code is Code.ALLOWED


def test_a_rule_can_count_locally_by_the_same_limit():
    clock = HandClock()
    outage = policy(rule(OnFailure.LOCAL), clock=clock)

    answers = [outage.decide(batch(), 0) for _ in range(3)]
    clock.at = MINUTE
    later, _ = outage.decide(batch(), 0)

    assert [outcome.code for outcome, _ in answers] == [Code.ALLOWED, Code.ALLOWED, Code.DENIED]
    assert {source for _, source in answers} == {Source.LOCAL}
    assert later.code is Code.ALLOWED


def test_local_counts_are_separate_per_key():
    outage = policy(rule(OnFailure.LOCAL))

    for _ in range(2):
        outage.decide(batch(value="a"), 0)

    assert outage.decide(batch(value="a"), 0)[0].code is Code.DENIED
    assert outage.decide(batch(value="b"), 0)[0].code is Code.ALLOWED


def test_local_counts_can_be_refunded_and_reset():
    outage = policy(rule(OnFailure.LOCAL))
    for _ in range(2):
        outage.decide(batch(), 0)

    refunded, _ = outage.decide(batch(Op.REFUND, ages_ns=[0], slot_ids=[0]), 0)
    forgotten, _ = outage.decide(batch(Op.RESET, cost=0), 0)

    assert refunded.remaining == 1
    assert forgotten.remaining == 2


def test_a_local_slot_is_released_locally():
    outage = policy(rule(OnFailure.LOCAL, Limit.of_ns(1, MINUTE, Algorithm.CONCURRENCY)))

    held, _ = outage.decide(batch(), 0)
    full, _ = outage.decide(batch(), 0)
    outage.decide(batch(Op.REFUND, slot_ids=[held.slot_id]), 0)
    free, _ = outage.decide(batch(), 0)

    assert [held.code, full.code, free.code] == [Code.ALLOWED, Code.DENIED, Code.ALLOWED]


def test_only_the_given_row_is_counted():
    outage = policy(rule(OnFailure.LOCAL))
    two = Batch(Op.CHECK, [encode_key(7, ["a"]), encode_key(7, ["b"])], [2, 1], groups=[2])

    outage.decide(two, 1)

    assert outage.decide(batch(value="a", cost=2), 0)[0].code is Code.ALLOWED


def test_a_carried_limit_replaces_the_rules_limit():
    outage = policy(rule(OnFailure.LOCAL))
    tighter = Limit.of_ns(1, MINUTE, Algorithm.FIXED_WINDOW)

    answers = [outage.decide(batch(limits=[tighter], which=[1]), 0)[0] for _ in range(2)]

    assert [answer.code for answer in answers] == [Code.ALLOWED, Code.DENIED]


def test_a_limit_without_a_rule_allows_and_reports_its_amount():
    adhoc = adhoc_rule(LIMIT)

    outcome, source = policy().decide(batch(number=adhoc.id, limits=[LIMIT], which=[1]), 0)

    assert outcome == Outcome(Code.ALLOWED, 2, 0)
    assert source is Source.POLICY


def test_a_limit_without_a_rule_follows_the_policy_of_the_client():
    own = batch(number=adhoc_rule(LIMIT).id, limits=[LIMIT], which=[1])
    deny = FailurePolicy({}.get, HandClock(), 100, lambda _: OnFailure.DENY)
    known = {7: rule(OnFailure.ALLOW)}
    local = FailurePolicy(known.get, HandClock(), 100, lambda _: OnFailure.LOCAL)

    assert deny.decide(own, 0)[0].code is Code.DENIED
    assert [local.decide(own, 0)[1] for _ in range(2)] == [Source.LOCAL] * 2
    assert local.decide(own, 0)[0].code is Code.DENIED
    assert local.decide(batch(), 0)[1] is Source.POLICY  # The policy of the rule is `allow`.


def test_an_unknown_rule_allows():
    assert policy().decide(batch(), 0)[0].code is Code.ALLOWED


def test_a_removed_rule_allows_uncounted():
    unlimited = rule(OnFailure.LOCAL, limit=None)

    assert policy(unlimited).decide(batch(), 0) == (Outcome(Code.ALLOWED, 0, 0), Source.POLICY)


def test_local_counting_is_bounded_in_memory():
    outage = policy(rule(OnFailure.LOCAL), max_keys=3)

    for number in range(50):
        outage.decide(batch(value=str(number), cost=2), 0)
    denied = [
        outage.decide(batch(value=str(number)), 0)[0].code is Code.DENIED for number in range(50)
    ]

    assert sum(denied) <= 3


@pytest.mark.parametrize(("which", "amount"), [(0, 2), (1, 7), (2, 8), (3, 9)])
def test_the_limit_of_a_row_is_that_to_which_it_refers(which, amount):
    limits = [Limit.of_ns(amount, MINUTE) for amount in (7, 8, 9)]

    outcome, _ = policy(rule(OnFailure.ALLOW)).decide(batch(limits=limits, which=[which]), 0)

    assert outcome.limit == amount
