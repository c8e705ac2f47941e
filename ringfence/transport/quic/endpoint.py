"""QUIC endpoint without I/O: many connections on one UDP port, with datagrams as input and output.

Routes each datagram to its connection, admits or rejects new ones and runs the timers of all. The
UDP transports own the socket and the clock, and wait.
"""

import hmac
import os
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import TypeAlias

from ringfence.transport.addresses import format_address, is_loopback
from ringfence.transport.close_reason import CloseReason, TransportCode
from ringfence.transport.interface import Accept, Address, Handler, OnSealed
from ringfence.transport.quic.admission import (
    Acceptor,
    Admit,
    Drop,
    HandshakePressure,
    Reply,
    parse_header,
)
from ringfence.transport.quic.aioquic_connection import AioquicConnection, Datagrams
from ringfence.transport.quic.configuration import CID_LENGTH, server_configuration
from ringfence.transport.quic.connection import QuicConnection, State
from ringfence.transport.quic.connection_table import ConnectionTable, ConnectionTimers
from ringfence.transport.quic.dialer import Dialer
from ringfence.transport.settings import Settings
from ringfence.transport.tls.certificates import ClientTls, ServerTls
from ringfence.wire.errors import ErrorCode

__all__ = ["Endpoint", "OnBug"]

OnBug: TypeAlias = Callable[[Exception], None]
"""Function that receives exceptions of our own code; must not raise."""


class Endpoint:
    """QUIC endpoint for incoming and outgoing connections on one port. `now` is in monotonic
    seconds.

    After each call, send what `datagrams_to_send` returns and call `tick` by `next_deadline`.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        on_bug: OnBug,
        client: ClientTls | None = None,
        server: ServerTls | None = None,
        accept: Accept | None = None,
        reset_secret: bytes = b"",
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """`reset_secret` belongs to this node only and stays the same after a restart; see
        `UdpTransport`."""
        self._settings = settings
        self._on_bug = on_bug
        self._accept = accept
        self._on_sealed: OnSealed | None = None
        self.refusals: Counter[str] = Counter()
        """Number of rejected inputs, by cause."""
        secret = reset_secret or (entropy(32) if server is None else server.key_pem)
        self._reset_key = hmac.digest(secret, b"ringfence stateless reset", "sha256")
        self._acceptor = Acceptor(entropy, self._reset_key)
        self._failed_handshakes = HandshakePressure(settings)
        self._table = ConnectionTable(max_draining=settings.max_half_open)
        self._timers = ConnectionTimers(self._table.all)
        self.new_deadline = self._timers.new_deadline
        """Returns the next deadline if it may have become earlier since the last call."""
        self._sendable: dict[QuicConnection, None] = {}
        self._replies: Datagrams = []
        self.dialer = Dialer(settings, client or ClientTls(), self._table, self)
        self._set_server_tls(server)

    def change_tls(self, client: ClientTls, server: ServerTls | None) -> None:
        """Use other certificates for connections that start from now on."""
        self.dialer.change_tls(client)
        self._set_server_tls(server)

    @property
    def half_open(self) -> int:
        """Number of incoming connections whose handshake is not done."""
        return len(self._table.half_open)

    @property
    def connections(self) -> int:
        """Number of connections that are open or in their handshake, in both directions."""
        return len(self._table)

    def receive_established(self, data: bytes, addr: Address, now: float) -> bool:
        """Process a packet of an open connection; return False for any other datagram.

        Nearly all datagrams are of this kind, and this method takes the fewest steps for them.
        """
        connection = self._table.by_cid.get(data[1 : 1 + CID_LENGTH])
        if connection is None or connection.state is not State.OPEN or data[0] & 0xC0 != 0x40:
            return False
        connection.receive(data, addr, now)
        return True

    def receive_datagram(self, data: bytes, addr: Address, now: float) -> None:
        """Process the payload of one UDP datagram; never raises, for any bytes."""
        self._table.dispose_removed()
        if not data:
            self.refusals["empty"] += 1
        elif not data[0] & 0x40:
            self._receive_sealed(data, addr)
        elif data[0] & 0x80:
            self._receive_long_header(data, addr, now)
        else:
            connection = self._table.by_cid.get(data[1 : 1 + CID_LENGTH])
            if connection is None:
                self._receive_unroutable(data, addr)
            else:
                self._deliver(connection, data, addr, now)

    def receive_sealed(self, handler: OnSealed | None) -> None:
        """Pass each datagram that is not QUIC to `handler`; with None, refuse such datagrams."""
        self._on_sealed = handler

    def is_handshake(self, data: bytes) -> bool:
        """Whether a datagram belongs to a handshake or to no connection at all."""
        if not data or not data[0] & 0x40:
            return False
        if data[0] & 0x80:
            return True
        connection = self._table.by_cid.get(data[1 : 1 + CID_LENGTH])
        return connection is not None and connection.state is State.CONNECTING

    def on_unreachable(self, addr: Address, quoted: bytes, now: float) -> None:
        """Handle a report of the network that no process listens at `addr`.

        `quoted` is the beginning of the datagram that came back. A report about a datagram that
        this endpoint did not send is ignored, so that only hosts on the path can end a connection.
        """
        for connection in [c for c in self._table.all if c.path == addr and c.has_sent(quoted)]:
            self.dialer.on_unreachable(connection, now)

    def tick(self, now: float) -> None:
        """Run the timers of connections that are due; has no effect when called early."""
        self._table.dispose_removed()
        while (connection := self._timers.take_due(now)) is not None:
            if connection in self._sendable and connection.state is State.CLOSED:
                continue  # Its close has not left; `datagrams_to_send` will set the next timer.
            deadline = connection.next_deadline()
            if deadline > now:
                self._timers.schedule(connection, deadline)
            elif now < connection.attempt_deadline:
                connection.tick(now)
            elif connection.is_incoming:
                self.refusals["handshake_timeout"] += 1
                self._discard(connection, "handshake timed out")
            else:
                self.dialer.on_attempt_timeout(connection, now)

    def next_deadline(self, soon: float = -inf) -> float | None:
        """Return when `tick` must be called next; after `soon` it may be a little too early."""
        return self._timers.next_deadline(soon)

    def datagrams_to_send(self, now: float) -> Datagrams:
        """Return the datagrams that can be sent now, of all connections that have any."""
        datagrams, self._replies = self._replies, []
        while self._sendable:
            connection = next(iter(self._sendable))
            del self._sendable[connection]
            datagrams += connection.datagrams_to_send(now)
            self.on_deadline_changed(connection)
        return datagrams

    def close_all(self, code: int = ErrorCode.DRAINING, reason: str = "") -> None:
        """Close every connection; `datagrams_to_send` returns the closing datagrams."""
        for connection in list(self._table.all):
            connection.close(code, reason or "shutting down")

    # Events of connections.

    def on_sendable(self, connection: QuicConnection) -> None:
        """Record that the connection may have datagrams to send."""
        self._sendable[connection] = None

    def on_deadline_changed(self, connection: QuicConnection) -> None:
        """Update the deadline of the connection in the timer heap."""
        deadline = connection.next_deadline()
        if connection.state is State.CLOSED and (deadline == inf or not connection.is_incoming):
            self._remove(connection)
        else:
            self._timers.schedule(connection, deadline)

    def on_cid_added(self, cid: bytes, connection: QuicConnection) -> None:
        """Route datagrams for the connection id `cid` to the connection."""
        self._table.add_cid(cid, connection)

    def on_cid_removed(self, cid: bytes) -> None:
        """Stop routing datagrams for the connection id `cid`."""
        self._table.remove_cid(cid)

    def on_open(self, connection: QuicConnection) -> Handler | None:
        """Return the handler for a connection whose handshake is done; None to refuse it."""
        self._table.set_open(connection)
        if not connection.is_incoming or self._accept is None:
            return None
        try:
            return self._accept(connection)
        except Exception as error:  # noqa: BLE001 - as for any call of a handler.
            self.count_refusal("handler_failed")
            self.report(error)
            return None

    def on_closed(self, connection: QuicConnection) -> None:
        """Record in the connection table that a connection is closed."""
        if self._table.set_closed(connection):
            self._failed_handshakes.count_failure()
        self.on_sendable(connection)

    def count_refusal(self, cause: str) -> None:
        """Count a rejected datagram or connection, by cause."""
        self.refusals[cause] += 1

    def report(self, error: Exception) -> None:
        """Report an exception raised by Ringfence or aioquic."""
        self._on_bug(error)

    # Incoming datagrams.

    def _receive_unroutable(self, data: bytes, addr: Address) -> None:
        """Handle a packet with a short header and an unknown connection id.

        It is either a stateless reset from the peer, or this endpoint answers it with one.
        """
        connection = self._table.by_reset_token.get(data[-16:])
        if connection is not None and connection.path == addr:
            text = f"{format_address(addr)} has restarted and has lost this connection"
            reason = CloseReason(TransportCode.UNREACHABLE, text)
            connection.terminate(reason, notify_peer=False)
            return
        self.refusals["unknown_connection"] += 1
        reset = None if self._server is None else self._acceptor.stateless_reset(data)
        if reset is not None:
            self._replies.append((reset, addr))

    def _receive_sealed(self, data: bytes, addr: Address) -> None:
        if self._on_sealed is None:
            self.refusals["not_quic"] += 1
            return
        try:
            self._on_sealed(data, addr)
        except Exception as error:  # noqa: BLE001 - as for any call of a handler.
            self.report(error)

    def _receive_long_header(self, data: bytes, addr: Address, now: float) -> None:
        try:
            header = parse_header(data)
        except ValueError:
            self.refusals["malformed_header"] += 1
            return
        connection = self._table.by_cid.get(header.destination_cid)
        if connection is not None:
            self._deliver(connection, data, addr, now)
            return
        if self._server is None:
            self.refusals["unknown_connection"] += 1
            return
        pressure = len(self._table.half_open) + self._failed_handshakes.current(now)
        verdict = self._acceptor.classify(
            header,
            len(data),
            addr,
            now,
            require_retry=pressure >= self._settings.retry_above,
            is_full=len(self._table.established) >= self._settings.max_connections,
        )
        match verdict:
            case Admit():
                connection = self._admit(verdict, header.destination_cid, addr, now)
                self._deliver(connection, data, addr, now)
            case Reply(datagram, cause):
                self.refusals[cause] += 1
                self._replies.append((datagram, addr))
            case Drop(cause):
                self.refusals[cause] += 1

    def _admit(self, verdict: Admit, cid: bytes, addr: Address, now: float) -> QuicConnection:
        """Create an incoming connection; if there are too many, close the oldest unfinished
        handshake."""
        assert self._server is not None
        if len(self._table.half_open) >= self._settings.max_half_open:
            self.refusals["half_open_full"] += 1
            self._discard(next(iter(self._table.half_open)), "another handshake took its place")
        deadline = now + self._settings.handshake_timeout
        connection = QuicConnection(self, addr, self._settings, deadline=deadline)
        self._table.add(connection)
        quic = AioquicConnection(
            self._server[is_loopback(addr)],
            window=self._settings.untrusted_receive_window,
            original_cid=verdict.original_cid,
            retry_cid=verdict.retry_cid,
            reset_key=self._reset_key,
            use_fast_path=self._settings.use_fast_path,
        )
        connection.start(quic, addr)
        self._table.add_cid(cid, connection)
        return connection

    def _deliver(self, connection: QuicConnection, data: bytes, addr: Address, now: float) -> None:
        if connection.quic is None:
            return
        connection.receive(data, addr, now)
        quic = connection.quic
        if connection.is_incoming and quic is not None and not quic.has_decrypted_packet:
            self.refusals["bad_initial"] += 1
            self._discard(connection, "not an Initial packet")

    # Bookkeeping.

    def _set_server_tls(self, server: ServerTls | None) -> None:
        self._server = (
            None
            if server is None or self._accept is None
            else [
                server_configuration(server, self._settings.for_path(is_loopback=loopback))
                for loopback in (False, True)
            ]
        )

    def _discard(self, connection: QuicConnection, reason: str) -> None:
        """Close and remove an incoming handshake without notice to the peer."""
        closing = CloseReason(TransportCode.HANDSHAKE_TIMEOUT, reason)
        connection.terminate(closing, notify_peer=False)
        self._remove(connection)

    def _remove(self, connection: QuicConnection) -> None:
        self._table.remove(connection)
        self._sendable.pop(connection, None)
