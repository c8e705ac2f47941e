"""Crashed, silent and unreachable nodes: the standby and failure policies decide."""

from collections.abc import Mapping

import pytest
import trio
from trio.testing import MockClock

from hashring import NodeId, shard_of
from node.config.access import Access
from node.requests.request_parts import Part
from ringfence.errors import ConfigError
from ringfence.rules.limit_strings import parse_limit
from ringfence.transport.interface import Address
from ringfence.wire import Batch, Op, Ping, Request, Results, Source
from tests.node.cluster import (
    NAMES,
    OPEN,
    HandClock,
    World,
    address_of,
    counter,
    empty_world,
    key_owned_by,
    of,
    owned,
    race,
    ring_of,
    world,
)


async def test_after_a_crash_of_the_owner_the_standby_decides_and_is_the_source(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a") as limiter:
        client = owned(w.rules, "client", "b")
        await limiter.check("api", client)

        await w.crash("b")
        decisions = [await limiter.check("api", client) for _ in range(6)]

        assert {decision.source for decision in decisions} == {Source.STANDBY}
        assert of(decisions) == [True] * 5 + [False]
        assert w.total("decided_as_standby") == 6


@pytest.mark.parametrize("limit", ["5/minute fixed_window", "5/minute first_hit"])
async def test_owner_forwarder_and_standby_report_the_same_window_end(
    autojump_clock: MockClock, limit: str
) -> None:
    """gubernator#225: a node that received a count moved the end of its window at each call."""
    async with world() as w:
        ends, remaining = set(), []
        key = key_owned_by("b", parse_limit(limit), NAMES)
        for seed in NAMES:
            async with w.client(seed, only=True) as limiter:
                decision = await limiter.check_limit(limit, key)
                ends.add(w.clock.time + round(decision.reset_after * 1e9))
                remaining.append(decision.remaining)
            w.clock.time += 7 * 10**9
        await trio.sleep(0.3)  # until the replicas arrive
        await w.crash("b")
        async with w.client("a") as limiter:
            for _ in range(4):
                decision = await limiter.check_limit(limit, key)
                assert decision.source is Source.STANDBY
                ends.add(w.clock.time + round(decision.reset_after * 1e9))
                remaining.append(decision.remaining)
                w.clock.time += 10**9

            assert len(ends) == 1
            assert remaining == [4, 3, 2, 1, 0, 0, 0]
            w.clock.time = max(ends)
            assert (await limiter.check_limit(limit, key)).remaining == 4


async def test_a_forwarding_node_also_uses_the_standby(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a", only=True) as limiter:
        await w.crash("b")
        decisions = [
            await limiter.check("api", owned(w.rules, "client", "b", number))
            for number in range(20)
        ]

        assert {decision.source for decision in decisions} == {Source.STANDBY}
        assert w.count("a", "decided_as_standby") > 0
        assert w.count("c", "decided_as_standby") > 0


async def test_a_silent_owner_delays_the_first_check_and_no_later_one(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a") as limiter:
        client = owned(w.rules, "client", "b")
        await limiter.check("api", client)
        await w.crash("b")

        durations = []
        for _ in range(12):
            started = trio.current_time()
            assert (await limiter.check("api", client, 0)).source is Source.STANDBY
            durations.append(trio.current_time() - started)

        assert max(durations) < 1.1  # the time-outs of the owner and of a handshake
        assert max(durations[-5:]) < 0.01


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize(("round_trip_s", "lost_s"), [(0.001, 0.01), (0.08, 0.0)])
async def test_neither_a_lost_packet_nor_a_long_round_trip_makes_a_standby_take_over(
    autojump_clock: MockClock, *, round_trip_s: float, lost_s: float, joins: bool
) -> None:
    """Before the standby is connected to the owner, a lost packet costs 0.2 seconds, and the
    handshake takes two round trips."""
    async with world(joins=joins) as w:
        key = counter(w.rules, "client", owned(w.rules, "client", "b")["client"])
        standby = ring_of(NAMES).standby(shard_of(key))
        assert standby is not None
        at_both = address_of("b"), address_of(standby)
        await trio.sleep(1)  # until the connections in advance are open
        w.network.set_delay(*at_both, round_trip_s / 2)

        async with trio.open_nursery() as nursery:
            if lost_s:
                w.network.cut(*at_both)
                nursery.start_soon(heal_after, w, at_both, lost_s)
            started = trio.current_time()
            results = await ask_standby(w, standby, key)

        assert results is not None
        assert results.sources == [Source.OWNER]
        assert trio.current_time() - started < 0.1
        assert not w.nodes[standby].shards.ownership.covers


@pytest.mark.parametrize("cut_s", [2.0, 3.0, 5.0])
async def test_a_lost_member_is_connected_again_when_it_connects_to_this_node(
    autojump_clock: MockClock, cut_s: float
) -> None:
    async with world() as w:
        await trio.sleep(1)  # until the connections in advance are open
        links = [w.nodes[one].links.link(NodeId(other)) for one, other in ("ab", "ba")]
        w.network.cut(address_of("a"), address_of("b"))
        for _ in range(round(cut_s * 10)):
            for link in links:
                assert link is not None
                link.call(Ping, lambda reply: None)
            await trio.sleep(0.1)
        assert all(link is not None and link.is_lost for link in links)

        w.network.heal(address_of("a"), address_of("b"))
        ready_at: list[float] = []
        while len(ready_at) < 2:
            await trio.sleep(0.001)
            ready = [link for link in links if link is not None and link.is_ready]
            ready_at += [trio.current_time()] * (len(ready) - len(ready_at))

        assert ready_at[1] - ready_at[0] < 0.005


async def heal_after(w: World, ends: tuple[Address, Address], seconds: float) -> None:
    await trio.sleep(seconds)
    w.network.heal(*ends)


async def ask_standby(w: World, standby: NodeId, key: bytes) -> Results | None:
    """Ask a standby as a caller does that cannot reach the owner."""
    batch = Batch(Op.CHECK, [key], [1])
    request = Request(1, 0, 1000, 0, as_standby=True, batch=batch)
    return await w.nodes[standby].handler.decide(request, Part(None, batch))


async def test_a_returned_owner_decides_again(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a") as limiter:
        client = owned(w.rules, "client", "b")
        await w.crash("b")
        assert (await limiter.check("api", client)).source is Source.STANDBY

        await w.start("b")
        await trio.sleep(10)

        assert (await limiter.check("api", client)).source is Source.OWNER


async def test_a_forwarding_node_finds_a_returned_owner(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a", only=True) as limiter:
        client = owned(w.rules, "client", "b")
        await w.crash("b")
        assert (await limiter.check("api", client)).source is Source.STANDBY

        await w.start("b")
        await trio.sleep(10)

        assert (await limiter.check("api", client)).source is Source.OWNER


async def test_without_reachable_nodes_each_rules_failure_policy_applies(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a") as limiter:
        for name in NAMES:
            await w.crash(name)

        allowed = [await limiter.check("api", {"client": "x"}) for _ in range(7)]
        denied = [await limiter.check("api", {"strict": "x"}) for _ in range(7)]
        alone = [await limiter.check("api", {"alone": "x"}) for _ in range(4)]

        assert of(allowed) == [True] * 7
        assert of(denied) == [False] * 7
        assert of(alone) == [True, True, False, False]
        assert {d.source for d in allowed + denied} == {Source.POLICY}
        assert {d.source for d in alone} == {Source.LOCAL}


async def test_an_undecided_call_does_not_state_remaining_units(autojump_clock: MockClock) -> None:
    client = {"client": "x"}
    async with world() as w, w.client("a") as limiter:
        for name in NAMES:
            await w.crash(name)

        decisions = [
            await limiter.check("api", client),
            await limiter.check("api", {"strict": "x"}),
            *await limiter.check_many("api", [client, {"strict": "x"}]),
            await limiter.peek("api", client),
            await limiter.charge("api", client),
            await limiter.refund("api", client),
            await limiter.reset("api", client),
            await limiter.check_limit("5/minute", "x"),
        ]
        async with limiter.reserve("api", client) as reservation:
            decisions.append(reservation.decision)
        local = await limiter.check("api", {"alone": "x"})

    assert {decision.source for decision in decisions} == {Source.POLICY}
    assert {decision.remaining for decision in decisions} == {None}
    assert None not in {decision.limit for decision in decisions}
    assert local.remaining == 1


async def test_a_node_without_peers_applies_the_failure_policies(
    autojump_clock: MockClock,
) -> None:
    async with world(joins=True) as w, w.client("a", only=True) as limiter:
        rules = w.rules
        await w.crash("b")
        await w.crash("c")

        # Keys of the crashed nodes; for some of them, this node is not the standby.
        sources = {
            (await limiter.check("api", owned(rules, key, owner, number))).source
            for key in ("client", "strict", "alone")
            for owner in ("b", "c")
            for number in range(5)
        }

        assert sources == {Source.STANDBY, Source.POLICY, Source.LOCAL}
        assert w.count("a", "undecided") > 0


async def test_a_silent_peer_does_not_delay_a_check(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a", only=True, answer_timeout=0.3) as limiter:
        client = owned(w.rules, "client", "b")
        await limiter.check("api", client)
        for name in ("b", "c"):
            w.network.cut(address_of("a"), address_of(name))

        started = trio.current_time()
        await limiter.check("api", client)

        # Twice the shortest time-out for each of the two nodes; the node of the client is alive.
        assert trio.current_time() - started < 0.85


async def test_a_silent_owner_does_not_delay_checks_of_other_owners(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a", only=True) as limiter:
        silent_key, other_key = owned(w.rules, "client", "b"), owned(w.rules, "client", "c")
        await race([limiter], silent_key)
        w.network.cut(address_of("a"), address_of("b"))
        durations: dict[str, float] = {}

        async def ask(name: str, descriptor: Mapping[str, str], after: float) -> None:
            await trio.sleep(after)
            started = trio.current_time()
            await limiter.check("api", descriptor)
            durations[name] = trio.current_time() - started

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "silent", silent_key, 0.0)
            nursery.start_soon(ask, "other", other_key, 0.01)

        assert durations["other"] < 0.05
        assert durations["silent"] > 0.2


@pytest.mark.internal_errors
async def test_an_internal_error_in_a_forwarded_request_affects_no_other_request(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as w, w.client("a", only=True) as limiter:
        forwarded = owned(w.rules, "client", "b")
        decide = w.nodes["a"].handler.router.decide

        async def broken(*args: object, **more: object) -> Results:
            w.nodes["a"].handler.router.decide = decide  # type: ignore[method-assign]
            raise ArithmeticError("the router is broken")

        w.nodes["a"].handler.router.decide = broken  # type: ignore[method-assign, assignment]
        await limiter.check("api", forwarded)

        assert (await limiter.check("api", forwarded)).source is Source.OWNER
        assert w.count("a", "refused_internal") == 1
        assert "the router is broken" in caplog.text
        assert w.count("a", "internal_errors_forwarding") == 1
        assert [str(bug) for bug in w.bugs] == ["the router is broken"]
        w.bugs.clear()


async def test_a_node_with_a_wrong_clock_leaves_the_ring_once_and_returns_once(
    autojump_clock: MockClock,
) -> None:
    async with world(joins=True) as w:
        ahead = HandClock()
        ahead.time = w.clock.time + 3600 * 10**9
        w.nodes["c"].clock.host = ahead
        rings = []
        for _ in range(60):
            await trio.sleep(0.5)
            rings.append(len(w.nodes["a"].cluster.ring.members))

        assert rings[0] == rings[-1] == 3
        assert 2 in rings
        assert (w.count("c", "clock_suspect"), w.count("c", "clock_trusted")) == (1, 1)


async def test_a_node_with_the_name_of_a_running_node_does_not_start(
    autojump_clock: MockClock,
) -> None:
    """Check that the start fails: it would stop a running node that has counters."""
    async with world(joins=True) as w:
        first = w.nodes["b"]
        for seeds in ("a", "b", "ab"):
            with pytest.RaisesGroup(
                pytest.RaisesExc(ConfigError, match="'b'.* the node at b:7101 has.* first$"),
                flatten_subgroups=True,
            ):
                await w.start("b", host=f"new-{seeds}", seeds=[*seeds])
        w.nodes["b"] = first
        await trio.sleep(10)
        rows = w.nodes["a"].queries.members(1).members

        assert [(row.name, row.host, row.state) for row in rows] == [
            (name, name, "alive") for name in NAMES
        ]


@pytest.mark.parametrize("successor", ["", "d"])
async def test_a_node_can_return_at_another_address_immediately(
    autojump_clock: MockClock, successor: str
) -> None:
    """Check this also if another node already has the old address."""
    async with world(joins=True) as w:
        await w.crash("b")
        if successor:
            await w.start(successor, host="b", seeds=["a"])
        await w.start("b", host="new", seeds=["a"])
        await w.settle()

        assert w.nodes["b"].membership.me.host == "new"


KEYS = Access((b"1" * 32,), "ringfence")


@pytest.mark.parametrize(
    ("cluster", "joining", "reason"),
    [
        (
            KEYS,
            Access((b"2" * 32,), "ringfence"),
            "; copy cluster.key.*; this node has `keys`, and",
        ),
        (KEYS, Access((b"1" * 32,), "other"), "; copy cluster.key.* `cluster` is 'other'$"),
        (KEYS, OPEN, "; copy cluster.key.*; this node has no `keys`, and"),
        (OPEN, Access(cluster="other", is_open=True), ": the .*`cluster` of 'b' must be 'ringf"),
    ],
)
async def test_a_node_that_all_members_reject_states_the_possible_causes_and_does_not_start(
    autojump_clock: MockClock, cluster: Access, joining: Access, reason: str
) -> None:
    """Check that the start fails: a second cluster would count its clients separately."""
    async with empty_world() as w:
        w.access = cluster
        first = await w.start("a")
        w.access = joining
        with pytest.RaisesGroup(
            pytest.RaisesExc(ConfigError, match=f"'b' cannot join: a:7101: .*{reason}"),
            flatten_subgroups=True,
        ):
            await w.start("b")

        assert [row.name for row in first.queries.members(1).members] == ["a"]
