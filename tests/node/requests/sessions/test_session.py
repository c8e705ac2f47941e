"""Session of one connection to a node, with a caller that may send any bytes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random

import pytest
import trio

from gossip import Record, Status, pack_records
from hashring import Member, NodeId, Ring, shard_of
from node.config.access import Access
from node.config.settings import NodeSettings
from node.node import Node
from ringfence.rules import RuleSet, adhoc_rule, encode_key, parse_limit
from ringfence.rules.loading.yaml_files import load_text
from ringfence.settings.token_file import Scope, TokenEntry
from ringfence.transport.interface import Connection
from ringfence.transport.memory import MemoryNetwork, MemoryTransport
from ringfence.wire import (
    Answer,
    AskMembers,
    AskRules,
    AskStats,
    Batch,
    Copy,
    Counts,
    Done,
    ErrorCode,
    Exchange,
    Hello,
    Members,
    Message,
    Op,
    Ping,
    Pong,
    Pull,
    Pulled,
    Refused,
    Request,
    Role,
    Rules,
    Stats,
    TransferAck,
    Welcome,
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

    async def say(self, *messages: Message | bytes) -> list[Message]:
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
                await caller.say(replace(hello, credential=proof))
            else:
                await caller.say(hello)
        return caller

    async def hear_of_b(self) -> None:
        """Add a member to the node that never runs but has its shards."""
        b = await self.call(Hello(Role.NODE, "b", b"", 1))
        await b.say(Exchange(1, pack_records([B])))
        [pulled] = await b.say(Pull(2, list(RING.shards_of(NodeId("b"))), 0))
        assert isinstance(pulled, Pulled)
        for group in pulled.groups:
            await b.say(TransferAck(3, group.shards, group.transfer_id))
        assert b.connection is not None
        assert b.transport is not None
        b.connection.close()
        b.transport.flush()
        await trio.sleep(0.1)

    def count(self, name: str) -> int:
        return self.node.queries.stats(1).counters.get(name, 0)


@asynccontextmanager
async def running_node(rules: RuleSet | None = None) -> AsyncIterator[World]:
    """Run node `a` of two nodes; `b` never runs."""
    bugs: list[Exception] = []
    network = MemoryNetwork(Random(1))
    settings = NodeSettings(name="a", listen="a:1", keys="keys")
    node = Node(settings, ACCESS, rules or RuleSet(), clock=HandClock(), random=Random(2))
    transport = network.transport(("a", 1), on_bug=bugs.append, accept=node.accept)
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run)
        await nursery.start(node.run, transport)
        world = World(network, node, nursery, bugs)
        await world.hear_of_b()
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


# Hello


async def test_a_valid_hello_is_answered_with_a_welcome(autojump_clock: object) -> None:
    async with running_node() as world:
        caller = await world.call()

        [welcome] = await caller.say(APP)

        assert isinstance(welcome, Welcome)
        assert welcome.name == "a"


async def test_nothing_is_served_before_the_hello(autojump_clock: object) -> None:
    async with running_node() as world:
        for message in (check(1), AskMembers(1), AskRules(1), AskStats(1), Ping(1)):
            caller = await world.call()

            received = await caller.say(message, check(2))

            assert "say hello first" in reason_of(received, ErrorCode.HELLO_EXPECTED)
            assert caller.closed[0][0] == ErrorCode.HELLO_EXPECTED
        assert world.count("refused_hello_expected") == 5
        assert world.count("checks") == 0


async def test_a_second_hello_ends_the_connection(autojump_clock: object) -> None:
    async with running_node() as world:
        caller = await world.call(APP)

        received = await caller.say(OPERATOR)

        assert "second hello" in reason_of(received, ErrorCode.HELLO_EXPECTED)
        assert caller.closed


@pytest.mark.parametrize(
    "hello",
    [
        Hello(Role.CLIENT, "app", b"x" * 32, 1),
        Hello(Role.CLIENT, "stranger", SECRET, 1),
        Hello(Role.NODE, "b", b"x" * 32, 1),
        Hello(Role.NODE, "app", SECRET, 1),
    ],
    ids=["wrong secret", "unknown name", "wrong cluster key", "token of a client"],
)
async def test_an_invalid_credential_is_rejected_counted_and_disconnected(
    autojump_clock: object, hello: Hello
) -> None:
    async with running_node() as world:
        caller = await world.call()

        received = await caller.say(hello)

        assert hello.name in reason_of(received, ErrorCode.BAD_CREDENTIAL)
        assert caller.closed[0][0] == ErrorCode.BAD_CREDENTIAL
        assert world.count("refused_bad_credential") == 1
        assert world.count("connections") == 0


async def test_a_peer_of_another_version_receives_the_reason(autojump_clock: object) -> None:
    async with running_node() as world:
        caller = await world.call()
        greeting = bytearray(encode(APP))
        greeting[2] += 1  # The version is the hello's first field.

        received = await caller.say(bytes(greeting))

        assert "version" in reason_of(received, ErrorCode.WRONG_VERSION)
        assert world.count("refused_wrong_version") == 1


async def test_a_connection_without_a_hello_in_time_is_closed(autojump_clock: object) -> None:
    async with running_node() as world:
        silent, good = await world.call(), await world.call(APP)

        await trio.sleep(6)

        assert "no hello" in reason_of(silent.received, ErrorCode.HELLO_TIMEOUT)
        assert silent.closed
        assert not good.closed
        assert world.count("refused_hello_timeout") == 1
        assert world.count("connections") == 1


# Garbage


@pytest.mark.parametrize("greeted", [True, False])
@pytest.mark.parametrize(
    ("payload", "cause"),
    [
        (b"\xc1", "garbled"),
        (b"\x00\x01\x02", "garbled"),
        (b"\x91\x7f", "unknown_type"),
        (b"\x92\x04\x01", "bad_shape"),
        (encode(Ping(1))[:-1] + b"\xa0", "bad_field"),
    ],
)
async def test_invalid_bytes_close_their_connection_and_are_counted_by_cause(
    autojump_clock: object, payload: bytes, cause: str, greeted: bool
) -> None:
    async with running_node() as world:
        good = await world.call(APP)
        caller = await world.call(*([APP] if greeted else []))

        assert await caller.say(payload, check(1)) == []

        assert caller.closed[0][0] == ErrorCode.BAD_MESSAGE
        assert world.count(f"refused_bad_message_{cause}") == 1
        assert remaining(await good.say(check(2))) == [4]


async def test_an_unexpected_message_closes_its_connection(autojump_clock: object) -> None:
    async with running_node() as world:
        caller = await world.call(APP)

        received = await caller.say(Pong(1))

        assert "Pong must answer a request" in reason_of(received, ErrorCode.BAD_MESSAGE)
        assert world.count("refused_bad_message") == 1


# Allowed requests


async def test_every_token_may_ping_and_read_members_and_rules(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        caller = await world.call(APP)

        pong, members, rules = await caller.say(Ping(1), AskMembers(2), AskRules(3))

        assert pong == Pong(1)
        assert isinstance(members, Members)
        assert [(row.name, row.host, row.port) for row in members.members] == [
            ("a", "a", 1),
            ("b", "b", 1),
        ]
        assert isinstance(rules, Rules)
        assert RuleSet.from_plain(rules.plain) == RuleSet()


async def test_each_scope_allows_only_its_own_requests(autojump_clock: object) -> None:
    async with running_node() as world:
        app, operator = await world.call(APP), await world.call(OPERATOR)
        await app.say(check(1, cost=3))

        reset = await app.say(check(2, op=Op.RESET, cost=0))
        stats = await app.say(AskStats(3))

        assert "scope 'reset'" in reason_of(reset, ErrorCode.NOT_PERMITTED)
        assert "scope 'observe'" in reason_of(stats, ErrorCode.NOT_PERMITTED)
        assert not app.closed
        assert world.count("refused_not_permitted") == 2
        [counters] = await operator.say(AskStats(4))
        assert isinstance(counters, Stats)
        assert counters.counters["checks"] == 1
        assert remaining(await operator.say(check(5, op=Op.RESET, cost=0))) == [5]


async def test_a_refund_needs_the_same_permission_as_a_check(autojump_clock: object) -> None:
    async with running_node() as world:
        app = await world.call(APP)

        spent = await app.say(check(1, cost=3))
        refunded = await app.say(check(2, cost=2, op=Op.REFUND))

        assert remaining(spent + refunded) == [2, 4]


async def test_only_a_node_forwards(autojump_clock: object) -> None:
    async with running_node() as world:
        client = await world.call(APP)
        peer = await world.call(Hello(Role.NODE, "b", b"", 1))

        received = await client.say(check(1, hops=1))

        assert "only a node forwards" in reason_of(received, ErrorCode.NOT_PERMITTED)
        assert client.closed
        assert remaining(await peer.say(check(1, hops=1))) == [4]


async def test_a_member_may_send_the_counts_of_other_data_centers(autojump_clock: object) -> None:
    """The counts are maps by data center, which no message of a client contains."""
    counts = Counts([b"8 bytes."], [[1, 2]], [LIMIT], [0], [{"dc2": [7, 1]}])
    async with running_node() as world:
        member = await world.call(Hello(Role.NODE, "b", b"", 1))
        client = await world.call(APP)

        assert await member.say(Copy(1, counts)) == [Done(1)]
        await client.say(Copy(1, counts))

    assert member.closed == []
    assert [code for code, _ in client.closed] == [ErrorCode.BAD_MESSAGE]


async def test_a_check_forwarded_twice_is_not_forwarded_again(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        peer = await world.call(Hello(Role.NODE, "b", b"", 1))

        received = await peer.say(check(1, key_of("b"), hops=2))

        assert "will not forward" in reason_of(received, ErrorCode.NOT_HERE)
        assert world.count("refused_not_owner") == 1
        assert world.count("forwarded") == 0


async def test_a_client_may_send_checks_to_the_standby_instead_of_the_owner(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        caller = await world.call(APP)

        assert remaining(await caller.say(check(1, key_of("b"), as_standby=True))) == [4]
        assert world.count("stood_in") == 1


# Repeated requests


async def test_a_repeated_request_is_answered_twice_and_counted_once(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        caller = await world.call(APP)

        first = await caller.say(check(1, cost=3))
        second = await caller.say(check(1, cost=3))

        assert first == second
        assert remaining(await caller.say(check(2, cost=1))) == [1]
        assert world.count("repeated") == 1
        assert world.count("checks") == 2


async def test_a_repeat_over_a_new_connection_counts_once(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        one = await world.call(APP)
        first = await one.say(check(1, cost=3))
        assert one.connection is not None
        one.connection.close(0, "lost")
        two = await world.call(APP)

        assert await two.say(check(1, cost=3)) == first


async def test_another_process_with_the_same_token_counts_for_itself(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        one = await world.call(APP)
        two = await world.call(Hello(Role.CLIENT, "app", SECRET, 2))

        assert remaining(await one.say(check(1)) + await two.say(check(1))) == [4, 3]


async def test_a_request_still_being_forwarded_is_not_forwarded_again(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        caller = await world.call(APP)
        asked = check(1, key_of("b"), deadline_ms=2000)

        await caller.say(asked, asked)
        await trio.sleep(1)

        assert len(remaining(caller.received)) == 1
        assert world.count("forwarded") == 1
        assert world.count("repeated") == 1


async def test_an_answer_after_a_reconnect_uses_the_new_connection(
    autojump_clock: object,
) -> None:
    async with running_node() as world:
        world.network.set_delay(("a", 1), ("b", 1), 1.0)  # The handshake with b takes a while.
        one = await world.call(APP)
        await one.say(check(1, key_of("b"), deadline_ms=5000))
        assert one.connection is not None
        one.connection.close(0, "lost")
        two = await world.call(APP)

        await two.say(check(1, key_of("b"), deadline_ms=5000))
        await trio.sleep(1)

        assert one.received[1:] == []
        assert len(remaining(two.received)) == 1


# Bounds


async def test_only_a_client_that_does_not_read_its_answers_is_disconnected(
    autojump_clock: object,
) -> None:
    async with running_node(rules=large_rules()) as world:
        good, greedy = await world.call(APP), await world.call(APP)

        await greedy.say(*[AskRules(seq) for seq in range(1, 11)])

        assert greedy.closed[0][0] == ErrorCode.OVERLOADED
        assert world.count("refused_slow_reader") == 1
        assert world.count("connections") == 1
        assert [type(message) for message in await good.say(AskRules(1))] == [Rules]


def large_rules() -> RuleSet:
    """Return rules that barely fit into one message."""
    rows = "".join(
        f"  - key: client\n    value: {'v' * 60_000}{number}\n"
        "    rate_limit: {unit: minute, requests_per_unit: 5}\n"
        for number in range(15)
    )
    return load_text(f"domain: api\ndescriptors:\n{rows}").rules
