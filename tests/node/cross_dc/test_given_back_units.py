"""Refunds of borrowed units: what each lender gets back, and how long the caller waits."""

from collections.abc import Callable
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from hashring import Member, NodeId, Ring
from node.cross_dc.split_borrowing import SplitBorrowing
from node.metrics.counters import Counters
from ringfence.limiter import Algorithm, Code, Limit
from ringfence.peering.link import Link
from ringfence.wire import MAX_KEYS, Batch, CheckId, Op, Results, Source, empty_results

NS = 1_000_000_000
KEY, OTHER = bytes(8) + b"key", bytes(8) + b"other"
LIMIT = Limit(300, 3600, Algorithm.FIXED_WINDOW)


class Lender:
    """Data center that lends all units, and takes back at most `takes` units of each refund."""

    def __init__(self, takes: int = 1000) -> None:
        self.takes = takes
        self.reset_after_ns = 3600 * NS
        self.is_silent = False
        self.refunds: list[Batch] = []

    def ask(
        self, batch: Batch, *, hops: int, as_standby: bool, done: Callable[[object], None]
    ) -> None:
        assert (hops, as_standby) == (2, False)
        answer = empty_results(len(batch))
        outcomes = answer.outcomes
        outcomes.codes = [Code.ALLOWED.value] * len(batch)
        outcomes.reset_after_ns = [self.reset_after_ns] * len(batch)
        if batch.op is Op.REFUND:
            self.refunds.append(batch)
            outcomes.slot_ids = [min(cost, self.takes) for cost in batch.costs]
        if not self.is_silent:
            done(answer)


class Borrower:
    """Data center that has borrowed units."""

    def __init__(self, **lenders: Lender) -> None:
        self.links: dict[str, Lender | None] = {**lenders}
        self.borrowing = SplitBorrowing(
            lambda name: cast("Link | None", self.links[name]),
            lambda: round((trio.current_time() + 1000) * NS),
            Counters(),
        )
        self.rings = {name: Ring.of([Member(NodeId(name))]) for name in lenders}
        self.borrowing.set_rules({bytes(8): LIMIT}, self.rings)

    async def borrow(
        self, units: int, lender: str = "", key: bytes = KEY, ids: list[CheckId] | None = None
    ) -> None:
        """Borrow units of one lender, or of the first one."""
        rings = {lender: self.rings[lender]} if lender else self.rings
        self.borrowing.set_rules({bytes(8): LIMIT}, rings)
        denied = answers(Code.DENIED)
        await self.borrowing.borrow(Batch(Op.CHECK, [key], [units], ids=ids or []), denied)
        assert denied.outcomes.codes == [Code.ALLOWED]
        self.borrowing.set_rules({bytes(8): LIMIT}, self.rings)

    async def refund(
        self, *costs: int, removed: int = 0, age_ns: int = 0, within: float = 1.0
    ) -> list[int]:
        """Refund units of which this data center had `removed`; return the refunded units."""
        found = answers(*[Code.ALLOWED] * len(costs), removed=removed)
        batch = Batch(Op.REFUND, [KEY] * len(costs), [*costs], ages_ns=[age_ns] * len(costs))
        rows = self.borrowing.rows_to_ask(batch, found)
        await self.borrowing.give_back(batch, rows, found, within)
        return found.outcomes.slot_ids


def answers(*codes: Code, removed: int = 0) -> Results:
    found = empty_results(len(codes))
    found.outcomes.codes = [code.value for code in codes]
    found.outcomes.slot_ids = [removed] * len(codes)
    found.sources = [Source.OWNER] * len(codes)
    return found


async def test_a_lender_gets_what_the_refund_did_not_remove_here(
    autojump_clock: MockClock,
) -> None:
    us = Lender()
    borrower = Borrower(us=us)
    await borrower.borrow(80)

    assert await borrower.refund(80, removed=80) == [80]
    assert await borrower.refund(80, removed=30) == [80]
    assert [(batch.keys, batch.costs, batch.ids) for batch in us.refunds] == [([KEY], [50], [])]
    assert await borrower.refund(80, 80) == [30, 0]
    assert await borrower.refund(80) == [0]


async def test_only_units_that_the_lender_still_counted_are_refunded(
    autojump_clock: MockClock,
) -> None:
    borrower = Borrower(us=Lender(takes=7))
    await borrower.borrow(80)

    assert await borrower.refund(80, removed=1) == [8]


async def test_each_lender_gets_its_own_units_in_one_request(autojump_clock: MockClock) -> None:
    us, ap = Lender(), Lender()
    borrower = Borrower(us=us, ap=ap)
    for units, lender in ((5, "us"), (6, "ap"), (7, "us")):
        await borrower.borrow(units, lender)

    assert await borrower.refund(16) == [16]
    assert [batch.costs for batch in us.refunds] == [[7, 3]]
    assert [batch.costs for batch in ap.refunds] == [[6]]


async def test_no_request_to_a_lender_has_too_many_rows(autojump_clock: MockClock) -> None:
    us = Lender()
    borrower = Borrower(us=us)
    keys = [bytes(8) + b"%d" % number for number in range(MAX_KEYS)]
    for _ in range(2):
        denied = answers(*[Code.DENIED] * MAX_KEYS)
        await borrower.borrowing.borrow(Batch(Op.CHECK, keys, [1] * MAX_KEYS), denied)
    refund = answers(*[Code.ALLOWED] * MAX_KEYS)

    await borrower.borrowing.give_back(
        Batch(Op.REFUND, keys, [2] * MAX_KEYS), range(MAX_KEYS), refund
    )

    assert [len(batch) for batch in us.refunds] == [MAX_KEYS] * 2
    assert refund.outcomes.slot_ids == [2] * MAX_KEYS


async def test_a_refund_has_the_age_of_the_loan_or_of_its_caller(
    autojump_clock: MockClock,
) -> None:
    us = Lender()
    borrower = Borrower(us=us)
    await borrower.borrow(80)
    await trio.sleep(0.25)
    await borrower.refund(1)
    await borrower.refund(1, age_ns=NS)
    await borrower.refund(1, age_ns=100)

    assert [batch.ages_ns for batch in us.refunds] == [[300_000_000], [NS], [300_000_000]]


async def test_a_repeated_check_is_borrowed_once(autojump_clock: MockClock) -> None:
    borrower = Borrower(us=Lender())
    for _ in range(2):
        await borrower.borrow(5, ids=[(1, 1, 0)])
    await borrower.borrow(5, ids=[(1, 2, 0)])

    assert await borrower.refund(100) == [10]


@pytest.mark.parametrize(("within", "wait"), [(0.2, 0.1), (1.0, 0.5), (30.0, 0.5)])
async def test_a_silent_lender_delays_a_refund_no_longer_than_a_check(
    autojump_clock: MockClock, within: float, wait: float
) -> None:
    us, ap = Lender(), Lender()
    borrower = Borrower(us=us, ap=ap)
    await borrower.borrow(10, "us")
    await borrower.borrow(10, "ap")
    us.is_silent = True
    began = trio.current_time()

    assert await borrower.refund(12, within=within) == [10]
    assert trio.current_time() - began == pytest.approx(wait)

    # The lender also gets the next refund, but no caller waits for its answer.
    assert await borrower.refund(3, within=within) == [0]
    assert trio.current_time() - began == pytest.approx(wait)
    assert [batch.costs for batch in us.refunds] == [[2], [3]]


async def test_a_lender_without_a_connection_keeps_its_loan(autojump_clock: MockClock) -> None:
    us = Lender()
    borrower = Borrower(us=us)
    await borrower.borrow(10)
    borrower.links["us"] = None
    assert await borrower.refund(10) == [0]

    borrower.links["us"] = us
    assert await borrower.refund(10) == [10]


async def test_a_lender_is_asked_for_units_again_after_a_refund(autojump_clock: MockClock) -> None:
    us = Lender()
    borrower = Borrower(us=us)
    await borrower.borrow(10)
    denied = Batch(Op.CHECK, [KEY], [1])
    borrower.borrowing._mark_exhausted("us", KEY, NS, passes_at=0)
    assert borrower.borrowing.rows_to_ask(denied, answers(Code.DENIED)) == []

    await borrower.refund(10)

    assert borrower.borrowing.rows_to_ask(denied, answers(Code.DENIED)) == [0]


async def test_only_refunds_of_borrowed_units_ask_lenders(autojump_clock: MockClock) -> None:
    borrower = Borrower(us=Lender())
    await borrower.borrow(10)
    can_ask = borrower.borrowing.can_ask

    assert can_ask(Batch(Op.REFUND, [OTHER, KEY], [1, 1]))
    assert not can_ask(Batch(Op.REFUND, [OTHER], [1]))
    assert not can_ask(Batch(Op.RESET, [KEY], [0]))
    batch = Batch(Op.REFUND, [OTHER, KEY, KEY], [1, 1, 0])
    assert borrower.borrowing.rows_to_ask(batch, answers(*[Code.ALLOWED] * 3)) == [1]

    borrower.borrowing.set_rules({}, borrower.rings)  # The limit is no longer divided.
    assert not can_ask(Batch(Op.REFUND, [KEY], [1]))
