import copy
import pickle

import pytest

from ringfence.client.decision import NO_RULE, Decision, Status, decide, status_of, unlimited
from ringfence.limiter import Algorithm, Code, Limit, Outcomes
from ringfence.rules import Rule, adhoc_rule
from ringfence.wire import BY_POLICY, Results, Source

SECOND = 1_000_000_000


def rule(**flags):
    return Rule(1, "d", (("key", None),), Limit(10, 60), **flags)


def row(code, *, limit=10, remaining=3, retry=0, reset=0, delay=0, source=Source.OWNER):
    columns = Outcomes([code], [limit], [remaining], [retry], [reset], [delay], [0])
    return Results(columns, [source])


def reported(code, *, of=None, **numbers):
    return status_of(of or rule(), row(code, **numbers), 0)


def denied(retry_s, **flags):
    return reported(Code.DENIED, of=rule(**flags), remaining=0, retry=retry_s * SECOND)


def allowed(remaining, **flags):
    return reported(Code.ALLOWED, of=rule(**flags), remaining=remaining)


def test_a_status_has_seconds_and_its_source():
    status = reported(
        Code.DENIED, remaining=0, retry=1_500_000_000, reset=2 * SECOND, source=Source.STANDBY
    )

    assert not status.allowed
    assert (status.limit, status.remaining) == (10, 0)
    assert (status.retry_after, status.reset_after, status.delay) == (1.5, 2.0, 0.0)
    assert status.source is Source.STANDBY


def test_an_admitted_check_has_no_wait():
    status = reported(Code.ALLOWED, delay=SECOND // 2)

    assert status.allowed
    assert status.retry_after == 0.0
    assert status.delay == 0.5


def test_a_check_inside_the_soft_margin_is_allowed_and_marked():
    status = reported(Code.OVER_SOFT)

    assert status.allowed
    assert status.over_soft
    assert decide([status]).over_soft


def test_a_cost_that_could_never_pass_is_denied_permanently():
    decision = decide([reported(Code.NEVER)])

    assert not decision
    assert decision.retry_after is None
    assert decision.is_permanent


def test_a_denial_that_ends_by_time_is_not_permanent():
    assert not decide([denied(1)]).is_permanent


def test_a_shadow_rule_only_reports_that_it_would_have_denied():
    decision = decide([denied(5, shadow=True)])

    assert decision
    assert decision.over_shadow
    assert decision.retry_after == 0.0


def test_an_uncharged_counter_of_a_denied_group_is_allowed():
    assert reported(Code.UNCHARGED).allowed


def test_a_status_of_an_unknown_rule_allows_without_numbers():
    status = reported(Code.UNKNOWN_RULE, limit=0, remaining=0)

    assert status.allowed
    assert status.is_unknown
    assert (status.limit, status.remaining) == (None, None)


@pytest.mark.parametrize("source", BY_POLICY)
@pytest.mark.parametrize("code", [Code.ALLOWED, Code.DENIED])
def test_an_undecided_check_has_a_limit_and_no_remaining_units(code, source):
    status = reported(code, retry=SECOND, source=source)

    assert (status.limit, status.remaining) == (10, None)
    for decision in (decide([status]), Decision(rule(), row(code, source=source).row(0))):
        assert (decision.limit, decision.remaining) == (10, None)
        assert "limit 10, " in repr(decision)


def test_a_check_that_this_process_decided_has_remaining_units():
    assert reported(Code.ALLOWED, source=Source.LOCAL).remaining == 3


def test_an_allowed_request_shows_undecided_counters_only_if_no_node_decided_one():
    wide = Rule(2, "d", (("wide", None),), Limit(90, 60))
    undecided = [
        reported(Code.ALLOWED, of=each, limit=each.limit.amount, source=Source.POLICY)
        for each in (wide, rule())
    ]

    assert decide([*undecided, allowed(95)]).remaining == 95
    for others in ([NO_RULE], [unlimited(rule())], []):
        decision = decide([*others, *undecided])
        assert (decision.limit, decision.remaining) == (10, None)
        assert decision.source is Source.POLICY


def test_a_request_without_descriptors_matches_no_rule():
    decision = decide([])

    assert decision
    assert decision.source is Source.NO_RULE
    assert decision.statuses == (NO_RULE,)


def test_an_unlimited_rule_allows_and_is_named():
    free = rule()
    decision = decide([unlimited(free)])

    assert decision
    assert decision.rule is free
    assert (decision.limit, decision.remaining) == (None, None)


def test_an_allowed_request_shows_its_tightest_counter():
    decision = decide([NO_RULE, allowed(7), allowed(2), allowed(5)])

    assert decision
    assert decision.remaining == 2
    assert len(decision.statuses) == 4


def test_a_denied_request_shows_the_counter_to_wait_for_longest():
    decision = decide([denied(1), allowed(0), denied(4), denied(2)])

    assert not decision
    assert decision.retry_after == 4.0


def test_a_permanent_denial_has_priority_over_every_wait():
    assert decide([denied(9), reported(Code.NEVER)]).is_permanent


def test_quota_rules_deny_only_when_all_of_them_do():
    assert decide([denied(5, quota=True), allowed(1, quota=True)])
    assert not decide([denied(5, quota=True), denied(3, quota=True)])
    assert not decide([denied(5, quota=True)])


def test_of_several_spent_quotas_the_first_that_ends_decides_the_wait():
    assert decide([denied(5, quota=True), denied(3, quota=True)]).retry_after == 3.0


def test_the_wait_of_a_plain_denial_is_independent_of_quotas():
    decision = decide([denied(7), denied(1, quota=True), denied(2, quota=True)])

    assert decision.retry_after == 7.0
    assert decide([denied(2), denied(9, quota=True), allowed(1, quota=True)]).retry_after == 2.0


def test_several_turns_are_waited_for_at_once():
    decision = decide(
        [reported(Code.ALLOWED, delay=SECOND), reported(Code.ALLOWED, delay=3 * SECOND)]
    )

    assert decision.delay == 3.0


def test_a_denied_request_has_no_turn_to_wait_for():
    assert decide([reported(Code.ALLOWED, delay=SECOND), denied(1)]).delay == 0.0


def test_a_decision_is_true_when_allowed():
    assert bool(decide([allowed(1)])) is True
    assert bool(decide([denied(1)])) is False


def test_a_new_status_is_by_default_neither_soft_nor_shadowed_nor_unknown():
    status = Status(True, None, None, None, 0.0, 0.0, 0.0, Source.NO_RULE)

    assert (status.over_soft, status.over_shadow, status.is_unknown) == (False, False, False)


# -- immutability ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["allowed", "remaining", "statuses", "_row", "comment"])
def test_a_decision_cannot_be_changed(name: str):
    decision = Decision(rule(), (0, 10, 3, 0, SECOND, 0, 0, 2))

    with pytest.raises(AttributeError, match=f"immutable, so '{name}' cannot be set"):
        setattr(decision, name, False)
    with pytest.raises(AttributeError, match=f"immutable, so '{name}' cannot be deleted"):
        delattr(decision, name)
    assert (decision.allowed, decision.remaining) == (True, 3)


def test_a_status_cannot_be_changed():
    [status] = decide([allowed(1)]).statuses

    with pytest.raises(AttributeError, match="immutable"):
        status.allowed = False


@pytest.mark.parametrize("of_one_counter", [True, False])
def test_a_copied_or_pickled_decision_is_equal(of_one_counter: bool):
    denial = (Code.DENIED.value, 10, 0, SECOND, SECOND, 0, 0, 2)
    decision = Decision(rule(), denial) if of_one_counter else decide([denied(1), denied(2)])

    for each in (
        copy.copy(decision),
        copy.deepcopy(decision),
        pickle.loads(pickle.dumps(decision)),
    ):
        assert each == decision
        assert not each.allowed


# -- in words --------------------------------------------------------------------------------------


def test_the_text_of_a_decision_is_one_line():
    assert repr(decide([reported(Code.ALLOWED, remaining=3)])) == (
        "Decision(allowed, 3 of 10 left, from owner, rule d > key)"
    )
    assert repr(decide([denied(1.5)])) == (
        "Decision(denied, 0 of 10 left, retry after 1.5 s, from owner, rule d > key)"
    )
    assert repr(NO_RULE) == "Status(allowed, from no_rule)"
    assert "denied, 3 of 10 left, permanently" in repr(
        reported(Code.NEVER, of=rule(name="checkout"))
    )
    assert "rule checkout" in repr(reported(Code.NEVER, of=rule(name="checkout")))
    assert repr(reported(Code.ALLOWED, of=adhoc_rule(Limit(5, 60)))).endswith("limit 5/minute)")
    bucket = adhoc_rule(Limit(10, 60, algorithm=Algorithm.TOKEN_BUCKET, burst=20))
    assert "19 of 20 left" in repr(reported(Code.ALLOWED, remaining=19, of=bucket))
    soft = adhoc_rule(Limit(10, 60, soft=0.5))
    assert "14 of 15 left" in repr(reported(Code.ALLOWED, remaining=14, of=soft))
    assert "over_soft" in repr(reported(Code.OVER_SOFT, delay=SECOND))
    assert "delay 1 s" in repr(reported(Code.OVER_SOFT, delay=SECOND))
