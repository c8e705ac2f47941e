"""Denials of a divided limit: permanent only for a cost above the largest share."""

from typing import cast

import pytest
from trio.testing import MockClock

from hashring import Member, NodeId, Ring
from node.cross_dc.split import largest_shares, used_up
from node.cross_dc.split_borrowing import SplitBorrowing
from node.metrics.counters import Counters
from ringfence.limiter import Algorithm, Code, Limit
from ringfence.peering.link import Link
from ringfence.rules.loading.yaml_files import load_text
from ringfence.wire import Batch, Op
from tests.node.cross_dc.test_split_borrowing import FakeLink, results

NS = 1_000_000_000
NOW = 10_003 * NS
KEY = bytes(8) + b"key"
LIMIT = Limit(2, 10, Algorithm.FIXED_WINDOW)
"""Limit whose window ends seven seconds after `NOW`."""


def borrowing(links: dict[str, FakeLink], limit: Limit = LIMIT) -> SplitBorrowing:
    made = SplitBorrowing(lambda name: cast("Link", links[name]), lambda: NOW, Counters())
    made.set_rules({bytes(8): limit}, {name: Ring.of([Member(NodeId(name))]) for name in links})
    return made


@pytest.mark.parametrize(
    ("op", "cost", "code", "expected", "wait_s"),
    [
        (Op.CHECK, 1, Code.NEVER, Code.DENIED, 7),
        (Op.CHECK, 0, Code.NEVER, Code.DENIED, 7),
        (Op.CHECK, 2, Code.NEVER, Code.DENIED, 7),
        (Op.CHECK, 3, Code.NEVER, Code.NEVER, 0),
        (Op.REFUND, 3, Code.NEVER, Code.DENIED, 7),
        (Op.RESET, 3, Code.NEVER, Code.DENIED, 7),
        (Op.CHARGE, 3, Code.OVERDRAWN, Code.OVERDRAWN, 7),
        (Op.CHECK, 1, Code.ALLOWED, Code.ALLOWED, 0),
        (Op.CHECK, 1, Code.DENIED, Code.DENIED, 0),
    ],
)
def test_a_denial_is_permanent_only_above_the_largest_share(
    op: Op, cost: int, code: Code, expected: Code, wait_s: int
) -> None:
    outcomes = results(code).outcomes

    borrowing({}).correct_denials(Batch(op, [KEY], [cost]), outcomes)

    assert (outcomes.codes, outcomes.retry_after_ns) == ([expected], [wait_s * NS])


def test_other_limits_keep_their_permanent_denials() -> None:
    outcomes = results(Code.NEVER, Code.NEVER, Code.NEVER).outcomes
    keys = [b"otherone" + b"key", KEY, KEY]
    batch = Batch(Op.CHECK, keys, [1] * 3, limits=[LIMIT], which=[0, 1, 0])

    borrowing({}).correct_denials(batch, outcomes)

    assert outcomes.codes == [Code.NEVER, Code.NEVER, Code.DENIED]


def test_a_debt_with_an_end_keeps_its_wait() -> None:
    outcomes = results(Code.OVERDRAWN, Code.NEVER, retry_after_ns=5).outcomes

    borrowing({}).correct_denials(Batch(Op.CHARGE, [KEY] * 2, [1, 1]), outcomes)

    assert outcomes.retry_after_ns == [5, 7 * NS]


@pytest.mark.parametrize(
    ("stated", "wait_s"), [([3, 5], 3), ([5, 3], 3), ([9], 7), ([None], 7), ([], 7)]
)
async def test_the_wait_is_the_shortest_that_other_data_centers_stated(
    autojump_clock: MockClock, stated: list[int | None], wait_s: int
) -> None:
    links = {
        f"dc{number}": FakeLink(
            Code.NEVER if wait is None else Code.DENIED, retry_after_ns=(wait or 0) * NS
        )
        for number, wait in enumerate(stated)
    }
    made = borrowing(links)
    await made.borrow(Batch(Op.CHECK, [KEY], [1]), results(Code.DENIED, retry_after_ns=7 * NS))
    later = results(Code.NEVER).outcomes

    made.correct_denials(Batch(Op.CHECK, [KEY], [1]), later)

    assert later.codes == [Code.DENIED]
    assert later.retry_after_ns == [wait_s * NS]


@pytest.mark.parametrize(
    ("limit", "cost", "wait_s"),
    [
        (LIMIT, 1, 7),
        (LIMIT, 3, 0),
        (Limit(10, 10, Algorithm.TOKEN_BUCKET), 4, 4),
        (Limit(10, 10, Algorithm.TOKEN_BUCKET, burst=3), 4, 0),
        (Limit(10, 10, Algorithm.SLIDING_WINDOW_LOG), 4, 10),
        (Limit(0, 10, Algorithm.FIXED_WINDOW), 1, 0),
    ],
)
def test_the_longest_wait_is_that_after_all_units_are_used(
    limit: Limit, cost: int, wait_s: int
) -> None:
    code, _, wait_ns, *_ = used_up(limit, NOW).check(cost, NOW)

    assert (code, wait_ns) == (Code.DENIED if wait_s else Code.NEVER, wait_s * NS)


def test_only_limits_of_split_rules_are_divided() -> None:
    rules = load_text("""
domain: api
descriptors:
  - {key: near, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: split, rate_limit: {unit: day, requests_per_unit: 6, global: {mode: split}}}
""").rules

    shares = largest_shares(rules.rules(), ["us", "eu", "ap", "sa"])
    assert [limit.amount for limit in shares.values()] == [2]
