"""Link to a scripted peer over a memory network."""

from contextlib import asynccontextmanager
from random import Random
from zlib import crc32

import trio

from ringfence.limiter import Outcomes
from ringfence.peering.link import Link, LinkSettings
from ringfence.peering.target import SHED
from ringfence.transport.memory import MemoryNetwork
from ringfence.wire import (
    Answer,
    AskMembers,
    Batch,
    ErrorCode,
    Hello,
    MemberRow,
    Members,
    Op,
    Ping,
    Pong,
    Request,
    Results,
    Role,
    Welcome,
    decode,
    encode,
)

HERE, THERE = ("client", 1), ("node", 7101)
DELAY = 0.01
TIMEOUT = 0.5
MEMBERS = [MemberRow("n1", "node", 7101, "dc1", "", 1.0, "alive")]


class Peer:
    """Scripted node that sends a welcome and answers, unless a test changes that."""

    def __init__(self, network):
        self._network = network
        self.sends_welcome = True
        self.hangs_up = False
        """Whether the peer closes each connection after its welcome."""
        self.answers = True
        self.answers_pings = True
        self.refusal = None
        self.reply = self.answer
        """Creates the answer to a request."""
        self.reply_to_other = None
        """Creates the reply to any other message; None for no reply."""
        self.hellos = []
        self.requests = []
        self.questions = []
        self.connections = []
        self.closings = []
        self.remembered = {}
        self.counted = []
        """Keys of the checks in all requests, without repeated requests."""

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED):
        self.transport = self._network.transport(THERE, on_bug=raise_, accept=self.accept)
        await self.transport.run(task_status=task_status)

    def accept(self, connection):
        self.connections.append(connection)
        return PeerSession(self, connection)

    def send(self, message):
        """Send a message on the last connection."""
        self.send_payload(encode(message))

    def send_payload(self, payload):
        self.connections[-1].send(payload)
        self.transport.flush()

    def hang_up(self):
        self.connections[-1].close(ErrorCode.INTERNAL, "a hiccup")
        self.transport.flush()

    def answer(self, request):
        if (request.seq, self.hellos[-1].session) not in self.remembered:
            self.remembered[request.seq, self.hellos[-1].session] = True
            if request.batch.op is Op.CHECK:
                self.counted += request.batch.keys
        return answer_to(request)

    @property
    def rows(self):
        """Number of rows of each request."""
        return [len(request.batch.keys) for request in self.requests]


class PeerSession:
    """Handler of one connection to the peer."""

    def __init__(self, peer, connection):
        self.peer = peer
        self.connection = connection

    def on_open(self, connection):
        pass

    def on_close(self, code, reason):
        self.peer.closings.append(code)

    def on_message(self, payload):
        peer = self.peer
        match decode(payload):
            case Hello() as hello:
                peer.hellos.append(hello)
                if peer.refusal is not None:
                    self.connection.send(encode(peer.refusal))
                    self.connection.close(peer.refusal.code, peer.refusal.reason)
                elif peer.sends_welcome:
                    self.connection.send(encode(Welcome("n1", 11, 22)))
                    if peer.hangs_up:
                        self.connection.close(ErrorCode.INTERNAL, "a hiccup")
            case Request() as request:
                peer.requests.append(request)
                if peer.answers:
                    self.connection.send(encode(peer.reply(request)))
            case AskMembers(seq):
                if peer.answers:
                    self.connection.send(encode(Members(seq, 11, MEMBERS)))
            case Ping(seq):
                if peer.answers_pings:
                    self.connection.send(encode(Pong(seq)))
            case question:
                peer.questions.append(question)
                if peer.answers and peer.reply_to_other is not None:
                    self.connection.send(encode(peer.reply_to_other(question)))


def mark(key):
    """Return a number that identifies the answer to a key."""
    return crc32(key)


def answer_to(request):
    count = len(request.batch.keys)
    zeros = [[0] * count for _ in range(4)]
    marks = [mark(key) for key in request.batch.keys]
    return Answer(
        request.seq,
        11,
        22,
        Results(Outcomes([0] * count, [9] * count, marks, *zeros), [0] * count),
    )


class Listener:
    def __init__(self):
        self.versions = []
        self.reachable = []

    def on_versions(self, link, view, rules):
        self.versions.append((view, rules))

    def on_reachable(self, link, reachable):
        self.reachable.append(reachable)

    def on_slots_free(self, tickets):
        raise AssertionError


class AskedBatch:
    """Batch that was passed to a link, with all its answers."""

    def __init__(self, batch):
        self.batch = batch
        self.received = []
        self.at = []

    def __call__(self, verdicts):
        self.received.append(verdicts)
        self.at.append(trio.current_time())

    @property
    def is_answered(self):
        """Whether the batch got one answer, with its own rows; None when it failed.

        A failed batch may get one late answer.
        """
        results, *late = self.received
        if results is None or results is SHED:
            assert all(each.outcomes.remaining == self._marks for each in late)
            assert len(late) < 2
            return None
        assert not late
        return results.outcomes.remaining == self._marks

    @property
    def _marks(self):
        return [mark(key) for key in self.batch.keys]


def raise_(error):
    raise error


def key(name):
    return str(name).encode().rjust(8, b"\0")


def ask(link, *names, op=Op.CHECK, as_standby=False, **columns):
    batch = Batch(op, [key(name) for name in names], [1] * len(names), **columns)
    asked = AskedBatch(batch)
    link.ask(batch, as_standby=as_standby, done=asked)
    return asked


def call(link, make=AskMembers, timeout=None):
    replies = []
    link.call(make, replies.append, timeout)
    return replies


class World:
    """Link and its peer on a memory network."""

    def __init__(self, network, nursery, transport, limits):
        self.network = network
        self.nursery = nursery
        self.peer = Peer(network)
        self.listener = Listener()
        self.link = Link(
            transport,
            THERE,
            Hello(Role.CLIENT, "web", b"secret", 5),
            LinkSettings(answer_timeout=TIMEOUT, **{"slow_timeout": TIMEOUT} | limits),
            self.listener,
            Random(1),
            lambda: 11,
        )

    async def serve(self):
        await self.nursery.start(self.peer.run)

    def crash(self):
        """Stop the peer without a goodbye."""
        self.network.crash(THERE)


@asynccontextmanager
async def world(*, serve=True, **limits):
    network = MemoryNetwork(Random(1), delay=DELAY)
    transport = network.transport(HERE, on_bug=raise_)
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run)
        made = World(network, nursery, transport, limits)
        if serve:
            await made.serve()
        yield made
        nursery.cancel_scope.cancel()


def fields(message):
    return {name: getattr(message, name) for name in message.__dataclass_fields__}
