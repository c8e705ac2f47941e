"""Transports in memory with handlers that record events, for tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import trio

from ringfence.transport.interface import Address, Connection
from ringfence.transport.memory import MemoryNetwork

A: Address = ("a", 1)
B: Address = ("b", 1)


@dataclass(eq=False)
class Log:
    """Handler that records messages and their times."""

    echoes: bool = False
    connection: Connection | None = None
    messages: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    closed: tuple[int, str] | None = None
    closed_at: float = 0.0

    def on_open(self, connection: Connection) -> None:
        self.connection = connection

    def on_message(self, payload: bytes) -> None:
        self.messages.append(payload)
        self.times.append(trio.current_time())
        if payload == b"fail":
            raise ZeroDivisionError
        if self.echoes:
            assert self.connection is not None
            self.connection.send(payload)

    def on_close(self, code: int, reason: str) -> None:
        assert self.closed is None
        self.closed = code, reason
        self.closed_at = trio.current_time()


class World:
    """Memory network with transports at A and B; B echoes messages."""

    def __init__(self, nursery: trio.Nursery, *, delay: float = 0.01, jitter: float = 0.0) -> None:
        self.nursery = nursery
        self.network = MemoryNetwork(Random(1), delay=delay, jitter=jitter)
        self.bugs: list[Exception] = []
        self.accepted: list[Log] = []
        self.a = self.network.transport(A, on_bug=self.bugs.append)

    async def start(self) -> "World":
        await self.nursery.start(self.a.run)
        await self.start_b()
        return self

    async def start_b(self) -> trio.CancelScope:
        self.b = b = self.network.transport(B, on_bug=self.bugs.append, accept=self.accept)
        scope = trio.CancelScope()

        async def run(*, task_status: trio.TaskStatus[Address]) -> None:
            with scope:
                await b.run(task_status=task_status)

        await self.nursery.start(run)
        return scope

    def accept(self, _: Connection) -> Log:
        self.accepted.append(Log(echoes=True))
        return self.accepted[-1]

    def connect(self, to: Address = B) -> tuple[Connection, Log]:
        log = Log()
        connection = self.a.connect(to, log)
        self.a.flush()
        return connection, log


@asynccontextmanager
async def world(**options: float) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        yield await World(nursery, **options).start()
        nursery.cancel_scope.cancel()
