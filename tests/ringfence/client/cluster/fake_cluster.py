"""A cluster of fake nodes on a memory network, and the client that joins it."""

from contextlib import asynccontextmanager
from random import Random

import trio

from hashring import Member, NodeId, View
from ringfence.client.cluster.cluster import Cluster, ClusterSettings
from ringfence.limiter import Engine
from ringfence.peering.engine_choice import decide_batch, engine_rules
from ringfence.rules import RuleSet
from ringfence.rules.loading.mapping import load_mapping
from ringfence.transport.memory import MemoryNetwork
from ringfence.wire import (
    Answer,
    AskLeave,
    AskMembers,
    AskPeers,
    AskRules,
    AskStats,
    Done,
    ErrorCode,
    Hello,
    MemberRow,
    Members,
    Peers,
    Ping,
    Pong,
    Report,
    Request,
    Results,
    Role,
    Rules,
    Source,
    Stats,
    SubscribeDenials,
    Welcome,
    decode,
    encode,
)

HERE = ("client", 1)
NOW = 30_000_000_000


def rules_of(version, **amounts):
    """Return rules with a limit per minute for each key."""
    descriptors = [
        {"key": name, "rate_limit": {"requests_per_unit": amount, "unit": "minute"}}
        for name, amount in amounts.items()
    ]
    made = load_mapping({"domain": "d", "descriptors": descriptors}).rules
    return RuleSet(made.contents, version=version)


def row(name, datacenter="dc1", state="alive"):
    return MemberRow(name, name, 7101, datacenter, "", 1.0, state)


def view_of(rows):
    alive = [each for each in rows if each.state in ("alive", "suspect")]
    return View.of(Member(NodeId(each.name), each.datacenter) for each in alive)


class FakeNode:
    """Fake node that decides all checks, also those of other owners."""

    def __init__(self, cluster, name):
        self.cluster = cluster
        self.name = name
        self.at = (name, 7101)
        self.rows = cluster.rows
        self.refusal = None
        self.is_old = False
        """Whether it is a node of a version without `SubscribeDenials` and `Report`."""
        self.mute = ()
        """Message types that it does not answer."""
        self.hellos = []
        self.received = []
        self.connections = []
        self.reported = [{"name": name}]
        """Peers in its answer to `AskPeers`."""
        self.reply_to_leave = Done
        """Creates its answer to `AskLeave`."""
        self.plain = None
        """Data that it sends instead of its rules; None to send its rules."""
        self.engine = Engine(max_keys=1000)
        self.set_rules(cluster.rules)

    def set_rules(self, rules):
        self.rules = rules
        self.engine.set_rules(engine_rules(rules.rules()))

    @property
    def view(self):
        return view_of(self.rows).hash

    def count(self, kind):
        return sum(isinstance(message, kind) for message in self.received)

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED):
        self.transport = self.cluster.network.transport(self.at, on_bug=raise_, accept=self.accept)
        await self.transport.run(task_status=task_status)

    def accept(self, connection):
        self.connections.append(connection)
        return NodeSession(self, connection)

    def answer(self, message):
        match message:
            case Hello() if self.refusal is not None:
                return self.refusal
            case Hello():
                return Welcome(self.name, self.view, self.rules.version)
            case Request() as request:
                outcomes = decide_batch(self.engine, request.batch, NOW)
                source = Source.STANDBY if request.as_standby else Source.OWNER
                sources = [source] * len(request.batch)
                return Answer(
                    request.seq, self.view, self.rules.version, Results(outcomes, sources)
                )
            case AskMembers(seq):
                return Members(seq, self.view, self.rows)
            case AskRules(seq):
                plain = self.rules.to_plain() if self.plain is None else self.plain
                return Rules(seq, self.rules.version, plain)
            case AskStats(seq):
                return Stats(seq, {"checks": self.count(Request)})
            case AskPeers(seq):
                return Peers(seq, self.reported)
            case AskLeave(seq):
                return self.reply_to_leave(seq)
            case Ping(seq):
                return Pong(seq)
            case SubscribeDenials(seq) | Report(seq):
                return Done(seq)
        raise AssertionError(message)


class NodeSession:
    def __init__(self, node, connection):
        self.node = node
        self.connection = connection

    def on_open(self, connection):
        pass

    def on_close(self, code, reason):
        self.node.connections.remove(self.connection)

    def on_message(self, payload):
        message = decode(payload)
        (self.node.hellos if isinstance(message, Hello) else self.node.received).append(message)
        if self.node.is_old and isinstance(message, SubscribeDenials | Report):
            self.connection.close(ErrorCode.BAD_MESSAGE, "a message of no known type")
        elif not isinstance(message, self.node.mute):
            self.connection.send(encode(self.node.answer(message)))


def raise_(error):
    raise error


class FakeCluster:
    """Fake nodes that know each other, and their clients."""

    def __init__(self, nursery, transport, network, rows, rules):
        self.nursery = nursery
        self.transport = transport
        self.network = network
        self.rows = rows
        self.rules = rules
        self.nodes = {each.name: FakeNode(self, each.name) for each in rows}

    async def serve(self, *names):
        for name in names:
            await self.nursery.start(self.nodes[name].run)

    def crash(self, *names):
        for name in names:
            self.network.crash(self.nodes[name].at)
            self.nodes[name].connections.clear()

    async def client(
        self, *seeds, rules=None, credential=b"secret", on_rules=lambda _: None, **settings
    ):
        cluster = Cluster(
            self.transport,
            [self.nodes[seed].at for seed in seeds or self.nodes],
            Hello(Role.CLIENT, "web", credential, 5),
            ClusterSettings(**settings),
            HandClock(),
            Random(3),
            rules,
            on_rules,
        )
        await self.nursery.start(cluster.run)
        return cluster

    async def joined(self, *seeds, **settings):
        cluster = await self.client(*seeds, **settings)
        assert await cluster.wait_joined(5) is None
        await trio.sleep(1)
        return cluster

    def change_members(self, *rows):
        self.rows = list(rows)
        for each in rows:
            self.nodes.setdefault(each.name, FakeNode(self, each.name)).rows = self.rows

    def change_rules(self, rules):
        for node in self.nodes.values():
            node.set_rules(rules)

    def requests(self):
        """Return the number of requests that each node has received."""
        return {name: node.count(Request) for name, node in self.nodes.items()}


class HandClock:
    def now(self):
        return NOW


@asynccontextmanager
async def fake_cluster(*rows, serve=True, **amounts):
    network = MemoryNetwork(Random(1), delay=0.001)
    transport = network.transport(HERE, on_bug=raise_)
    rows = list(rows) or [row(name) for name in "abc"]
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run)
        made = FakeCluster(
            nursery, transport, network, rows, rules_of(1, **(amounts or {"user": 9}))
        )
        if serve:
            await made.serve(*made.nodes)
        yield made
        nursery.cancel_scope.cancel()


async def sources(limiter, key="user", many=12):
    decisions = await limiter.check_many("d", [{key: str(number)} for number in range(many)])
    return {decision.source for decision in decisions}
