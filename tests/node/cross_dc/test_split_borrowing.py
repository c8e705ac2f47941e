"""Borrowing of units of a divided limit from data centers that answer, deny, or are silent."""

from collections.abc import Callable
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from hashring import Member, NodeId, Ring
from node.cross_dc.split_borrowing import SplitBorrowing
from node.metrics.counters import Counters
from ringfence.limiter import Code, Outcomes
from ringfence.peering.link import Link
from ringfence.wire import Batch, Op, Results, Source

KEY = bytes(8) + b"key"
FAILS_AFTER = 0.84
"""Seconds after which a link fails a request without an answer."""


def results(code: Code) -> Results:
    return Results(Outcomes([code], [0], [0], [0], [0], [0], [0]), [Source.OWNER])


class FakeLink:
    """Link that answers at once, or fails after a time if it has no answer."""

    def __init__(self, code: Code | None) -> None:
        self.code = code
        self.asked = 0

    def ask(
        self, batch: Batch, *, hops: int, as_standby: bool, done: Callable[[object], None]
    ) -> None:
        self.asked += 1
        if self.code is not None:
            done(results(self.code))
        else:
            trio.lowlevel.spawn_system_task(self._fail, done)

    async def _fail(self, done: Callable[[object], None]) -> None:
        await trio.sleep(FAILS_AFTER)
        done(None)


def borrowing(links: dict[str, FakeLink]) -> SplitBorrowing:
    made = SplitBorrowing(
        lambda name: cast("Link", links[name]),
        lambda: round(trio.current_time() * 1e9),
        Counters(),
    )
    made.set_rules({bytes(8)}, {name: Ring.of([Member(NodeId(name))]) for name in links})
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


async def test_a_check_waits_for_one_silent_data_center_only(autojump_clock: MockClock) -> None:
    links = {"dc2": FakeLink(None), "dc3": FakeLink(None), "dc4": FakeLink(None)}
    began = trio.current_time()

    assert await borrow(borrowing(links)) is Code.DENIED
    assert trio.current_time() - began == 0.5  # Callers wait for a second.
    assert [link.asked for link in links.values()] == [1, 0, 0]


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
