"""Borrowing of units of a divided limit from data centers that answer, deny, or are silent."""

from collections.abc import Callable
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from hashring import Member, NodeId, Ring
from node.cross_dc.split_borrowing import SplitBorrowing
from node.metrics.counters import Counters
from ringfence.limiter import Algorithm, Code, Limit, Outcomes
from ringfence.peering.link import Link
from ringfence.wire import Batch, Op, Results, Source

NS = 1_000_000_000
KEY = bytes(8) + b"key"
HOUR = 3600
LIMIT = Limit(300, HOUR, Algorithm.FIXED_WINDOW)
FAILS_AFTER = 0.84
"""Seconds after which a link fails a request without an answer."""


def results(*codes: Code, retry_after_ns: int = 0) -> Results:
    rest = [[0] * len(codes)] * 2
    retry = [retry_after_ns] * len(codes)
    columns = [list(column) for column in (codes, *rest, retry, *rest, rest[0])]
    return Results(Outcomes(*columns), [Source.OWNER] * len(codes))


class FakeLink:
    """Link that answers at once, or fails after a time if it has no answer."""

    def __init__(self, code: Code | None, *, retry_after_ns: int = 0) -> None:
        self.code = code
        self.retry_after_ns = retry_after_ns
        self.asked = 0
        self.keys: list[bytes] = []

    def ask(
        self, batch: Batch, *, hops: int, as_standby: bool, done: Callable[[object], None]
    ) -> None:
        assert (hops, as_standby) == (2, False)
        self.asked += 1
        self.keys += batch.keys
        if self.code is not None:
            done(results(*[self.code] * len(batch), retry_after_ns=self.retry_after_ns))
        else:
            trio.lowlevel.spawn_system_task(self._fail, done)

    async def _fail(self, done: Callable[[object], None]) -> None:
        await trio.sleep(FAILS_AFTER)
        done(None)


def borrowing(
    links: dict[str, FakeLink],
    clock: Callable[[], int] = lambda: round(trio.current_time() * 1e9),
    counters: Counters | None = None,
) -> SplitBorrowing:
    made = SplitBorrowing(lambda name: cast("Link", links[name]), clock, counters or Counters())
    made.set_rules({bytes(8): LIMIT}, {name: Ring.of([Member(NodeId(name))]) for name in links})
    return made


async def borrow(from_others: SplitBorrowing, within: float = 1.0) -> Code:
    denied = results(Code.DENIED)
    await from_others.borrow(Batch(Op.CHECK, [KEY], [1]), denied, within)
    return Code(denied.outcomes.codes[0])


async def test_the_first_data_center_with_units_lends_them(autojump_clock: MockClock) -> None:
    links = {"dc2": FakeLink(Code.DENIED), "dc3": FakeLink(Code.ALLOWED)}
    links["dc4"] = FakeLink(Code.ALLOWED)

    assert await borrow(borrowing(links)) is Code.ALLOWED
    assert [link.asked for link in links.values()] == [1, 1, 0]


@pytest.mark.parametrize("code", list(Code))
async def test_only_charged_checks_are_borrowed(autojump_clock: MockClock, code: Code) -> None:
    counters = Counters()

    found = await borrow(borrowing({"dc2": FakeLink(code)}, counters=counters))

    is_borrowed = code in (Code.ALLOWED, Code.OVER_SOFT)
    assert found is (code if is_borrowed else Code.DENIED)
    assert counters.as_dict()["borrowed"] == is_borrowed


async def test_a_check_waits_for_one_silent_data_center_only(autojump_clock: MockClock) -> None:
    links = {"dc2": FakeLink(None), "dc3": FakeLink(None), "dc4": FakeLink(None)}
    began = trio.current_time()

    assert await borrow(borrowing(links)) is Code.DENIED
    assert trio.current_time() - began == 0.5  # Callers wait for a second.
    assert [link.asked for link in links.values()] == [1, 0, 0]


async def test_a_data_center_that_leaves_while_a_check_waits_is_not_asked(
    autojump_clock: MockClock,
) -> None:
    links = {"dc2": FakeLink(Code.DENIED), "dc3": FakeLink(Code.ALLOWED)}
    from_others = borrowing(links)

    class LastAnswer(FakeLink):
        def ask(
            self, batch: Batch, *, hops: int, as_standby: bool, done: Callable[[object], None]
        ) -> None:
            from_others.set_rules({bytes(8): LIMIT}, {"dc2": Ring.of([Member(NodeId("dc2"))])})
            super().ask(batch, hops=hops, as_standby=as_standby, done=done)

    links["dc2"] = LastAnswer(Code.DENIED)

    assert await borrow(from_others) is Code.DENIED
    assert links["dc3"].asked == 0


async def test_a_silent_member_is_asked_again_after_a_second(autojump_clock: MockClock) -> None:
    links = {"dc2": FakeLink(None), "dc3": FakeLink(Code.ALLOWED)}
    from_others = borrowing(links)
    await borrow(from_others)

    assert await borrow(from_others) is Code.ALLOWED
    assert links["dc2"].asked == 1
    await trio.sleep(1.1)
    links["dc2"].code = Code.ALLOWED
    assert await borrow(from_others) is Code.ALLOWED
    assert links["dc2"].asked == 2


@pytest.mark.parametrize(("within", "wait"), [(0.2, 0.1), (1.0, 0.5), (30.0, 0.5)])
async def test_a_silent_data_center_takes_at_most_half_of_the_deadline(
    autojump_clock: MockClock, within: float, wait: float
) -> None:
    began = trio.current_time()

    assert await borrow(borrowing({"dc2": FakeLink(None)}), within) is Code.DENIED
    assert trio.current_time() - began == pytest.approx(wait)


async def test_units_that_arrive_after_the_wait_change_no_answer(
    autojump_clock: MockClock,
) -> None:
    late: list[Callable[[object], None]] = []
    link = FakeLink(None)
    link.ask = lambda batch, *, hops, as_standby, done: late.append(done)  # type: ignore[method-assign]
    denied = results(Code.DENIED)
    await borrowing({"dc2": link}).borrow(Batch(Op.CHECK, [KEY], [1]), denied, 1.0)

    late[0](results(Code.ALLOWED))

    assert denied.outcomes.codes == [Code.DENIED]


@pytest.mark.parametrize(
    ("code", "retry_after_ns", "asked_again_after_ns"),
    [
        (Code.DENIED, 0, 0),
        (Code.DENIED, 700, 700),
        (Code.DENIED, NS, NS),
        (Code.DENIED, 60 * NS, NS),  # Units may be refunded.
        (Code.NEVER, 0, NS),
        (Code.NEVER, 60 * NS, NS),
        (None, 0, NS),
    ],
)
async def test_a_data_center_without_units_is_asked_again_after_a_second_at_most(
    autojump_clock: MockClock, code: Code | None, retry_after_ns: int, asked_again_after_ns: int
) -> None:
    now = 5 * NS
    link = FakeLink(code, retry_after_ns=retry_after_ns)
    from_others = borrowing({"dc2": link}, lambda: now)

    assert await borrow(from_others) is Code.DENIED
    for passed in (asked_again_after_ns - 1, asked_again_after_ns):
        now = 5 * NS + max(passed, 0)
        link.code = Code.ALLOWED
        is_asked = passed == asked_again_after_ns or asked_again_after_ns == 0
        assert await borrow(from_others) is (Code.ALLOWED if is_asked else Code.DENIED)


async def test_the_memory_of_exhausted_shares_is_bounded(autojump_clock: MockClock) -> None:
    link = FakeLink(Code.DENIED, retry_after_ns=NS)
    from_others = borrowing({"dc2": link}, lambda: NS)
    keys = [bytes(8) + b"%d" % number for number in range(10_001)]

    for first in range(0, 10_000, 1000):
        batch = Batch(Op.CHECK, keys[first : first + 1000], [1] * 1000)
        await from_others.borrow(batch, results(*[Code.DENIED] * 1000))
    assert from_others.rows_to_ask(Batch(Op.CHECK, keys[:1], [1]), results(Code.DENIED)) == []
    await from_others.borrow(Batch(Op.CHECK, keys[-1:], [1]), results(Code.DENIED))

    rows = from_others.rows_to_ask(
        Batch(Op.CHECK, [keys[0], keys[-1]], [1, 1]), results(Code.DENIED, Code.DENIED)
    )
    assert rows == [0]


async def test_only_denied_single_checks_of_split_rules_are_lent(
    autojump_clock: MockClock,
) -> None:
    link, counters = FakeLink(Code.ALLOWED), Counters()
    from_others = borrowing({"dc2": link}, counters=counters)
    other = b"otherone" + b"key"
    keys = [bytes(8) + b"%d" % number for number in range(5)]
    codes = [Code.DENIED, Code.NEVER, Code.ALLOWED, Code.DENIED, Code.DENIED]
    batch = Batch(Op.CHECK, [*keys, other], [1] * 6, groups=[1, 1, 1, 2, 1])
    answers = results(*codes, Code.DENIED)

    await from_others.borrow(batch, answers)

    assert link.keys == keys[:1]  # The second check costs more than the largest share.
    assert answers.outcomes.codes == [Code.ALLOWED, Code.NEVER, Code.ALLOWED] + [Code.DENIED] * 3
    assert counters.as_dict()["borrowed"] == 1
    for op in (Op.CHARGE, Op.REFUND, Op.RESET):
        assert not from_others.can_ask(Batch(op, keys, [1] * 5))
    assert not from_others.can_ask(Batch(Op.CHECK, [other], [1]))


async def test_a_denial_lasts_until_the_first_part_has_room(autojump_clock: MockClock) -> None:
    links = {"dc2": FakeLink(Code.DENIED, retry_after_ns=7)}
    links["dc3"] = FakeLink(Code.DENIED, retry_after_ns=5)
    answers = results(Code.DENIED, retry_after_ns=9)

    await borrowing(links).borrow(Batch(Op.CHECK, [KEY], [1]), answers)

    assert answers.outcomes.codes == [Code.DENIED]
    assert answers.outcomes.retry_after_ns == [5]
