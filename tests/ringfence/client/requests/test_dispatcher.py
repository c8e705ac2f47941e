"""Unknown rules, outages and refusals of owners."""

import pytest
import trio
from msgspec.structs import replace

from ringfence.client.limiter import Limiter
from ringfence.errors import AccessDenied, ConfigError, PeerUnavailable
from ringfence.limiter import Code, Engine, Outcome
from ringfence.peering.engine_choice import decide_batch, engine_rules
from ringfence.rules import OnFailure, RuleSet
from ringfence.wire import Batch, Op, Results, Source
from tests.ringfence.client.limiters import SECOND, described, left, limited, limiter_of, rules_of


class RemoteDecider:
    """Decider whose owner may have other rules than the client, or be unreachable."""

    def __init__(self, known, held):
        self.rules = known
        self._held = held
        self._engine = Engine(max_keys=1000)
        self._engine.set_rules(engine_rules(held.rules()))
        self.is_lost = False
        self.lost_rows = (0,)
        self.denial = None
        self.knows_rules = True
        self.on_failure = OnFailure.ALLOW
        self.refusal = None
        self.refreshed = 0

    async def decide(self, batch, denies_group, within):
        await trio.lowlevel.checkpoint()
        verdicts = Results(
            decide_batch(self._engine, batch, 30 * SECOND), [Source.OWNER] * len(batch)
        )
        if self.is_lost:
            for row in self.lost_rows:
                verdicts.put(row, Outcome(Code.ALLOWED, 9, 9), Source.POLICY)
        verdicts.refusal = self.denial
        return verdicts

    async def ask(self, key, cost, within):
        verdicts = await self.decide(Batch(Op.CHECK, [key], [cost]), None, None)
        if verdicts.refusal is not None:
            raise verdicts.refusal
        return verdicts.row(0)

    async def refresh_rules(self):
        self.refreshed += 1
        self.rules = self._held

    def local_checks(self, matches):
        return None

    def time(self):
        return 0.0

    def refund(self, batch, rows, verdicts, asked_at):
        back = replace(batch.take(rows), op=Op.REFUND, groups=[])
        decide_batch(self._engine, back, 30 * SECOND)

    def outage(self):
        return self.refusal

    def addresses_of(self, keys):
        return [("10.0.0.1", 7101), ("10.0.0.2", 7101)][: len(keys) + 1]


OLD = described("user", 5), described("old", 5)
NEW = described("user", 5), described("new", 5)


async def test_an_owner_with_newer_rules_makes_the_client_fetch_them():
    decider = RemoteDecider(rules_of(*OLD), rules_of(*NEW))
    limiter = Limiter(decider)

    dropped = await limiter.check("d", {"old": "a"})
    added = await limiter.check("d", {"new": "a"})

    assert dropped
    assert dropped.source is Source.NO_RULE
    assert added.remaining == 4
    assert decider.refreshed == 1


async def test_an_owner_with_older_rules_counts_by_the_limit_in_the_request():
    class Ahead(RemoteDecider):
        async def refresh_rules(self):
            self.refreshed += 1

    limiter = Limiter(Ahead(rules_of(*NEW), rules_of(*OLD)))

    decisions = [await limiter.check("d", {"new": "a"}) for _ in range(6)]

    assert [decision.remaining for decision in decisions] == [4, 3, 2, 1, 0, 0]
    assert not decisions[5]
    assert not any(status.is_unknown for each in decisions for status in each.statuses)


class OwnerWithOldRules(RemoteDecider):
    """Decider of a client whose rules are newer than those of all nodes."""

    async def refresh_rules(self):
        self.refreshed += 1


async def test_a_known_rule_beside_an_unknown_one_is_charged_once():
    limiter = Limiter(OwnerWithOldRules(rules_of(*NEW), rules_of(*OLD)))
    both = [{"user": "a"}, {"new": "a"}]

    decision = await limiter.check("d", both)

    assert [status.remaining for status in decision.statuses] == [4, 4]


async def test_a_known_rule_beside_an_unknown_one_is_refunded_once():
    limiter = Limiter(OwnerWithOldRules(rules_of(*NEW), rules_of(*OLD)))
    both = [{"user": "a"}, {"new": "a"}]
    await limiter.check("d", both, cost=4)

    decision = await limiter.refund("d", both)

    assert [status.remaining for status in decision.statuses] == [2, 2]


async def test_only_requests_with_unknown_rules_are_asked_again():
    decider = OwnerWithOldRules(rules_of(*NEW), rules_of(*OLD))
    limiter = Limiter(decider)

    decisions = await limiter.check_many("d", [{"user": "a"}, {"new": "a"}, {"user": "a"}])

    assert [decision.remaining for decision in decisions] == [4, 4, 3]
    assert decider.refreshed == 1


async def test_rules_of_a_client_keep_their_shadow_mode():
    shadowed = rules_of(described("user", 5), described("new", 1, shadow_mode=True))
    limiter = Limiter(RemoteDecider(shadowed.as_carried(), RuleSet()))
    both = [{"user": "a"}, {"new": "a"}]

    decisions = [await limiter.check("d", both) for _ in range(3)]

    assert [decision.over_shadow for decision in decisions] == [False, True, True]
    assert [decision.statuses[0].remaining for decision in decisions] == [4, 3, 2]


async def test_rules_of_a_client_charge_nothing_when_they_deny():
    own = rules_of(described("user", 9), described("new", 9, shadow_mode=True), described("few", 1))
    limiter = Limiter(RemoteDecider(own.as_carried(), RuleSet()))
    request = [{"user": "a"}, {"new": "a"}, {"few": "a"}]

    for _ in range(3):
        await limiter.check("d", request)

    assert await left(limiter, user="a") == 8
    assert await left(limiter, new="a") == 8


# -- outages ---------------------------------------------------------------------------------------


async def test_an_outage_is_a_decision_unless_asked_otherwise():
    decider = RemoteDecider(rules_of(*OLD), rules_of(*OLD))
    decider.is_lost = True

    assert (await Limiter(decider).check("d", {"user": "a"})).source is Source.POLICY
    strict = Limiter(decider, raise_on_outage=True)
    for call in (strict.check("d", {"user": "a"}), strict.peek("d", {"user": "a"})):
        with pytest.raises(
            PeerUnavailable, match=r"decided 1 check in time \(asked 10.0.0.1:7101, 10.0"
        ) as e:
            await call
        assert e.value.addresses == (("10.0.0.1", 7101), ("10.0.0.2", 7101))


async def test_an_outage_of_a_home_rule_names_the_home():
    home = {"mode": "home", "home": "eu"}
    rules = rules_of(
        described("user", 5), {"key": "paid", "rate_limit": limited(5, **{"global": home})}
    )
    decider = RemoteDecider(rules, rules)
    decider.is_lost = True
    strict = Limiter(decider, raise_on_outage=True)

    for call in (strict.check("d", {"paid": "a"}), strict.peek("d", {"paid": "a"})):
        with pytest.raises(
            PeerUnavailable, match="no node of data center 'eu', the home of this rule, decided 1"
        ):
            await call
    decider.lost_rows = (0, 1)
    with pytest.raises(PeerUnavailable, match="no node of the cluster decided 2 checks"):
        await strict.check("d", [{"paid": "a"}, {"user": "a"}])


async def test_a_partial_outage_states_how_many_checks_were_not_decided_and_refunds_the_others():
    decider = RemoteDecider(rules_of(*OLD), rules_of(*OLD))
    decider.is_lost, decider.lost_rows = True, (0, 2)
    strict = Limiter(decider, raise_on_outage=True)
    users = [{"user": user} for user in "abc"]

    with pytest.raises(PeerUnavailable, match="decided 2 of 3 checks in time"):
        await strict.check_many("d", users)
    with pytest.raises(PeerUnavailable, match="decided 2 of 3 checks in time"):
        await strict.check("d", users)

    decider.is_lost = False
    assert await left(strict, user="b") == 5


async def test_an_outage_by_rejection_raises_its_reason():
    decider = RemoteDecider(rules_of(*OLD), rules_of(*OLD))
    decider.is_lost = True
    decider.refusal = AccessDenied("the token lacks the scope 'reset'")

    with pytest.raises(AccessDenied, match="scope"):
        await Limiter(decider, raise_on_outage=True).reset("d", {"user": "a"})


async def test_a_missing_scope_raises_access_denied_and_is_no_outage():
    decider = RemoteDecider(rules_of(*OLD), rules_of(*OLD))
    decider.is_lost = True
    decider.denial = AccessDenied("the token lacks the scope 'check'")
    limiter = Limiter(decider)
    user = {"user": "a"}

    for call in (
        limiter.check("d", user),
        limiter.check_many("d", [user, user]),
        limiter.peek("d", user),
        limiter.refund("d", user),
        limiter.reset("d", user),
        limiter.acquire("d", user),
        limiter.check_limit("5/s", "key"),
        limiter.refund_limit("5/s", "key"),
        limiter.reset_limit("5/s", "key"),
    ):
        with pytest.raises(AccessDenied, match="the scope 'check'"):
            await call


async def test_decisions_without_known_rules_come_from_the_policy():
    decider = RemoteDecider(RuleSet(), RuleSet())
    decider.knows_rules = False

    decision = await Limiter(decider).check("d", {"user": "a"})

    assert decision
    assert decision.source is Source.POLICY
    with pytest.raises(PeerUnavailable, match="has sent its rules"):
        await Limiter(decider, raise_on_outage=True).check("d", {"user": "a"})
    async with Limiter(decider).hold("d", {"job": "a"}) as held:
        assert held


async def test_checks_without_known_rules_can_be_denied():
    decider = RemoteDecider(RuleSet(), RuleSet())
    decider.knows_rules = False
    decider.on_failure = OnFailure.DENY
    limiter = Limiter(decider)

    denied = await limiter.check("d", {"user": "a"})
    assert not denied
    assert (denied.source, denied.retry_after) == (Source.POLICY, 1)
    assert not await limiter.charge("d", {"user": "a"})
    assert await limiter.refund("d", {"user": "a"})


async def test_a_limiter_raises_after_its_block():
    async with limiter_of(described("user", 5)) as limiter:
        decision = await limiter.check("d", {"user": "a"})

    for call in (
        limiter.check("d", {"user": "a"}),
        limiter.check("d", {"path": "/"}),
        limiter.check_limit("5/s", "key"),
        limiter.release(decision),
    ):
        with pytest.raises(ConfigError, match="limiter must be open"):
            await call


async def test_a_check_that_raises_has_charged_nothing():
    decider = RemoteDecider(rules_of(*OLD), rules_of(*OLD))
    limiter = Limiter(decider, raise_on_outage=True)
    decider.is_lost = True
    with pytest.raises(PeerUnavailable):
        await limiter.check_many("d", [{"user": "a"}, {"user": "b"}])
    decider.is_lost = False

    assert await left(limiter, user="b") == 5
