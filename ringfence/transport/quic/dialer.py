"""Outgoing connections: a peer's numeric addresses are tried one after another."""

from collections.abc import Sequence
from dataclasses import replace

from ringfence.transport.addresses import format_address, is_loopback
from ringfence.transport.close_reason import CloseReason, TransportCode
from ringfence.transport.interface import Address, Handler
from ringfence.transport.quic.aioquic_connection import AioquicConnection
from ringfence.transport.quic.configuration import client_configuration
from ringfence.transport.quic.connection import ConnectionEvents, QuicConnection, State
from ringfence.transport.quic.connection_table import ConnectionTable
from ringfence.transport.settings import Settings
from ringfence.transport.tls.certificates import ClientTls

__all__ = ["Dialer"]


class Dialer:
    """Starter of outgoing connections; each address of a peer gets an equal share of the
    handshake time."""

    def __init__(
        self, settings: Settings, tls: ClientTls, table: ConnectionTable, events: ConnectionEvents
    ) -> None:
        self._settings = settings
        self._table = table
        self._events = events
        self.change_tls(tls)

    def change_tls(self, tls: ClientTls) -> None:
        """Use other certificates for handshakes that start from now on."""
        self._tls = tls
        self._configurations = {
            loopback: client_configuration(tls, self._settings.for_path(is_loopback=loopback))
            for loopback in (False, True)
        }

    def prepare(
        self, address: Address, handler: Handler, now: float, node: str = ""
    ) -> QuicConnection:
        """Create a connection to a host name, which the caller resolves.

        The caller must then call `begin` or `fail`. `node` is the name of the node that must
        answer, empty when it is unknown.
        """
        connection = QuicConnection(
            self._events,
            address,
            self._settings,
            deadline=now + self._settings.handshake_timeout,
            handler=handler,
            server_name=self._tls.name_of(node),
        )
        self._table.add(connection)
        self._events.on_sendable(connection)
        return connection

    def begin(self, connection: QuicConnection, candidates: Sequence[Address], now: float) -> None:
        """Start the handshake with the first numeric address; keep the other addresses for later
        attempts."""
        if connection.state is State.RESOLVING:
            connection.candidates = tuple(candidates)
            self.try_next(connection, now)

    def fail(self, connection: QuicConnection, reason: CloseReason) -> None:
        """Close a connection whose handshake cannot start."""
        connection.terminate(reason, notify_peer=False)

    def try_next(self, connection: QuicConnection, now: float) -> None:
        """Start the handshake with the peer's next numeric address."""
        path, *later = connection.candidates
        connection.candidates = later
        remaining = max(0.0, connection.connect_deadline - now)
        connection.attempt_deadline = now + remaining / (1 + len(later))
        configuration = self._configurations[is_loopback(path)]
        quic = AioquicConnection(
            replace(configuration, server_name=connection.server_name),
            window=self._settings.receive_window,
            use_fast_path=self._settings.use_fast_path,
        )
        quic.connect(path, now)
        connection.start(quic, path)

    def on_attempt_timeout(self, connection: QuicConnection, now: float) -> None:
        """Try the peer's next address after a time-out, or close the connection when there is
        none."""
        if connection.candidates:
            self.try_next(connection, now)
        else:
            reason = f"handshake timed out (no answer from {format_address(connection.path)})"
            connection.terminate(
                CloseReason(TransportCode.HANDSHAKE_TIMEOUT, reason), notify_peer=True
            )

    def on_unreachable(self, connection: QuicConnection, now: float) -> None:
        """Handle a report of the network that no process listens at the connection's address."""
        if connection.state is State.CONNECTING and connection.candidates:
            self.try_next(connection, now)
        else:
            reason = f"no process listens at {format_address(connection.path)}"
            connection.terminate(CloseReason(TransportCode.UNREACHABLE, reason), notify_peer=False)
