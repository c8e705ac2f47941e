"""Refund ledger: the charges of each token, which limit its refunds."""

import pytest

from node.requests.refund_ledger import RefundLedger
from ringfence.limiter import NS_PER_SECOND, Code, Limit, Outcomes
from ringfence.wire import Batch, Op, Results, Source

LIMIT = Limit.of_ns(100, 60 * NS_PER_SECOND)
WEIGHS_NS = 120 * NS_PER_SECOND
KEYS = [bytes([number]) * 8 for number in range(5)]


class World:
    """Ledger of at most three keys, with a clock."""

    def __init__(self) -> None:
        self.now = 1000 * WEIGHS_NS
        self.ledger = RefundLedger(lambda: self.now, lambda key: LIMIT, most_keys=3)

    def charge(
        self,
        *keys: bytes,
        cost: int = 1,
        code: Code = Code.ALLOWED,
        source: Source = Source.OWNER,
        slot_id: int = 0,
    ) -> None:
        codes, zeros = [code.value] * len(keys), [0] * len(keys)
        slot_ids = [slot_id] * len(keys)
        outcomes = Outcomes(codes, zeros, zeros, zeros, zeros, zeros, slot_ids)
        batch = Batch(Op.CHECK, list(keys), [cost] * len(keys))
        self.ledger.charged(batch, Results(outcomes, [source] * len(keys)))

    def refund(self, key: bytes, cost: int, slot_id: int = 0) -> Batch:
        batch = Batch(Op.REFUND, [key], [cost], slot_ids=[slot_id])
        cut = self.ledger.bound(batch)
        assert batch.costs[0] + cut == cost
        return batch


def test_a_charge_is_refunded_once() -> None:
    w = World()
    w.charge(KEYS[0], KEYS[0], cost=3)

    assert [w.refund(KEYS[0], 4).costs, w.refund(KEYS[0], 4).costs] == [[4], [2]]
    assert w.refund(KEYS[1], 1).costs == [0]


@pytest.mark.parametrize(
    ("code", "source"),
    [
        (Code.DENIED, Source.OWNER),
        (Code.UNCHARGED, Source.OWNER),
        (Code.ALLOWED, Source.POLICY),
        (Code.ALLOWED, Source.LOCAL),
    ],
)
def test_a_check_that_no_member_charged_is_not_refunded(code: Code, source: Source) -> None:
    w = World()
    w.charge(KEYS[0], code=code, source=source)

    assert w.refund(KEYS[0], 1).costs == [0]


def test_charges_are_dropped_when_they_have_no_effect() -> None:
    w = World()
    w.charge(KEYS[0], KEYS[1], cost=5)
    w.now += WEIGHS_NS
    w.charge(KEYS[1], cost=2)
    still = w.refund(KEYS[1], 9)
    w.now += WEIGHS_NS

    assert (still.costs, w.refund(KEYS[0], 5).costs) == ([7], [0])


def test_a_refund_is_no_younger_than_the_last_charge() -> None:
    w = World()
    w.charge(KEYS[0])
    w.now += 7

    assert w.refund(KEYS[0], 1).ages_ns == [7]


def test_a_refund_must_name_the_lease_of_its_charge() -> None:
    w = World()
    w.charge(KEYS[0], cost=2, slot_id=9)

    assert [w.refund(KEYS[0], 2, slot_id).costs for slot_id in (8, 0, 9)] == [[0], [0], [2]]


def test_above_the_bound_the_key_charged_first_is_dropped() -> None:
    w = World()
    w.charge(*KEYS)

    assert len(w.ledger) == 3
    assert [w.refund(key, 1).costs for key in KEYS] == [[0], [0], [1], [1], [1]]
