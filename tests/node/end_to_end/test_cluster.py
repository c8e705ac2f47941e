"""Several nodes and embedded clients on a network in memory: one shared limit, without failures."""

import re
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock

from node.config.access import Access
from node.config.settings import NodeSettings
from node.node import Node
from ringfence.rules import RuleSet
from ringfence.wire import Source
from tests.node.cluster import NAMES, RULES, HandClock, empty_world, of, owned, world


async def test_all_nodes_share_one_limit(autojump_clock: MockClock) -> None:
    async with world() as w:
        decisions = []
        for seed in (*NAMES, *NAMES):
            async with w.client(seed, only=True) as limiter:
                decisions.append(await limiter.check("api", {"client": "x"}))

        assert of(decisions) == [True] * 5 + [False]
        assert [decision.remaining for decision in decisions] == [4, 3, 2, 1, 0, 0]
        assert {decision.source for decision in decisions} == {Source.OWNER}


async def test_a_check_of_another_owner_is_forwarded_and_counted_once(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a", only=True) as limiter:
        for _ in range(3):
            await limiter.check("api", owned(w.rules, "client", "b"))
        await limiter.check("api", owned(w.rules, "client", "a"))

        assert [w.count(name, "forwarded") for name in NAMES] == [3, 0, 0]
        assert [w.count(name, "checks") for name in NAMES] == [1, 3, 0]


async def test_a_client_sends_checks_directly_to_their_owner(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a") as limiter:
        for number in range(50):
            await limiter.check("api", {"client": str(number)})

        assert w.total("forwarded") == 0
        assert w.total("checks") == 50
        assert all(w.count(name, "checks") > 5 for name in NAMES)


async def test_the_first_of_two_nodes_that_start_together_logs_that_it_found_no_ring(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ringfence.node")
    async with empty_world() as w:
        w.nursery.start_soon(partial(w.start, "a", seeds=["b"]))
        await trio.sleep(1)
        w.nursery.start_soon(partial(w.start, "b", seeds=["a"]))
        await trio.sleep(3)
        await w.settle()

    logged = [record.getMessage() for record in caplog.records]
    assert "peer a at a:7101 is within reach" in logged
    [alone] = [line for line in logged if "begins alone" in line]
    assert alone.startswith("no member of a ring answered; ")


async def test_a_client_is_rejected_until_the_node_runs_and_then_served(
    autojump_clock: MockClock,
) -> None:
    async with world("a") as w:
        w.nursery.start_soon(partial(w.start, "b", pause=1.0))
        await trio.sleep(0.1)
        async with w.client("b", only=True) as limiter:
            decision = await limiter.check("api", {"client": "x"})
        await w.settle()

        assert decision.source is Source.OWNER
        assert w.count("b", "refused_starting") >= 1


async def test_every_documented_counter_exists_from_the_start(autojump_clock: MockClock) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "node-counters.md").read_text(
        "utf-8"
    )
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`([a-z_0-9]+)`", row)}
    created_later = ("refused_", "internal_errors_")

    async with world("a") as w:
        counters = w.nodes["a"].queries.stats(1).counters

    assert len(documented) > 80
    assert {name for name in documented if not name.startswith(created_later)} <= counters.keys()


async def test_keys_can_change_before_a_node_runs() -> None:
    access = Access(cluster="ringfence", is_open=True)
    settings = NodeSettings(name="a", listen="a:7101")
    node = Node(settings, access, RuleSet(), clock=HandClock(), random=Random(1))

    node.change_access(Access(cluster="ringfence"))

    assert not node.access.current.is_open


async def test_each_node_logs_once_that_a_peer_is_reachable(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that several links to a peer cause one log line.

    Each peer has the seed's link, the link of checks and the link of transfers.
    """
    caplog.set_level("INFO", "ringfence.node")

    def reached(name: str) -> int:
        message = f"peer {name} at {name}:7101 is within reach"
        return [record.getMessage() for record in caplog.records].count(message)

    async with world("a", "b") as w, w.client("a", only=True) as limiter:
        for number in range(20):
            await limiter.check("api", {"client": str(number)})
        await trio.sleep(5)
        assert (reached("a"), reached("b")) == (1, 1)

        await w.crash("b")
        await trio.sleep(10)
        await w.start("b")
        await w.settle()
        assert (reached("a"), reached("b")) == (2, 2)


async def test_members_connect_with_the_new_key_once_the_old_one_is_dropped(
    autojump_clock: MockClock,
) -> None:
    old, new = b"o" * 32, b"n" * 32
    async with world() as w, w.client("a", only=True) as limiter:
        client = owned(w.rules, "client", "b")
        await limiter.check("api", client)
        for keys in ((b"", old), (old, b""), (old,), (old, new), (new, old), (new,)):
            for node in w.nodes.values():
                node.change_access(Access(keys, "ringfence", is_open=True))
            await trio.sleep(2)

            decision = await limiter.check("api", client, 0)
            assert decision.source is Source.OWNER
        assert w.total("refused_bad_credential") >= 2
        assert w.count("b", "checks") == 7


async def test_a_request_that_matches_no_rule_is_not_sent(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client() as limiter:
        decision = await limiter.check("api", {"colour": "red"})

        assert decision.allowed
        assert decision.source is Source.NO_RULE
        assert w.total("checks") == 0


async def test_a_refund_removes_the_newest_hits_of_a_log(autojump_clock: MockClock) -> None:
    rules = RULES.replace("algorithm: fixed_window", "algorithm: sliding_window_log")
    async with world(rules=rules) as w, w.client("a", only=True) as limiter:
        client = owned(w.rules, "client", "b")
        for _ in range(2):
            await limiter.check("api", client, 2)
            w.clock.time += 20 * 10**9

        assert (await limiter.refund("api", client, 3)).remaining == 4
        w.clock.time += 20 * 10**9 - 1
        assert (await limiter.peek("api", client)).remaining == 4, "the oldest hit is still counted"
        w.clock.time += 1
        assert (await limiter.peek("api", client)).remaining == 5


async def test_peek_refund_and_reset_reach_the_owner_through_any_node(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a", only=True) as limiter:
        client = owned(w.rules, "client", "b")
        await limiter.check("api", client, 3)

        remaining = [
            (await limiter.peek("api", client)).remaining,
            (await limiter.refund("api", client, 2)).remaining,
            (await limiter.reset("api", client)).remaining,
        ]

        assert remaining == [2, 4, 5]
        assert w.count("b", "refunds") == w.count("b", "resets") == 1


async def test_limits_sent_with_checks_are_shared(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a", only=True) as one, w.client("b", only=True) as two:
        decisions = [
            await limiter.check_limit("3/minute fixed_window", "user", "42")
            for limiter in (one, two, one, two)
        ]

        assert of(decisions) == [True, True, True, False]
