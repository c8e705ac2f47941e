"""P9: requests with `as_standby` and a short deadline take no shards from a healthy owner."""

from itertools import combinations

import trio
from trio.testing import MockClock

from ringfence.rules import Descriptor
from ringfence.wire import Batch, Hello, Op, Request, Role, Source, encode
from tests.node.cluster import NAMES, World, address_of, owned, world
from tests.node.requests.sessions.session_world import Caller

FRAMES, KEYS = 48, 40
LATENCY = 0.002
"""Seconds one way, so that no owner can answer within a deadline of 1 ms."""


async def call(w: World, name: str, session: int) -> Caller:
    """Connect to a node as a client that may send any message."""
    caller = Caller()
    caller.transport = w.network.transport((f"attacker{session}", 1), on_bug=w.bugs.append)
    await w.nursery.start(caller.transport.run)
    caller.connection = caller.transport.connect(address_of(name), caller)
    caller.transport.flush()
    await caller.opened.wait()
    await caller.send(Hello(Role.CLIENT, "app", b"", session))
    return caller


def urgent_frame(w: World, seq: int) -> bytes:
    """Encode a request for keys of all owners, which the receiver must decide as their standby."""
    descriptors = [Descriptor((("tenant", f"{seq}-{number}"),)) for number in range(KEYS)]
    keys = [match.key for match in w.rules.match("api", descriptors) if match is not None]
    costs = [1] * KEYS
    return encode(Request(seq, 0, 1, 0, True, Batch(Op.CHECK, keys, costs)))


def taken_shards(w: World) -> int:
    """Return how many shards are held by nodes that do not own them."""
    return sum(len(node.shards.ownership.covers) for node in w.nodes.values())


async def test_requests_with_a_short_deadline_take_no_shard_from_a_healthy_owner(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, w.client() as honest:
        callers = [await call(w, name, 900 + at) for at, name in enumerate(NAMES)]
        for first, second in combinations(NAMES, 2):
            w.network.set_delay(address_of(first), address_of(second), LATENCY)

        sources, slowest = set(), 0.0
        for seq in range(1, FRAMES + 1):
            for caller in callers:
                assert caller.connection is not None
                assert caller.transport is not None
                caller.connection.send(urgent_frame(w, seq))
                caller.transport.flush()
            await trio.sleep(0.005)
            for name in NAMES:
                started = trio.current_time()
                decision = await honest.check("api", owned(w.rules, "tenant", name, seq % 20))
                slowest = max(slowest, trio.current_time() - started)
                sources.add(decision.source)

        assert taken_shards(w) == 0
        assert sources == {Source.OWNER}
        assert slowest < 0.1


async def test_after_requests_with_a_short_deadline_every_node_holds_the_shards_that_it_owns(
    autojump_clock: MockClock,
) -> None:
    async with world() as w:
        caller = await call(w, "a", 900)
        for seq in range(1, FRAMES + 1):
            await caller.send(urgent_frame(w, seq))

        assert taken_shards(w) == 0
        for name in NAMES:
            assert w.count(name, "held_shards") == w.count(name, "owned_shards")
