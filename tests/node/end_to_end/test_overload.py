"""Overload: a slow node does not count checks whose callers have stopped waiting."""

import pytest
import trio
from trio.testing import MockClock

from ringfence.client.decision import Decision
from ringfence.peering.link import LinkSettings
from ringfence.wire import Source
from tests.node.cluster import address_of, world

DEADLINE = 0.25
LINKS = LinkSettings(deadline=DEADLINE, answer_timeout_margin=10.0, answer_timeout=10.0)
"""Time-out that members use. Silent members are kept, since a suspended node answers after it
resumes."""


@pytest.mark.parametrize(("pause", "shed"), [(0.2, 0), (0.4, 3), (2.0, 3)])
async def test_checks_past_their_deadline_are_shed_and_not_counted(
    autojump_clock: MockClock, pause: float, shed: int
) -> None:
    async with world("a") as w, w.client(link=LINKS) as limiter:
        client = {"client": "x"}
        await limiter.check("api", client, 0)
        decisions: list[Decision] = []

        async def check() -> None:
            decisions.append(await limiter.check("api", client))

        w.network.pause(address_of("a"))
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(check)
            await trio.sleep(pause)
            w.network.resume(address_of("a"))

        assert [each.source for each in decisions] == [Source.SHED if shed else Source.OWNER] * 3
        assert [each.remaining is None for each in decisions] == [bool(shed)] * 3
        assert w.count("a", "shed") == shed
        assert (await limiter.check("api", client, 0)).remaining == 5 - (3 - shed)


async def test_a_refund_is_accepted_after_any_delay(autojump_clock: MockClock) -> None:
    async with world("a") as w, w.client(link=LINKS) as limiter:
        client = {"client": "x"}
        await limiter.check("api", client, 2)
        w.network.pause(address_of("a"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limiter.refund, "api", client, 2)
            await trio.sleep(0.9)
            w.network.resume(address_of("a"))

        assert (await limiter.check("api", client, 0)).remaining == 5
        assert w.count("a", "shed") == 0
