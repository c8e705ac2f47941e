"""Leases of an owner: how it counts lent units and when it recalls them."""

from node.requests.lease_grants import Lender
from ringfence.limiter import NS_PER_SECOND, Algorithm, Code, Engine, EngineRule, Limit
from ringfence.rules import adhoc_rule, encode_key
from ringfence.wire import Batch, LeaseRequest, Op

LIMIT = Limit.of_ns(1000, 60 * NS_PER_SECOND, Algorithm.FIXED_WINDOW)
RULE = adhoc_rule(LIMIT)
KEY, OTHER = encode_key(RULE.id, ("hot",)), encode_key(RULE.id, ("other",))


def test_the_first_denial_of_a_key_recalls_exactly_its_leases() -> None:
    engine = Engine(max_keys=100)
    engine.set_rules({RULE.id: EngineRule(LIMIT)})
    recalled: list[tuple[str, list[bytes]]] = []
    lender: Lender[str] = Lender(
        engine,
        lambda number: RULE if number == RULE.id else None,
        lambda client, keys: recalled.append((client, keys)),
        first_lease=1,
    )
    for client, key in (("one", KEY), ("two", KEY), ("one", OTHER)):
        assert lender.lend(client, LeaseRequest(1, key, 100, [], []), 0).units

    allowed = lender.decide(Batch(Op.CHECK, [KEY], [800]), 0)
    before = list(recalled)
    denied = lender.decide(Batch(Op.CHECK, [KEY], [1]), 0)
    lender.decide(Batch(Op.CHECK, [KEY], [1]), 0)

    assert (allowed.codes, denied.codes) == ([Code.ALLOWED], [Code.DENIED])
    assert before == []
    assert recalled == [("one", [KEY]), ("two", [KEY])]
