"""The half of the UDP shells that does not wait: one socket, an endpoint, and calls for later.

Decides how datagrams get from the socket to the endpoint and back, and what socket errors mean.
Waiting, and with it the choice between trio and anyio, is left to `udp_trio` and `udp_asyncio`.

A node on a host with several addresses should listen on one of them by name: a socket bound to
0.0.0.0 or :: answers from whichever address the kernel's routes choose, and a peer that asked
another one does not believe it.
"""

import errno
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from struct import Struct

from ringfence.errors import ConfigError, LocalProtocolError
from ringfence.runtime.timers import Timers
from ringfence.transport.close_reason import CloseReason, TransportCode, text_of
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
from ringfence.transport.quic.endpoint import Endpoint, OnBug, numeric
from ringfence.transport.settings import Settings
from ringfence.transport.tls.certificates import ClientTls, ServerTls
from ringfence.transport.udp.icmp_errors import listen_for_errors, read_errors

__all__ = ["AddressInfo", "UdpTransport"]

_BATCH = 64
"""Datagrams read before other tasks get their turn."""

_HANDSHAKES = 512
"""Datagrams of handshakes that wait for their turn; beyond that they are lost, and sent again."""

_LARGEST = 16384
"""More than any peer sends in one datagram; of a larger one the rest is lost, so it is junk."""

_NAME_HOLDS = 30.0
"""Seconds until a name that datagrams go to is looked up again."""
_NAME_FAILS = 1.0
"""Seconds until a name that could not be looked up is tried again."""
_MOST_NAMES = 4096

_SOCKET_BUFFER = 4 << 20
"""Asked of the kernel, which may grant less: bursts wait there while Python is busy."""

_SO_TIMESTAMPNS = 35
"""Linux: the kernel notes on each datagram when it came. The `socket` module does not name it."""
_STAMP = Struct("@ll")
"""Layout of a time stamp: seconds and nanoseconds on the wall clock."""
_STAMP_SPACE = socket.CMSG_SPACE(_STAMP.size) if hasattr(socket, "CMSG_SPACE") else 0
_BEHIND_NS = 1_000_000
"""From such a wait on, the waits of all datagrams of a read are measured; below, of the first."""

AddressInfo = tuple[object, object, object, object, tuple[object, ...]]
"""One row of `getaddrinfo`."""


class UdpTransport(ABC):
    """A `Transport` over one UDP socket; used from one task's thread only."""

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
        """`bind` is the address to listen on; None, for a client, is any port of this host.

        Connections come in only with both `server` and `accept`. `reset_secret` is the key of
        stateless resets (RFC 9000, section 21.11): no other endpoint may have it, and a restarted
        one must have it again. Empty, it follows from the private key of `server`.
        """
        self._bind = bind
        self._endpoint = Endpoint(
            settings=settings or Settings(),
            on_bug=on_bug,
            client=client,
            server=server,
            accept=accept,
            reset_secret=reset_secret,
        )
        self._on_bug = on_bug
        self._socket: socket.socket | None = None
        self._is_ipv6 = False
        self._timers = Timers()
        self._soon: list[Callable[[], None]] = []
        self._handshakes: deque[tuple[bytes, Address]] = deque()
        """Datagrams of connections that are not open yet. Each costs milliseconds, so one is read
        in a turn, and those of open connections first."""
        self.held_up_ns = 0
        """See `Transport`."""
        self._stamps = False
        """Whether the kernel notes when datagrams come."""
        self._wall_offset_ns = 0
        """By how much the wall clock was ahead of the monotonic one when last compared."""
        self._resolved: OrderedDict[Address, tuple[float, Address | None]] = OrderedDict()
        """Numeric addresses of names that datagrams were sent to, and until when they hold; None
        as long as a name has not been looked up."""

    @property
    def address(self) -> Address:
        """The bound address, known once `run` has started."""
        if self._socket is None:
            raise LocalProtocolError("the transport is not running")
        return self._plain(self._socket.getsockname())

    @property
    def refusals(self) -> Counter[str]:
        """How often something was not accepted, by cause."""
        return self._endpoint.refusals

    @property
    def connections(self) -> int:
        """Connections that are open or becoming so, in both directions."""
        return self._endpoint.connections

    @abstractmethod
    def now(self) -> float:
        """Monotonic seconds; only differences mean anything."""

    @abstractmethod
    def _look_up(self, address: Address, then: Callable[[list[AddressInfo]], None]) -> None:
        """Have a task call `then` with what `getaddrinfo` says of an address: nothing, in doubt."""

    @abstractmethod
    def _wake_flusher(self) -> None:
        """Let the task that runs `_run_soon` go on; more than one call is one."""

    @abstractmethod
    def _wait_no_longer_than(self, deadline: float) -> None:
        """Let the task that does what is due wake by `deadline`."""

    def change_tls(self, client: ClientTls, server: ServerTls) -> None:
        """Use other certificates from now on; connections that stand are not concerned."""
        self._endpoint.change_tls(client, server)

    def connect(self, address: Address, handler: Handler, node: str = "") -> Connection:
        """Begin a connection; a name is resolved meanwhile, and its addresses tried in turn."""
        if self._socket is None:
            raise LocalProtocolError("the transport is not running")
        pipe = self._endpoint.prepare(address, handler, self.now(), node)
        host = numeric(address[0])
        if host is None:
            self._look_up(address, partial(self._resolve, pipe))
        else:
            self._endpoint.begin(pipe, [(host, address[1])], self.now())
        self.call_soon(_nothing)  # Whoever forgets to flush still gets its datagram out.
        return pipe

    @property
    def on_sealed(self) -> OnSealed | None:
        """See `Transport`."""
        return self._endpoint.on_sealed

    @on_sealed.setter
    def on_sealed(self, call: OnSealed | None) -> None:
        self._endpoint.on_sealed = call

    def send_sealed(self, datagram: bytes, address: Address) -> None:
        """See `Transport`. To a name it is lost until the name has been looked up."""
        check_sealed(datagram)
        sock = self._socket
        if sock is None:
            return
        host = numeric(address[0])
        target = (host, address[1]) if host is not None else self._numeric_of(address)
        if target is not None:
            self._send(sock, datagram, target)

    def _numeric_of(self, address: Address) -> Address | None:
        """What a name stood for lately; when that is not known, begin to look it up."""
        until, known = self._resolved.get(address, (0.0, None))
        if self.now() >= until:
            self._resolved[address] = self.now() + _NAME_HOLDS, known
            self._look_up(address, partial(self._learn, address))
            while len(self._resolved) > _MOST_NAMES:
                self._resolved.popitem(last=False)
        return known

    def _learn(self, address: Address, rows: Iterable[AddressInfo]) -> None:
        if address not in self._resolved:
            return
        until, known = self._resolved[address]
        usable = self._usable(rows)
        if usable:
            self._resolved[address] = until, usable[0]
        else:
            self.refusals["name_not_resolved"] += 1
            self._resolved[address] = self.now() + _NAME_FAILS, known

    def flush(self) -> None:
        """Send now what handlers and callers have queued."""
        sock = self._socket
        if sock is None:
            return
        for datagram, address in self._endpoint.datagrams_to_send(self.now()):
            self._send(sock, datagram, address)
        deadline = self._next_deadline()
        if deadline is not None:
            self._wait_no_longer_than(deadline)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Make `call` once all tasks that are ready now have run; then flush."""
        self._soon.append(call)
        self._wake_flusher()

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Make `call` at `when` on the clock of `now`; then flush."""
        timer = self._timers.plan(when, call)
        self._wait_no_longer_than(when)
        return timer

    def report(self, error: Exception) -> None:
        """See `Transport`."""
        self._on_bug(error)

    def _read(self) -> None:
        """Take what came, send what follows from it."""
        self._drain()
        self.flush()

    def _tick(self) -> None:
        """Do what is due, send what follows from it; what came meanwhile goes first."""
        self._drain()
        now = self.now()
        self._endpoint.tick(now)
        for planned in self._timers.take_due(now):
            if planned.call is not None:
                self._make(planned.call)
        self.flush()

    def _run_soon(self) -> None:
        calls, self._soon = self._soon, []
        for call in calls:
            self._make(call)
        self.flush()

    def _make(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - one caller's bug must not stop the others.
            self._on_bug(error)

    def _next_deadline(self) -> float | None:
        first, second = self._endpoint.next_deadline(), self._timers.next_deadline()
        if first is None or second is None:
            return second if first is None else first
        return min(first, second)

    def _resolve(self, pipe: QuicConnection, rows: Iterable[AddressInfo]) -> None:
        """Begin the connection that waited for these addresses; none at all is a failure."""
        usable = self._usable(rows)
        if usable:
            self._endpoint.begin(pipe, usable, self.now())
        else:
            reason = f"the name {pipe.address[0]!r} has no address that this host can use"
            self._endpoint.fail(pipe, CloseReason(TransportCode.UNREACHABLE, reason))
        self.flush()

    def _usable(self, rows: Iterable[AddressInfo]) -> list[Address]:
        addresses = [self._plain(row[4]) for row in rows]
        usable = [a for a in dict.fromkeys(addresses) if self._is_ipv6 or ":" not in a[0]]
        # Nodes listen on 127.0.0.1 by default, but many hosts resolve localhost to ::1 first.
        return sorted(usable, key=lambda address: address[0] == "::1")

    def _open(self, rows: Iterable[AddressInfo]) -> socket.socket:
        """Make the socket, bound to the first of `rows` that works, or to any port.

        Raises `ConfigError` naming the address and the mend.
        """
        targets = [self._plain(row[4]) for row in rows] or [("::", 0), ("0.0.0.0", 0)]  # noqa: S104
        failure: OSError | None = None
        for target in targets:
            try:
                sock = _bound(target)
            except OSError as error:
                failure = failure or error
                continue
            self._is_ipv6 = sock.family == socket.AF_INET6
            self._socket = sock
            self._stamps = _ask_for_stamps(sock)
            self._wall_offset_ns = time.time_ns() - time.monotonic_ns()
            listen_for_errors(sock)
            return sock
        assert failure is not None
        raise ConfigError(_why_not_bound(self._bind or targets[0], failure)) from failure

    def _close(self) -> None:
        """Say goodbye to every peer and give the socket up."""
        self._endpoint.close_all(self.now())
        self.flush()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._handshakes.clear()

    def _drain(self) -> None:
        sock = self._socket
        assert sock is not None
        receive, is_handshake = self._endpoint.receive_datagram, self._endpoint.is_handshake
        now = self.now()
        self.held_up_ns = 0
        for count in range(_BATCH):
            try:
                if self._stamps and (not count or self.held_up_ns >= _BEHIND_NS):
                    datagram, notes, _, sender = sock.recvmsg(_LARGEST, _STAMP_SPACE)
                    self.held_up_ns = self._wait_of(notes)
                else:
                    datagram, sender = sock.recvfrom(_LARGEST)
            except BlockingIOError:
                if not count:
                    # Woken for nothing: an error wakes the reader too, and would go on doing so.
                    self._take_errors(sock, now)
                return
            except OSError:
                self._take_errors(sock, now)
                continue
            address = self._plain(sender) if self._is_ipv6 else sender
            if is_handshake(datagram):
                self._put_off(datagram, address)
            else:
                receive(datagram, address, now)

    def _put_off(self, datagram: bytes, address: Address) -> None:
        """Read a datagram of a handshake in a turn of its own."""
        if len(self._handshakes) >= _HANDSHAKES:
            self.refusals["handshakes_waiting"] += 1
            return
        self._handshakes.append((datagram, address))
        if len(self._handshakes) == 1:
            self.call_soon(self._take_handshake)

    def _take_handshake(self) -> None:
        datagram, address = self._handshakes.popleft()
        if self._handshakes:
            self.call_soon(self._take_handshake)
        self.held_up_ns = 0
        self._endpoint.receive_datagram(datagram, address, self.now())

    def _wait_of(self, notes: list[tuple[int, int, bytes]]) -> int:
        """Compute how long ago the kernel stamped a datagram, in nanoseconds."""
        if not notes or len(notes[0][2]) != _STAMP.size:
            return 0
        seconds, nanoseconds = _STAMP.unpack(notes[0][2])
        now = time.time_ns()
        wait: int = now - seconds * 1_000_000_000 - nanoseconds
        if wait < _BEHIND_NS:
            return max(0, wait)
        # Slewing moves both clocks alike. What the wall clock gained on the monotonic one since the
        # last look is a step, by an operator or a host that slept, and no wait.
        offset = now - time.monotonic_ns()
        step, self._wall_offset_ns = offset - self._wall_offset_ns, offset
        return max(0, wait - step) if step > _BEHIND_NS else wait

    def _take_errors(self, sock: socket.socket, now: float) -> None:
        for address, quoted in read_errors(sock):
            if isinstance(address, tuple):
                self._endpoint.unreachable(self._plain(address), quoted, now)

    def _send(self, sock: socket.socket, datagram: bytes, address: Address) -> None:
        host, port = address
        if self._is_ipv6 and ":" not in host:
            host = f"::ffff:{host}"
        try:
            sock.sendto(datagram, (host, port))
        except BlockingIOError:
            self.refusals["send_buffer_full"] += 1  # Lost like any other datagram; QUIC repeats it.
        except ConnectionRefusedError:
            # The kernel reports an earlier datagram's fate here, and has not sent this one.
            with suppress(OSError):
                sock.sendto(datagram, (host, port))
        except OSError as error:
            self.refusals["send_failed"] += 1
            if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EAFNOSUPPORT):
                lost = partial(self._endpoint.unreachable, address, datagram[:64], self.now())
                self.call_soon(lost)

    def _plain(self, address: tuple[object, ...]) -> Address:
        """Write an address of the socket's family as everyone else does."""
        host, port, *rest = address
        assert isinstance(host, str)
        assert isinstance(port, int)
        if host.startswith("::ffff:"):
            host = host[7:]
        elif rest and rest[-1] and "%" not in host:
            host = f"{host}%{rest[-1]}"
        return host, port


def _nothing() -> None:
    pass


def _ask_for_stamps(sock: socket.socket) -> bool:
    """Ask the kernel to stamp each datagram with its arrival; return whether it will."""
    if sys.platform != "linux":
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def _bound(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _why_not_bound(address: Address, error: OSError) -> str:
    where = text_of(address)
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"cannot listen on {where}: another program has this UDP port (another node?); "
                "stop it or choose another port"
            )
        case errno.EADDRNOTAVAIL:
            return f"cannot listen on {where}: no interface of this host has that address"
        case errno.EACCES | errno.EPERM:
            return f"cannot listen on {where}: not permitted; choose a port from 1024 on"
        case _:
            return f"cannot listen on {where}: {error.strerror}"
