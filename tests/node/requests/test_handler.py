"""Hops and deadlines of forwarded checks."""

import trio
from trio.testing import MockClock

from hashring import shard_of
from node.node import Node
from ringfence.transport.interface import Connection
from ringfence.wire import (
    Answer,
    AskTakenOver,
    Batch,
    ErrorCode,
    Hello,
    Pull,
    Refused,
    Request,
    Results,
    Role,
    Source,
    TakenOver,
    Welcome,
    decode,
    encode,
)
from tests.node.cluster import address_of, owned, world
from tests.node.requests.sessions.session_world import (
    ACCESS,
    APP,
    HandClock,
    World,
    check,
    key_of,
    running_node,
)


def recorded_hops(node: Node) -> list[int]:
    """Record the hops of all requests that a node receives from now on."""
    decide, hops = node.dispatcher.decide, []

    def recorded(request: Request, batch: Batch) -> Results | Refused | None:
        hops.append(request.hops)
        return decide(request, batch)

    node.dispatcher.decide = recorded  # type: ignore[method-assign]
    return hops


async def test_a_forwarded_request_counts_as_a_hop(autojump_clock: MockClock) -> None:
    async with world() as w, w.client("a", only=True) as limiter:
        client = owned(w.rules, "client", "b")
        await limiter.check("api", client)
        hops = recorded_hops(w.nodes["b"])

        await limiter.check("api", client)

        assert hops == [1]


async def test_a_request_from_standby_to_owner_counts_as_a_hop(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client("a") as limiter:
        client = owned(w.rules, "client", "b")
        await limiter.check("api", client)
        hops = recorded_hops(w.nodes["b"])
        w.network.cut(("client1", 1), address_of("b"))
        decision = await limiter.check("api", client)

        assert decision.source is Source.OWNER
        assert hops == [1]


class Silent:
    """Member that accepts every connection and answers no request."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def on_open(self, connection: Connection) -> None:
        """Wait for the hello."""

    def on_message(self, payload: bytes) -> None:
        if isinstance(decode(payload), Hello):
            self._connection.send(encode(Welcome("b", 0, 0)))

    def on_close(self, code: int, reason: str) -> None:
        """Do nothing."""


async def test_a_node_searches_for_a_shard_no_longer_than_the_caller_waits(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as world:
        silent = world.network.transport(("b", 1), on_bug=world.bugs.append, accept=Silent)
        await world.nursery.start(silent.run)
        await trio.sleep(1)  # until `a` detects that `b` is reachable again
        peer = await world.call(Hello(Role.NODE, "b", ACCESS.proof_of("b"), 1))
        key = key_of("a")
        await peer.send(
            Pull(5, [shard_of(key)], 0)
        )  # From now on `b` holds it, and does not answer.

        assert await peer.send(check(6, key, hops=2, deadline_ms=200)) == []
        await trio.sleep(0.12)

        [refused] = peer.received[-1:]
        assert isinstance(refused, Refused)
        assert (refused.seq, refused.code) == (6, ErrorCode.NOT_HERE)


async def test_a_node_that_forwards_answers_when_the_callers_deadline_has_passed(
    autojump_clock: MockClock,
) -> None:
    async with running_node(delay_to_b=1.0) as world:  # The handshake with `b` takes a while.
        caller = await world.call(APP)

        assert await caller.send(check(6, key_of("b"), deadline_ms=200)) == []
        await trio.sleep(0.12)

        [answer] = caller.received[-1:]
        assert isinstance(answer, Answer)
        assert answer.results.sources == [Source.POLICY]


async def pass_time(world: World, seconds: float) -> None:
    """Advance both clocks: trio's clock and the node's clock."""
    clock = world.node.clock.host
    assert isinstance(clock, HandClock)
    clock.time += round(seconds * 1e9)
    await trio.sleep(seconds)


async def test_a_resumed_owner_loses_no_shard_for_its_earlier_silence(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as world:
        silent = world.network.transport(("b", 1), on_bug=world.bugs.append, accept=Silent)
        await world.nursery.start(silent.run)
        await trio.sleep(1)  # until `a` has found that `b` can be reached again
        world.node.handler.takeover._is_suspect = lambda _: False
        owner = await world.call(Hello(Role.NODE, "b", b"", 2))
        caller = await world.call(APP)
        held = world.node.shards.ownership.held
        key = key_of("b")

        assert await owner.send(AskTakenOver(6)) == [TakenOver(6, [])]
        await caller.send(check(6, key, as_standby=True, deadline_ms=1000))
        await pass_time(world, 0.09)
        assert await owner.send(AskTakenOver(7)) == [TakenOver(7, [])]
        await pass_time(world, 0.09)
        assert not held[shard_of(key)]
        await pass_time(world, 0.04)
        assert held[shard_of(key)]


async def test_a_resumed_owner_keeps_its_shards_while_its_link_is_down(
    autojump_clock: MockClock,
) -> None:
    async with running_node() as world:
        owner = await world.call(Hello(Role.NODE, "b", b"", 2))
        caller = await world.call(APP)
        held = world.node.shards.ownership.held
        key = key_of("b")

        assert await owner.send(AskTakenOver(7)) == [TakenOver(7, [])]
        await caller.send(check(6, key, as_standby=True, deadline_ms=1000))
        await pass_time(world, 0.4)
        assert not held[shard_of(key)]
        await pass_time(world, 0.2)
        await caller.send(check(7, key, as_standby=True, deadline_ms=1000))
        assert held[shard_of(key)]
