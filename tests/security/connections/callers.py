"""Callers of a node's QUIC port, which send any bytes and may violate the protocol."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import trio

from ringfence.client.url import parse_token
from ringfence.transport.interface import Connection
from ringfence.transport.quic.connection import QuicConnection
from ringfence.transport.settings import Settings
from ringfence.transport.tls.certificates import ClientTls, load_client_tls
from ringfence.transport.udp.udp_trio import TrioUdp
from ringfence.wire import Hello, Message, Role, decode, encode

__all__ = [
    "TIMEOUT",
    "Caller",
    "Callers",
    "callers",
    "client_hello",
    "cpu_seconds",
    "resident_bytes",
]

TIMEOUT = 20.0
"""Seconds after which an expected event counts as missing."""


@dataclass(eq=False)
class Caller:
    """One connection to a node. It records the received messages and why the connection ended."""

    messages: list[Message] = field(default_factory=list)
    closed: tuple[int, str] | None = None
    connection: Connection | None = None
    changed: trio.Event = field(default_factory=trio.Event)
    transport: TrioUdp | None = None

    def on_open(self, connection: Connection) -> None:
        self.connection = connection
        self._change()

    def on_message(self, payload: bytes) -> None:
        self.messages.append(decode(payload))
        self._change()

    def on_close(self, code: int, reason: str) -> None:
        self.closed = code, reason
        self._change()

    def _change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def send(self, *messages: Message | bytes) -> None:
        assert self.connection is not None
        assert self.transport is not None
        for message in messages:
            self.connection.send(message if isinstance(message, bytes) else encode(message))
        self.transport.flush()

    def stop_reading(self) -> None:
        """Give the node no credit beyond its present flow-control window."""
        assert isinstance(self.connection, QuicConnection)
        assert self.connection.quic is not None
        self.connection.receive_window = self.connection.quic.window = 0

    async def wait_open(self) -> "Caller":
        with trio.fail_after(TIMEOUT):
            while self.connection is None and self.closed is None:
                await self.changed.wait()
        return self

    async def wait_closed(self) -> tuple[int, str]:
        with trio.fail_after(TIMEOUT):
            while self.closed is None:
                await self.changed.wait()
        return self.closed

    async def wait_message(self) -> Message:
        """Return the next message that no earlier call has returned."""
        with trio.fail_after(TIMEOUT):
            while not self.messages and self.closed is None:
                await self.changed.wait()
        assert self.messages, f"closed instead: {self.closed}"
        return self.messages.pop(0)


class Callers:
    """Connections from one UDP port of this host."""

    def __init__(self, transport: TrioUdp) -> None:
        self.transport = transport

    def connect(self, port: int) -> Caller:
        caller = Caller(transport=self.transport)
        self.transport.connect(("127.0.0.1", port), caller)
        return caller

    async def open(self, port: int, *messages: Message | bytes) -> Caller:
        """Connect and send `messages`."""
        caller = await self.connect(port).wait_open()
        if caller.connection is not None:
            caller.send(*messages)
        return caller


@asynccontextmanager
async def callers(
    keys: Path | None = None, settings: Settings | None = None
) -> AsyncIterator[Callers]:
    """Yield callers of one port; `keys` is the key folder of the cluster, if it has one."""
    bugs: list[Exception] = []
    tls = ClientTls(verify=False)
    if keys is not None:
        tls = load_client_tls(keys / "ca.pem", datetime.now(UTC))
    transport = TrioUdp(on_bug=bugs.append, client=tls, settings=settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run)
        yield Callers(transport)
        nursery.cancel_scope.cancel()
    assert not bugs


def client_hello(keys: Path, name: str) -> Hello:
    """Return the hello of a client with a token of the key folder."""
    token = parse_token((keys / f"{name}.token").read_text("ascii").strip())
    return Hello(Role.CLIENT, token.name, token.secret, 7)


def resident_bytes(pid: int) -> int:
    """Return the memory that a process occupies (Linux)."""
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * os.sysconf(
        "SC_PAGE_SIZE"
    )


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used (Linux)."""
    user, system = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / 100.0
