"""The admin port of a node or host: listening socket, TLS, and admission of connections.

Beyond loopback the port speaks TLS with the certificate of the node, because clients send tokens.
"""

import logging
import ssl
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from itertools import chain

import trio

from node.admin.app import AdminApp
from node.admin.connection import AdminConnection, AdminLimits
from node.admin.http_messages import Handler
from node.admin.throttle import FairQueue, Throttle
from node.config.access import KeyDir
from node.config.certificates import certificate_files
from node.context.containment import Containment
from node.node import Node
from ringfence.errors import ConfigError
from ringfence.rules import group_address
from ringfence.transport.addresses import listen_error
from ringfence.transport.interface import Address

__all__ = ["AdminPort", "bind_port", "open_port", "request_throttle"]

logger = logging.getLogger("ringfence.node")

_ACCEPTS_PER_SECOND = 2000.0
"""Accepting a connection costs little beside serving it."""
_TLS_SHARE = 0.5
"""Share of the connection rate with TLS: a handshake takes about a millisecond."""
_ADDRESS_SHARE = 2 / 3
"""Share of the connection rate for one address. The rest stays free for other addresses."""
_BURST = 50
_CONNECTION_BURST = 16
"""Below `connections_per_address`, so that a new connection is read before it may be closed."""
_BACKLOG = 128
"""Backlog of the listening socket."""
_MAX_WAITING = 256
"""Accepted connections that wait to be served. Addresses take turns, so many connections of one
address do not delay a probe from another."""


class _Tls:
    """TLS context of the port. New connections use the certificate that was loaded last."""

    context: ssl.SSLContext

    def __init__(self, keys: KeyDir, name: str) -> None:
        self._keys = keys
        self._name = name
        self.reload()

    def reload(self) -> None:
        """Load the certificate of the node. If it raises `ConfigError`, the previous one stays."""
        certificate, key = certificate_files(self._keys, self._name)
        # A failed load would leave the previous context without a certificate.
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{certificate}: must be a certificate that the admin port can use, got {error}; "
                "`ringfence keys new` writes one"
            ) from error
        self.context = context


class AdminPort:
    """Listening socket of the admin port and its connections."""

    def __init__(
        self,
        handler: Handler,
        on_refused: Callable[[str], None],
        listener: trio.SocketListener,
        tls: _Tls | None,
        containment: Containment,
        limits: AdminLimits,
    ) -> None:
        """`on_refused` receives the cause when a request or a connection is refused."""
        self._handler = handler
        self._on_refused = on_refused
        self._listener = listener
        self._tls = tls
        self._containment = containment
        self._limits = limits
        self._reads = Throttle(limits.reads_per_second, _BURST)
        self._accepts = Throttle(_ACCEPTS_PER_SECOND, _BURST)
        rate = limits.connections_per_second * (_TLS_SHARE if tls else 1.0)
        self._new_connections = Throttle(rate, _CONNECTION_BURST)
        self._waiting: FairQueue[tuple[str, trio.SocketStream]] = FairQueue(
            _MAX_WAITING, rate * _ADDRESS_SHARE, _CONNECTION_BURST
        )
        self._has_waiting = trio.Event()
        self._connections: dict[AdminConnection, None] = {}
        """Open connections, the first accepted one first."""

    @property
    def url(self) -> str:
        """URL of the admin port."""
        host, port = self._listener.socket.getsockname()[:2]
        scheme = "https" if self._tls is not None else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def reload_certificate(self) -> None:
        """Load the certificate again and use it for new connections. Raises `ConfigError`."""
        if self._tls is not None:
            self._tls.reload()

    async def run(self) -> None:
        """Serve HTTP connections until cancelled."""
        async with trio.open_nursery() as nursery, self._listener:
            try:
                nursery.start_soon(self._containment.supervise, "http", self._serve_all, nursery)
                await self._containment.supervise("http", self._accept_all)
            finally:
                for _, stream in self._waiting.clear():
                    stream.socket.close()

    async def _accept_all(self) -> None:
        """Accept connections and queue them by client address."""
        while True:
            await self._accepts.turn()
            stream = await self._accept()
            if stream is None:
                continue
            try:
                group = group_address(stream.socket.getpeername()[0])
            except OSError:  # The client has reset the connection.
                stream.socket.close()
                continue
            dropped = self._waiting.put(group, (group, stream))
            if dropped is not None:
                dropped[1].socket.close()
                self._on_refused("http_connections")
            self._has_waiting.set()

    async def _serve_all(self, nursery: trio.Nursery) -> None:
        """Take queued connections at the permitted rate of new connections, and start to serve
        them."""
        while True:
            await self._new_connections.turn()
            while (due := self._waiting.next_due()) > trio.current_time():
                self._has_waiting = trio.Event()
                with trio.move_on_at(due):
                    await self._has_waiting.wait()
            group, stream = self._waiting.take(trio.current_time())
            connection = AdminConnection(
                self._handler,
                stream,
                group,
                self._tls.context if self._tls is not None else None,
                self._limits,
                self._reads,
                self._on_refused,
            )
            self._make_room(connection)
            self._connections[connection] = None
            nursery.start_soon(self._serve, connection)

    async def _accept(self) -> trio.SocketStream | None:
        try:
            return await self._listener.accept()
        except OSError as error:
            # No file descriptor is free. A connection of this port soon ends and frees one.
            logger.warning("admin port: accept failed: error=%s", error.strerror)
            await trio.sleep(0.1)
            return None

    async def _serve(self, connection: AdminConnection) -> None:
        try:
            if not await self._containment.run("http", connection.run):
                self._on_refused("http_bug")
        finally:
            self._connections.pop(connection, None)

    def _make_room(self, newcomer: AdminConnection) -> None:
        """Close one connection when there are too many.

        If the address of `newcomer` has its maximum of connections, one of them is closed.
        Otherwise the address with the most connections loses one.
        """
        counts = Counter(each.group for each in self._connections)
        group = newcomer.group
        if counts[group] < self._limits.connections_per_address:
            if len(self._connections) < self._limits.connections:
                return
            [(group, _)] = counts.most_common(1)
        same = [each for each in self._connections if each.group == group]
        # Prefer connections that were answered: a new one, such as a health probe, was not yet.
        ending = (each for each in same if each.is_ending)
        idle = (each for each in same if not each.is_busy)
        victim = next(chain(ending, idle, same))
        del self._connections[
            victim
        ]  # Removed immediately, so that it is not counted while it closes.
        victim.close()
        self._on_refused("http_connections")


def request_throttle(limits: AdminLimits) -> Throttle:
    """Create the rate limit for requests to one admin port that carry a token."""
    return Throttle(limits.requests_per_second, _BURST)


async def open_port(
    node: Node, address: Address, keys: KeyDir | None, limits: AdminLimits | None = None
) -> AdminPort:
    """Bind the admin port of a node. Raises `ConfigError`."""
    limits = limits or AdminLimits()
    handler = AdminApp(node, request_throttle(limits)).respond
    return await bind_port(
        handler, node.counters.refused, address, keys, node.name, node.containment, limits
    )


async def bind_port(
    handler: Handler,
    on_refused: Callable[[str], None],
    address: Address,
    keys: KeyDir | None,
    name: str,
    containment: Containment,
    limits: AdminLimits,
) -> AdminPort:
    """Bind an admin port. Raises `ConfigError`.

    With a key folder, a port that other hosts can reach uses TLS. It presents the certificate of
    the node `name`.
    """
    host, port = address
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(f"http: {listen_error(address, error, 'TCP')}") from error
    for spare in listeners[1:]:
        await spare.aclose()
    listener = listeners[0]
    bound = listener.socket.getsockname()[0]
    is_loopback = ip_address(bound.partition("%")[0]).is_loopback
    tls = None if keys is None or is_loopback else _Tls(keys, name)
    return AdminPort(handler, on_refused, listener, tls, containment, limits)
