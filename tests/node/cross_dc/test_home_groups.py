"""Groups with a rule that another data center decides, while a member cannot reach it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from hashring import Member, NodeId, View, shard_of
from ringfence.limiter import Code
from ringfence.wire import Answer, Batch, Op, Request
from tests.node.cluster import World, address_of, counter, empty_world
from tests.node.requests.sessions.session_world import with_columns
from tests.security.requests.test_takeover import call

RULES = """
domain: api
descriptors:
  - key: home
    rate_limit:
      {unit: hour, requests_per_unit: 600, global: {mode: home, home: us}, on_failure: deny}
  - key: near
    rate_limit: {unit: hour, requests_per_unit: 600, algorithm: fixed_window, leases: false}
"""
EU = View.of(Member(NodeId(name), "eu") for name in ("e1", "e2")).ring("eu")


@asynccontextmanager
async def one_member_is_cut_off() -> AsyncIterator[World]:
    """Start two members in one data center; the first one cannot reach the other data center."""
    async with empty_world(rules=RULES) as w:
        for name, datacenter in (("e1", "eu"), ("e2", "eu"), ("u1", "us")):
            await w.start(name, datacenter=datacenter)
        await w.settle()
        w.network.cut(address_of("e1"), address_of("u1"))
        yield w


def value_of(w: World, rule: str) -> str:
    """Return a value whose shard the member owns that is cut off."""
    values = map(str, range(1000))
    return next(each for each in values if EU.owner(shard_of(counter(w.rules, rule, each))) == "e1")


@pytest.mark.parametrize("order", [("e1", "e2"), ("e2", "e1")], ids=" ".join)
async def test_a_check_that_one_member_allows_and_another_denies_stays_counted(
    autojump_clock: MockClock, order: tuple[str, str]
) -> None:
    async with one_member_is_cut_off() as w, w.client("e1", "e2") as limiter:
        near = value_of(w, "near")
        keys = [counter(w.rules, "near", near), counter(w.rules, "home", value_of(w, "home"))]
        request = Request(5, 0, 1000, 0, False, Batch(Op.CHECK, keys, [1, 1], [2]))
        repeat = with_columns(request, ids=[(900, 5, 0), (900, 5, 1)])
        codes: dict[str, list[int]] = {}
        for number, name in enumerate(order):
            caller = await call(w, name, 900 + number)
            await caller.send(repeat if number else request)
            await trio.sleep(1.5)
            [answer] = caller.received[-1:]
            assert isinstance(answer, Answer)
            codes[name] = [*answer.results.outcomes.codes]

        assert codes == {
            "e1": [Code.ALLOWED, Code.DENIED],
            "e2": [Code.ALLOWED, Code.ALLOWED],
        }
        assert (await limiter.peek("api", {"near": near})).remaining == 599


@pytest.mark.parametrize("only", [True, False])
async def test_a_group_that_the_failure_policy_denies_is_refunded(
    autojump_clock: MockClock, *, only: bool
) -> None:
    async with one_member_is_cut_off() as w, w.client("e1", only=only) as limiter:
        both = {"near": value_of(w, "near"), "home": value_of(w, "home")}
        checks = [{name: value} for name, value in both.items()]

        denied = await limiter.check("api", checks)
        await trio.sleep(0.1)

        assert not denied.allowed
        assert (await limiter.peek("api", checks[0])).remaining == 600
