"""One node with sessions of callers that a test controls."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import trio
from msgspec.structs import replace

from gossip import Record, Status, pack_records
from hashring import Member, NodeId, Ring, shard_of
from node.config.access import Access
from node.config.settings import NodeSettings
from node.node import Node
from ringfence.rules import RuleSet, adhoc_rule, encode_key, parse_limit
from ringfence.settings.token_file import Scope, TokenEntry
from ringfence.transport.interface import Connection
from ringfence.transport.memory import MemoryNetwork, MemoryTransport
from ringfence.wire import (
    Answer,
    Batch,
    ErrorCode,
    Exchange,
    Hello,
    Message,
    Op,
    Pull,
    Pulled,
    Refused,
    Request,
    Role,
    TransferAck,
    decode,
    encode,
    token_digest,
)

LIMIT = parse_limit("5/minute fixed_window")
RULE = adhoc_rule(LIMIT)
RING = Ring.of([Member(NodeId("a")), Member(NodeId("b"))])
B = Record("b", "b", 1, "dc1", "", 1.0, 1, 0, Status.ALIVE)
SECRET = b"s" * 32
ACCESS = Access(
    (b"k" * 32,),
    "ringfence",
    {
        "app": TokenEntry(token_digest(SECRET), frozenset({Scope.CHECK})),
        "operator": TokenEntry(token_digest(SECRET), frozenset(Scope)),
    },
)
APP = Hello(Role.CLIENT, "app", SECRET, 1)
OPERATOR = Hello(Role.CLIENT, "operator", SECRET, 1)


class HandClock:
    def __init__(self) -> None:
        self.time = 0

    def now(self) -> int:
        return self.time


@dataclass
class Caller:
    """Other end of a connection, which records all received messages."""

    received: list[Message] = field(default_factory=list)
    closed: list[tuple[int, str]] = field(default_factory=list)
    connection: Connection | None = None
    transport: MemoryTransport | None = None
    opened: trio.Event = field(default_factory=trio.Event)

    def on_open(self, connection: Connection) -> None:
        self.opened.set()

    def on_message(self, payload: bytes) -> None:
        self.received.append(decode(payload))

    def on_close(self, code: int, reason: str) -> None:
        self.closed.append((code, reason))

    async def send(self, *messages: Message | bytes) -> list[Message]:
        """Send messages; return the answers of the next 0.1 s."""
        assert self.connection is not None
        assert self.transport is not None
        before = len(self.received)
        for message in messages:
            self.connection.send(message if isinstance(message, bytes) else encode(message))
        self.transport.flush()
        await trio.sleep(0.1)
        return self.received[before:]


@dataclass
class World:
    network: MemoryNetwork
    node: Node
    nursery: trio.Nursery
    bugs: list[Exception]
    callers: int = 0

    async def call(self, *greeting: Hello) -> Caller:
        """Connect to the node as a new caller, and send `hello` if given."""
        self.callers += 1
        caller = Caller()
        caller.transport = self.network.transport(
            (f"caller{self.callers}", 1), on_bug=self.bugs.append
        )
        await self.nursery.start(caller.transport.run)
        caller.connection = caller.transport.connect(("a", 1), caller)
        caller.transport.flush()
        await caller.opened.wait()
        for hello in greeting:
            if hello.role is Role.NODE:
                proof = ACCESS.proof_of(hello.name, caller.connection.binding)
                await caller.send(replace(hello, credential=proof))
            else:
                await caller.send(hello)
        return caller

    async def add_member_b(self) -> None:
        """Add a member to the node that never runs but has its shards."""
        b = await self.call(Hello(Role.NODE, "b", b"", 1))
        await b.send(Exchange(1, pack_records([B])))
        [pulled] = await b.send(Pull(2, list(RING.shards_of(NodeId("b"))), 0))
        assert isinstance(pulled, Pulled)
        for group in pulled.groups:
            await b.send(TransferAck(3, group.shards, group.transfer_id))
        assert b.connection is not None
        assert b.transport is not None
        b.connection.close()
        b.transport.flush()
        await trio.sleep(0.1)

    def count(self, name: str) -> int:
        return self.node.queries.stats(1).counters.get(name, 0)


@asynccontextmanager
async def running_node(
    rules: RuleSet | None = None, clock: HandClock | None = None, *, delay_to_b: float = 0.0005
) -> AsyncIterator[World]:
    """Run node `a` of two nodes; `b` never runs, which `a` finds after two delays."""
    bugs: list[Exception] = []
    network = MemoryNetwork(Random(1))
    network.set_delay(("a", 1), ("b", 1), delay_to_b)
    settings = NodeSettings(name="a", listen="a:1", keys="keys")
    node = Node(settings, ACCESS, rules or RuleSet(), clock=clock or HandClock(), random=Random(2))
    transport = network.transport(("a", 1), on_bug=bugs.append, accept=node.accept)
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run)
        await nursery.start(node.run, transport)
        world = World(network, node, nursery, bugs)
        await world.add_member_b()
        yield world
        nursery.cancel_scope.cancel()
    assert bugs == []


def key_of(owner: str, number: int = 0) -> bytes:
    """Return a key that `owner` owns."""
    keys = (encode_key(RULE.id, (f"{owner}{i}",)) for i in range(1000))
    return [key for key in keys if RING.owner(shard_of(key)) == owner][number]


def check(
    seq: int,
    *keys: bytes,
    cost: int = 1,
    op: Op = Op.CHECK,
    hops: int = 0,
    as_standby: bool = False,
    deadline_ms: int = 500,
) -> Request:
    asked = list(keys or [key_of("a")])
    count = len(asked)
    return Request(
        seq=seq,
        view=0,
        deadline_ms=deadline_ms,
        hops=hops,
        as_standby=as_standby,
        batch=Batch(op, asked, [cost] * count, limits=[LIMIT], which=[1] * count),
    )


def with_columns(request: Request, **columns: object) -> Request:
    """Return a request with some columns replaced."""
    return replace(request, batch=replace(request.batch, **columns))


def remaining(messages: list[Message]) -> list[int]:
    """Return the remaining units of each received answer."""
    return [
        left for m in messages if isinstance(m, Answer) for left in m.results.outcomes.remaining
    ]


def reason_of(messages: list[Message], code: ErrorCode) -> str:
    [refused] = messages
    assert isinstance(refused, Refused)
    assert refused.code == code
    return refused.reason
