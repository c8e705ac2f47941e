"""The operator's port itself: the socket, who gets a connection, and what all of them cost.

Beyond loopback it speaks TLS with the node's own certificate, since tokens come over it.
"""

import logging
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from itertools import chain
from typing import Protocol

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext

from node.admin.accept_queue import FairQueue
from node.admin.app import AdminApp, AsgiScope, Receive, Send
from node.admin.connection import Connection, Limits
from node.admin.throttle import Throttle
from node.config.access import KeyDir
from node.config.certificates import certificate_files
from node.containment import Containment
from node.node import Node
from ringfence.errors import ConfigError
from ringfence.rules import group_address
from ringfence.transport.interface import Address

__all__ = ["AdminPort", "PortApp", "open_port", "open_port_for"]

logger = logging.getLogger("ringfence.node")

_ACCEPTS_PER_SECOND = 2000.0
"""Accepting alone takes a small part of the time that serving a connection takes."""
_WITH_TLS = 0.5
"""Share of the connections a second with TLS: a handshake takes a millisecond."""
_SHARE_OF_ADDRESS = 2 / 3
"""Share of the connections a second that one address gets, so that others need not wait for it."""
_BURST = 50
_SERVED_AT_ONCE = 16
"""Fewer than the connections of one address, so that a new one is read before it may be closed."""
_BACKLOG = 128
"""Listen backlog."""
_WAITING = 256
"""Accepted connections that wait to be served, each address in turn: many of one address delay no
probe from another."""


class PortApp(Protocol):
    """An ASGI application that has something to do between requests, too."""

    async def run(self) -> None:
        """Do it, until cancelled."""

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer one request."""


class AdminPort:
    """A listening socket with an application behind it."""

    def __init__(
        self,
        make_app: Callable[[Throttle], PortApp],
        refused: Callable[[str], None],
        listener: trio.SocketListener,
        tls: ssl.SSLContext | None,
        containment: Containment,
        limits: Limits | None = None,
        renew: Callable[[], None] | None = None,
    ) -> None:
        """The application takes a turn of the pace that it is given for each request; `refused` is
        told the cause of whatever is turned away."""
        self._refused = refused
        self._listener = listener
        self._tls = tls
        self.renew_certificate = renew or _nothing
        """Reads the certificate again, for new connections; raises `ConfigError`."""
        self._containment = containment
        self._limits = limits or Limits()
        self._reads = Throttle(self._limits.reads_per_second, _BURST)
        self._accepts = Throttle(_ACCEPTS_PER_SECOND, _BURST)
        served = self._limits.connections_per_second * (_WITH_TLS if tls else 1.0)
        self._doors = Throttle(served, _SERVED_AT_ONCE)
        self._waiting: FairQueue[tuple[str, trio.SocketStream]] = FairQueue(
            _WAITING, served * _SHARE_OF_ADDRESS, _SERVED_AT_ONCE
        )
        self._has_waiting = trio.Event()
        self._app = make_app(Throttle(self._limits.requests_per_second, _BURST))
        self._config = Config()
        self._config.h11_max_incomplete_size = self._limits.header_bytes
        self._config.include_server_header = False
        self._config.errorlog = logger
        self._connections: dict[Connection, None] = {}
        """The longest silent first, as far as is known: those that were accepted first."""

    @property
    def url(self) -> str:
        """Where it is."""
        host, port = self._listener.socket.getsockname()[:2]
        scheme = "https" if self._tls is not None else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._containment.supervise, "http", self._app.run)
            async with self._listener:
                try:
                    nursery.start_soon(
                        self._containment.supervise, "http", self._serve_all, nursery
                    )
                    await self._containment.supervise("http", self._accept_all)
                finally:
                    for _, raw in self._waiting.clear():
                        raw.socket.close()

    async def _accept_all(self) -> None:
        """Accept connections and queue them by address."""
        while True:
            await self._accepts.turn()
            raw = await self._accept()
            if raw is None:
                continue
            try:
                group = group_address(raw.socket.getpeername()[0])
            except OSError:  # The client has reset it.
                raw.socket.close()
                continue
            crowded = self._waiting.put(group, (group, raw))
            if crowded is not None:
                crowded[1].socket.close()
                self._refused("http_connections")
            self._has_waiting.set()

    async def _serve_all(self, nursery: trio.Nursery) -> None:
        """Begin to serve the connections that wait, at the pace of the port."""
        app, context = ASGIWrapper(self._app), WorkerContext(None)  # type: ignore[arg-type]
        while True:
            await self._doors.turn()
            while (due := self._waiting.next_due()) > trio.current_time():
                self._has_waiting = trio.Event()
                with trio.move_on_at(due):
                    await self._has_waiting.wait()
            group, raw = self._waiting.take(trio.current_time())
            connection = Connection(
                app,
                self._config,
                context,
                raw,
                group,
                self._tls,
                self._limits,
                self._reads,
                self._refused,
            )
            self._make_room(connection)
            self._connections[connection] = None
            nursery.start_soon(self._serve, connection)

    async def _accept(self) -> trio.SocketStream | None:
        try:
            return await self._listener.accept()
        except OSError as error:
            # No file descriptors are left: one of ours will be free in a moment.
            logger.warning("the operator's port cannot take a connection: %s", error.strerror)
            await trio.sleep(0.1)
            return None

    async def _serve(self, connection: Connection) -> None:
        try:
            if not await self._containment.run("http", connection.run):
                self._refused("http_bug")
        finally:
            self._connections.pop(connection, None)

    def _make_room(self, newcomer: Connection) -> None:
        """Close the most dispensable connection when there are too many.

        That is one of the new connection's address when the address has its most, else one of the
        address that has most: a client that opens many closes its own.
        """
        counts = Counter(each.group for each in self._connections)
        group = newcomer.group
        if counts[group] < self._limits.connections_per_address:
            if len(self._connections) < self._limits.connections:
                return
            [(group, _)] = counts.most_common(1)
        same = [each for each in self._connections if each.group == group]
        # First those that were answered; the newest, such as a probe, were not yet.
        ending = (each for each in same if each.is_ending)
        idle = (each for each in same if not each.is_busy)
        victim = next(chain(ending, idle, same))
        del self._connections[victim]  # At once: its end takes a while, and counts one only.
        victim.end()
        self._refused("http_connections")


async def open_port(
    node: Node, address: Address, keys: KeyDir | None, limits: Limits | None = None
) -> AdminPort:
    """Bind the port of a node, as `open_port_for` does."""
    return await open_port_for(
        lambda pace: AdminApp(node, pace),
        node.refused,
        address,
        keys,
        node.name,
        node.containment,
        limits,
    )


async def open_port_for(
    make_app: Callable[[Throttle], PortApp],
    refused: Callable[[str], None],
    address: Address,
    keys: KeyDir | None,
    name: str,
    containment: Containment,
    limits: Limits | None = None,
) -> AdminPort:
    """Bind a port; with keys and beyond loopback it speaks TLS. Raises `ConfigError`.

    It shows the certificate of the node `name`.
    """
    host, port = address
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"http: cannot listen on {host}:{port}: {error.strerror or error}; choose another "
            "address of this host, or port 0 for any that is free"
        ) from error
    for spare in listeners[1:]:
        await spare.aclose()
    listener = listeners[0]
    bound = listener.socket.getsockname()[0]
    if keys is None or ip_address(bound.partition("%")[0]).is_loopback:
        return AdminPort(make_app, refused, listener, None, containment, limits)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    renew = partial(_load_certificate, context, keys, name)
    renew()
    return AdminPort(make_app, refused, listener, context, containment, limits, renew)


def _load_certificate(context: ssl.SSLContext, keys: KeyDir, name: str) -> None:
    certificate, key = certificate_files(keys, name)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{certificate}: cannot be used for the operator's port: {error}; "
            "`ringfence keys new` writes one"
        ) from error


def _nothing() -> None:
    """Do nothing: without TLS there is no certificate to reload."""
