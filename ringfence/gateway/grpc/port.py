"""Listening port for gRPC over HTTP/2 on asyncio; one coroutine function answers all calls.

Decides which connections are accepted, and how many bytes they buffer together. The caller of
`GrpcPort` supplies the gRPC methods; `connection` reads and answers the calls.
"""

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf

from ringfence.errors import ConfigError
from ringfence.gateway.grpc.connection import Answerer, Beginner, Call, Connection
from ringfence.gateway.grpc.grpc_messages import Refusal
from ringfence.gateway.grpc.hpack import HeaderBlock
from ringfence.gateway.process.settings import GatewaySettings
from ringfence.transport.addresses import listen_error
from ringfence.transport.interface import Address

__all__ = ["GrpcPort"]

logger = logging.getLogger("ringfence.gateway")

_MAX_KEPT = 1 << 26
"""Maximum of buffered bytes in total. Above it, the connection with the most is closed."""
_ACCEPTED_AT_ONCE, _LOOK = 16, 1.0
"""Connections accepted before other work; seconds between checks for slow clients."""


def _begin_none(head: HeaderBlock, message: bytes, call: Call) -> bool:
    """Let the `Answerer` answer every call."""
    return False


def _refuse_none(error: Exception) -> Refusal | None:
    """Treat every error except `Refusal` as a bug."""
    return None


class GrpcPort:
    """Listening gRPC port, with its connections."""

    def __init__(
        self,
        answer: Answerer,
        settings: GatewaySettings,
        on_refusal: Callable[[str], None],
        begin: Beginner = _begin_none,
        refusal_of: Callable[[Exception], Refusal | None] = _refuse_none,
    ) -> None:
        """`on_refusal` is called with the cause when the port itself refuses a call or a
        connection. `refusal_of` returns the gRPC status of an error; None for a bug."""
        self.answer = answer
        self.begin = begin
        self.refusal_of = refusal_of
        self.settings = settings
        self.on_refusal = on_refusal
        self.calls = self.kept = 0
        """Number of gRPC calls in flight, and of buffered bytes of all connections."""
        self.turns: deque[Connection] = deque()
        """Connections with more unread bytes than one turn can process."""
        self.connections: dict[Connection, asyncio.Task[None]] = {}
        """Connections, each with the task that opens it, which may take a TLS handshake."""
        self._unsent: list[Connection] = []
        """Connections with responses that are sent together."""
        self._socket: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._look: asyncio.TimerHandle | None = None
        self._last_gone = asyncio.Event()
        """Set when no connection is left. Meaningless while there are connections."""

    async def start(self, at: Address, tls: ssl.SSLContext | None) -> int:
        """Start to listen; return the port number. Raises `ConfigError` if the address cannot be
        bound."""
        self._tls = tls
        family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
        try:
            listening = socket.create_server(at, family=family, backlog=1024, reuse_port=True)
        except OSError as error:
            raise ConfigError(f"gRPC: {listen_error(at, error, 'TCP')}") from error
        listening.setblocking(False)
        self._socket = listening
        self._close_slow_connections()
        return int(listening.getsockname()[1])

    async def stop(self, within: float) -> None:
        """Stop accepting calls, finish the calls in flight, then close all connections."""
        if self._look is not None:
            self._look.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        self._last_gone.clear()
        for each in list(self.connections):
            each.drain()
        if self.connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._last_gone.wait(), within)
        for each, beginning in list(self.connections.items()):
            beginning.cancel()
            each.abort()

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection from the list of the port's connections."""
        self.connections.pop(connection, None)
        if not self.connections:
            self._last_gone.set()

    def keep(self, more: int) -> None:
        """Update the number of bytes that all connections together buffer.

        If it exceeds the maximum, close the connection that buffers the most bytes.
        """
        self.kept += more
        if self.kept > _MAX_KEPT and more > 0 and self.connections:
            self.on_refusal("memory")
            max(self.connections, key=lambda each: each.kept).abort()

    def plan_flush(self, connection: Connection) -> None:
        """Send the responses of a connection, with those of other connections, after the callbacks
        that are ready now."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(connection)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        for each in unsent:
            each.flush()

    def take_turn(self) -> None:
        """Process unread bytes of one connection; others with unread bytes wait for their turn."""
        self.turns[0].data_received(b"")
        self.turns.popleft()
        if self.turns:
            asyncio.get_running_loop().call_soon(self.take_turn)

    def _accept(self, listening: socket.socket) -> None:
        """Accept a bounded number of waiting connections, then let other tasks run."""
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, (host, *_) = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # For example, no free file descriptor.
                self.on_refusal("accept_error")
                logger.error("grpc port: accept failed, retrying: error=%s", error)
                loop.remove_reader(listening)  # The next periodic check adds it again.
                return
            if self._has_room(host):
                connection = Connection(self, host)
                task = loop.create_task(self._connect(connection, accepted))
                self.connections[connection] = task
            else:
                accepted.close()

    async def _connect(self, connection: Connection, accepted: socket.socket) -> None:
        slow = self.settings.header_timeout if self._tls else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=slow
            )
        except (OSError, asyncio.CancelledError):
            self.on_refusal("handshake")
            self.forget(connection)

    def _has_room(self, host: str) -> bool:
        """Return whether a new connection fits the limits on connections.

        At a limit, close the connection that was idle longest; return False if none is idle.
        """
        rivals = [each for each in self.connections if each.host == host]
        if len(rivals) < self.settings.max_connections_per_address:
            rivals = list(self.connections)
            if len(rivals) < self.settings.max_connections:
                return True
        self.on_refusal("connections")
        longest = min(rivals, key=lambda each: each.idle_since)
        if longest.idle_since < inf:
            self.connections.pop(longest).cancel()
            longest.abort()
        return longest.idle_since < inf

    def _close_slow_connections(self) -> None:
        loop = asyncio.get_running_loop()
        for each in list(self.connections):
            each.give_up_slow(loop.time())
        if self._socket is not None:
            loop.add_reader(self._socket, self._accept, self._socket)
        self._look = loop.call_later(_LOOK, self._close_slow_connections)
