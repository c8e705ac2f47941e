"""Common base of the UDP transports, without the waiting: socket, QUIC endpoint and scheduled
calls.

Passes datagrams between socket and endpoint and translates socket errors. `udp_trio` and
`udp_asyncio` add the waiting.

A node on a host with several addresses should listen on one of them by name. A socket bound to
0.0.0.0 or :: answers from the address that the kernel's routes choose, and a peer that sent to
another address ignores the answer.
"""

import socket
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from math import inf

from ringfence.errors import LocalProtocolError
from ringfence.runtime.timers import Timers
from ringfence.transport.addresses import numeric_host
from ringfence.transport.close_reason import CloseReason, TransportCode
from ringfence.transport.interface import (
    Accept,
    Address,
    Connection,
    Handler,
    OnSealed,
    Timer,
    check_sealed,
)
from ringfence.transport.quic.connection import QuicConnection
from ringfence.transport.quic.endpoint import Endpoint, OnBug
from ringfence.transport.settings import Settings
from ringfence.transport.tls.certificates import ClientTls, ServerTls
from ringfence.transport.udp.icmp_errors import read_icmp_errors
from ringfence.transport.udp.name_cache import NameCache
from ringfence.transport.udp.receive_delay import MEASURE_ALL_NS, STAMP_SPACE, ReceiveDelay
from ringfence.transport.udp.turn_length import MIN_TURN, TurnLength
from ringfence.transport.udp.udp_socket import AddressInfo, UdpSocket, plain_address

__all__ = ["AddressInfo", "UdpTransport"]

_MAX_BATCH = 64
"""Datagrams read in the shortest turn; a longer turn reads more in proportion."""

_MAX_HANDSHAKE_QUEUE = 512
"""Queued datagrams of handshakes; further ones are dropped, and QUIC repeats them."""

_JUST_ARRIVED_NS = 200_000
"""Time in the socket below which this process is not busy, so that few datagrams wait."""

_READ_SIZE = 16384
"""Bytes read of a datagram. No peer sends a longer one, so the rest of it may be lost."""


class UdpTransport(ABC):
    """Transport over one UDP socket; all calls must come from one thread."""

    _flushed_at = -inf
    """Time of the last flush."""
    _ends_burst = 0
    """Size below which a datagram is taken for the last one of a burst, if it has just arrived: no
    read follows it."""

    def __init__(
        self,
        bind: Address | None = None,
        *,
        on_bug: OnBug,
        settings: Settings | None = None,
        client: ClientTls | None = None,
        server: ServerTls | None = None,
        accept: Accept | None = None,
        reset_secret: bytes = b"",
    ) -> None:
        """`bind` is the address to listen on; a client passes None and gets any port.

        Incoming connections need both `server` and `accept`. `reset_secret` is the key of stateless
        resets (RFC 9000, section 21.11): each endpoint has its own and keeps it over restarts. When
        it is empty, it is derived from the private key of `server`.
        """
        self._bind = bind
        self.report = on_bug
        """Function that gets each exception of a handler or call; see `Transport.report`."""
        self._endpoint = Endpoint(
            settings=settings or Settings(),
            on_bug=on_bug,
            client=client,
            server=server,
            accept=accept,
            reset_secret=reset_secret,
        )
        self._socket: UdpSocket | None = None
        self._timers = Timers()
        self._soon: list[Callable[[], None]] = []
        self._names = NameCache(self._refresh_name)
        self._handshakes: deque[tuple[bytes, Address]] = deque()
        """Datagrams of handshakes. Each costs milliseconds, so one at a time is processed, after
        those of open connections."""
        self._reading, self._calling = TurnLength(), TurnLength()
        self._delay = ReceiveDelay()
        self._has_stamps = False
        self.held_up_ns = 0
        """Time that the datagram of the current call waited in the kernel; see `Transport`."""

    @property
    def address(self) -> Address:
        """Local address, available while `run` is running."""
        if self._socket is None:
            raise LocalProtocolError("the transport must be running; start `run` first")
        return self._socket.address

    @property
    def refusals(self) -> Counter[str]:
        """Number of rejected datagrams and connections, by cause."""
        return self._endpoint.refusals

    @property
    def connections(self) -> int:
        """Number of connections that are open or in their handshake, in both directions."""
        return self._endpoint.connections

    @abstractmethod
    def now(self) -> float:
        """Return monotonic seconds; only differences between two values have a meaning."""

    @abstractmethod
    def _resolve(self, address: Address, then: Callable[[list[AddressInfo]], None]) -> None:
        """Resolve a host name in a separate task; call `then` with its addresses, none if that
        fails."""

    @abstractmethod
    def _wake_flusher(self) -> None:
        """Wake the task that runs `_run_soon`; repeated calls count as one."""

    @abstractmethod
    def _wake_by(self, deadline: float) -> None:
        """Make sure that the task that runs `_tick` wakes at `deadline` or earlier.

        A task that runs `_tick` reads `_next_deadline` afterwards, which may have been set before.
        """

    def change_tls(self, client: ClientTls, server: ServerTls) -> None:
        """Use other certificates for new connections; established ones are not affected."""
        self._endpoint.change_tls(client, server)

    def connect(self, address: Address, handler: Handler, node: str = "") -> Connection:
        """Start to connect to an address. A host name is resolved first, and its addresses are
        tried in order."""
        if self._socket is None:
            raise LocalProtocolError("the transport must be running; start `run` first")
        dialer = self._endpoint.dialer
        connection = dialer.prepare(address, handler, self.now(), node)
        host = numeric_host(address[0])
        if host is None:
            self._resolve(address, partial(self._begin, connection))
            self.call_soon(self.flush)  # Sets the deadline, which a slow name server may miss.
        else:
            # The first message of a handshake costs a millisecond, and a caller may connect to
            # several peers.
            self.call_soon(partial(dialer.begin, connection, [(host, address[1])], self.now()))
        return connection

    def receive_sealed(self, handler: OnSealed | None) -> None:
        """Pass each received sealed (encrypted) datagram to `handler`; with None, refuse such
        datagrams."""
        self._endpoint.receive_sealed(handler)

    def send_sealed(self, datagram: bytes, address: Address) -> None:
        """Send one sealed datagram without a connection.

        A datagram to a name is lost until the name has been resolved.
        """
        check_sealed(datagram)
        if self._socket is None:
            return
        host = numeric_host(address[0])
        if host is not None:
            self._socket.send(datagram, (host, address[1]))
        elif (target := self._names.lookup(address, self.now())) is not None:
            self._socket.send(datagram, target)

    def flush(self) -> None:
        """Send all messages that handlers and callers have queued."""
        if self._socket is None:
            return
        send = self._socket.send
        self._flushed_at = now = self.now()
        for datagram, address in self._endpoint.datagrams_to_send(now):
            send(datagram, address)
        deadline = self._endpoint.new_deadline()
        if deadline is not None:
            self._wake_by(deadline)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Schedule `call` to run after the tasks that are ready now, followed by a flush."""
        self._soon.append(call)
        self._wake_flusher()

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Schedule `call` for the instant `when`, followed by a flush."""
        timer = self._timers.plan(when, call)
        self._wake_by(when)
        return timer

    def _read(self) -> None:
        """Process received datagrams, and send the answers."""
        self._receive_batch()
        self.flush()

    def _tick(self) -> None:
        """Process received datagrams, run the timers that are due, and send the resulting
        datagrams."""
        self._receive_batch()
        now = self.now()
        self._endpoint.tick(now)
        self._run_calls([timer.run for timer in self._timers.take_due(now)])

    def _run_soon(self) -> None:
        calls, self._soon = self._soon, []
        self._run_calls(calls)

    def _run_calls(self, calls: list[Callable[[], None]]) -> None:
        """Make calls, then flush. After a turn, the remaining calls wait until other tasks have
        run."""
        now = self.now()
        until = now + self._calling.begin(now)
        for number, call in enumerate(calls, 1):
            self._contain(call)
            if number < len(calls) and (now := self.now()) > until:
                self._calling.end(now, is_done=False)
                self._soon[:0] = calls[number:]
                self._wake_flusher()
                break
        self.flush()

    def _contain(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - one caller's bug must not stop the others.
            self.report(error)

    def _next_deadline(self, soon: float = -inf) -> float | None:
        """Return when `_tick` must be called; after `soon` it may be a little too early."""
        first, second = self._endpoint.next_deadline(soon), self._timers.next_deadline()
        if first is None or second is None:
            return second if first is None else first
        return min(first, second)

    def _begin(self, connection: QuicConnection, rows: Iterable[AddressInfo]) -> None:
        """Start the handshake with the resolved addresses of a name, or fail when there are
        none."""
        usable = [] if self._socket is None else self._socket.usable(rows)
        if usable:
            self._endpoint.dialer.begin(connection, usable, self.now())
        else:
            reason = f"the name {connection.address[0]!r} has no address that this host can use"
            self._endpoint.dialer.fail(connection, CloseReason(TransportCode.UNREACHABLE, reason))
        self.flush()

    def _refresh_name(self, address: Address) -> None:
        def store(rows: Iterable[AddressInfo]) -> None:
            usable = [] if self._socket is None else self._socket.usable(rows)
            if not usable:
                self.refusals["name_not_resolved"] += 1
            self._names.store(address, usable[0] if usable else None, self.now())

        self._resolve(address, store)

    def _open(self, rows: Iterable[AddressInfo]) -> socket.socket:
        """Open the socket, bound to the first address in `rows` that works. Raises
        `ConfigError`."""
        self._socket = UdpSocket.open(self._bind, rows, self.refusals, self._on_unroutable)
        self._has_stamps = self._delay.enable_stamps(self._socket.raw)
        return self._socket.raw

    def _close(self) -> None:
        """Close every connection and the socket."""
        self._endpoint.close_all()
        self.flush()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._handshakes.clear()

    def _receive_batch(self) -> None:
        """Read datagrams from the socket and pass them to the endpoint, for one turn."""
        assert self._socket is not None
        sock, is_ipv6 = self._socket.raw, self._socket.is_ipv6
        endpoint = self._endpoint
        now = self.now()
        turn = self._reading.begin(now)
        self.held_up_ns = 0
        for count in range(round(_MAX_BATCH * turn / MIN_TURN)):
            try:
                if self._has_stamps and (not count or self.held_up_ns >= MEASURE_ALL_NS):
                    datagram, ancillary, _, sender = sock.recvmsg(_READ_SIZE, STAMP_SPACE)
                    self.held_up_ns = self._delay.measure(ancillary)
                else:
                    datagram, sender = sock.recvfrom(_READ_SIZE)
            except BlockingIOError:
                if not count:
                    # A queued ICMP error wakes the reader without a datagram, again and again.
                    self._process_icmp_errors(sock, now)
                return
            except OSError as error:
                if error.errno is None:
                    raise  # A signal handler has raised it.
                self._process_icmp_errors(sock, now)
                continue
            address = plain_address(sender) if is_ipv6 else sender
            if endpoint.receive_established(datagram, address, now):
                pass
            elif endpoint.is_handshake(datagram):
                self._queue_handshake(datagram, address)
            else:
                endpoint.receive_datagram(datagram, address, now)
            if len(datagram) < self._ends_burst and self.held_up_ns < _JUST_ARRIVED_NS:
                return
            if self.now() - now > turn:
                break
        self._reading.end(self.now(), is_done=not self._socket.has_datagrams())

    def _queue_handshake(self, datagram: bytes, address: Address) -> None:
        """Queue a datagram of a handshake, so that open connections are served first."""
        if len(self._handshakes) >= _MAX_HANDSHAKE_QUEUE:
            self.refusals["handshakes_waiting"] += 1
            return
        self._handshakes.append((datagram, address))
        if len(self._handshakes) == 1:
            self.call_soon(self._process_handshake)

    def _process_handshake(self) -> None:
        datagram, address = self._handshakes.popleft()
        if self._handshakes:
            self.call_soon(self._process_handshake)
        self.held_up_ns = 0
        self._endpoint.receive_datagram(datagram, address, self.now())

    def _process_icmp_errors(self, sock: socket.socket, now: float) -> None:
        for address, quoted in read_icmp_errors(sock):
            if isinstance(address, tuple):
                self._endpoint.on_unreachable(plain_address(address), quoted, now)

    def _on_unroutable(self, address: Address, quoted: bytes) -> None:
        """Report an unreachable address in a later call, because the caller may still be
        sending."""
        self.call_soon(partial(self._endpoint.on_unreachable, address, quoted, self.now()))
