"""Load and audit of the benchmark `restarts`, while the nodes do not answer."""

from collections import Counter
from typing import cast

import trio
from trio.testing import MockClock

from benchmarks.members.admissions import counted
from benchmarks.members.restarts import _MOST_IN_FLIGHT, _PER_SECOND, _Ledger, _under_load
from ringfence.client.decision import UNDECIDED, Decision, Status, decide
from ringfence.client.limiter import Limiter
from ringfence.wire import Source

DECIDED = decide([Status(True, None, 10, 7, 0.0, 0.0, 0.0, Source.OWNER)])


class LateNodes:
    """Limiter whose nodes decide only after a test sets `are_back`."""

    def __init__(self) -> None:
        self.are_back = trio.Event()

    async def check(self, domain: str, descriptors: dict[str, str]) -> Decision:
        await self.are_back.wait()
        return DECIDED

    async def peek(self, domain: str, descriptors: dict[str, str]) -> Decision:
        return DECIDED if self.are_back.is_set() else decide([UNDECIDED])


async def test_the_client_sends_no_more_checks_while_too_many_are_in_flight(
    autojump_clock: MockClock,
) -> None:
    nodes, ledger = LateNodes(), _Ledger()

    async def change() -> None:
        await trio.sleep(2)
        nodes.are_back.set()
        await trio.sleep(1)

    await _under_load(cast(Limiter, nodes), "graceful", ledger, change)

    assert abs(ledger.checks - _MOST_IN_FLIGHT - _PER_SECOND) < _PER_SECOND / 10
    assert abs(ledger.checks + ledger.not_sent - 3 * _PER_SECOND) < _PER_SECOND / 10
    assert ledger.in_flight == 0


async def test_a_counter_that_no_node_returns_is_read_again(autojump_clock: MockClock) -> None:
    nodes, found = LateNodes(), list[Counter[str]]()

    async def read() -> None:
        found.append(await counted(cast(Limiter, nodes), "graceful", 10, ["a", "b"]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.sleep(5)
        nodes.are_back.set()

    assert found == [Counter({"a": 3, "b": 3})]
