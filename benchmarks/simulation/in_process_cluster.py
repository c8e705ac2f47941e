"""Cluster of any size in this process: real clients, frames and counters over an in-memory network.

Members decide every check that they receive. They know each other from the start and do not gossip.
A check costs the work of client, frames and decision, without sockets and encryption.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import trio

from benchmarks.core.tables import START
from hashring import Member, NodeId, View
from ringfence.client.cluster.cluster import Cluster, ClusterSettings
from ringfence.client.limiter import Limiter
from ringfence.peering.clock import SystemClock
from ringfence.peering.engine_choice import decide_batch, engine_rules, new_engine
from ringfence.rules import RuleSet
from ringfence.transport.interface import Connection
from ringfence.transport.memory import MemoryNetwork
from ringfence.wire import (
    Answer,
    AskMembers,
    AskRules,
    Hello,
    MemberRow,
    Members,
    Message,
    Ping,
    Pong,
    Request,
    Results,
    Role,
    Rules,
    Source,
    Welcome,
    decode,
    encode,
)

__all__ = ["cluster_client"]

_DATACENTER = "dc1"


@asynccontextmanager
async def cluster_client(members: int, rules: RuleSet, max_keys: int) -> AsyncIterator[Limiter]:
    """Open a limiter over several members of an in-process cluster, each with room for `max_keys`
    counters."""
    network = MemoryNetwork(Random(1), delay=0.0)
    names = sorted(f"n{number}" for number in range(members))
    rows = [MemberRow(name, name, 7101, _DATACENTER, "", 1.0, "alive") for name in names]
    view = View.of(Member(NodeId(name), _DATACENTER) for name in names).hash
    transport = network.transport(("client", 1), on_bug=_raise)
    hello = Hello(Role.CLIENT, "bench", b"", 1)
    seeds = [(name, 7101) for name in names[:2]]
    settings = ClusterSettings(
        denial_cache_size=0, use_leases=False
    )  # Every check must reach a member.
    cluster = Cluster(transport, seeds, hello, settings, SystemClock(), Random(2))
    async with trio.open_nursery() as nursery:
        for name in names:
            member = _Member(name, rows, view, rules, max_keys)
            home = network.transport((name, 7101), on_bug=_raise, accept=member.accept)
            await nursery.start(home.run)
        await nursery.start(transport.run)
        await nursery.start(cluster.run)
        error = await cluster.wait_joined(30.0)
        if error is not None:
            raise error
        yield Limiter(cluster, raise_on_outage=True)
        nursery.cancel_scope.cancel()


class _Member:
    """Member that answers as the owner of every key."""

    def __init__(
        self, name: str, rows: list[MemberRow], view: int, rules: RuleSet, max_keys: int
    ) -> None:
        self._name = name
        self._rows = rows
        self._view = view
        self._rules = rules
        self._engine = new_engine(max_keys=max_keys)
        self._engine.set_rules(engine_rules(rules.rules()))

    def accept(self, connection: Connection) -> "_Session":
        return _Session(self, connection)

    def answer(self, message: Message) -> Message:
        match message:
            case Request() as asked:
                outcomes = decide_batch(self._engine, asked.batch, START)
                sources: list[int] = [Source.OWNER] * len(asked.batch)
                return Answer(
                    asked.seq, self._view, self._rules.version, Results(outcomes, sources)
                )
            case Hello():
                return Welcome(self._name, self._view, self._rules.version)
            case AskMembers(seq):
                return Members(seq, self._view, self._rows)
            case AskRules(seq):
                return Rules(seq, self._rules.version, self._rules.to_plain())
            case Ping(seq):
                return Pong(seq)
            case _:
                raise AssertionError(f"a client of the benchmark does not send {message}")


class _Session:
    """One connection of a member to a client."""

    def __init__(self, member: _Member, connection: Connection) -> None:
        self._member = member
        self._connection = connection

    def on_open(self, connection: Connection) -> None:
        """Do nothing, because the client sends the first message."""

    def on_message(self, payload: bytes) -> None:
        self._connection.send(encode(self._member.answer(decode(payload))))

    def on_close(self, code: int, reason: str) -> None:
        """Do nothing, because the member stores nothing about a client."""


def _raise(error: BaseException) -> None:
    raise error
