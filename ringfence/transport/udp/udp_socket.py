"""UDP socket of a transport: binding, sending, and one form of addresses for IPv4 and IPv6."""

import errno
import select
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress

from ringfence.errors import ConfigError
from ringfence.runtime.caller_loop.interrupts import suppress_system_errors
from ringfence.transport.addresses import listen_error
from ringfence.transport.interface import Address
from ringfence.transport.udp.icmp_errors import enable_icmp_errors

__all__ = ["AddressInfo", "UdpSocket", "plain_address"]

_BUFFER_SIZE = 4 << 20
"""Requested kernel buffer, which holds bursts while Python is busy; the kernel may grant less."""

AddressInfo = tuple[object, object, object, object, tuple[object, ...]]
"""One row of `getaddrinfo`."""


class UdpSocket:
    """Bound UDP socket. An IPv6 socket also carries IPv4."""

    def __init__(
        self, sock: socket.socket, refusals: Counter[str], on_unroutable: Callable[..., None]
    ) -> None:
        """`on_unroutable` is called when there is no route, with the address and the datagram's
        beginning.

        Failures to send are counted in `refusals`.
        """
        self.raw = sock
        self.is_ipv6 = sock.family == socket.AF_INET6
        self._refusals = refusals
        self._on_unroutable = on_unroutable

    @classmethod
    def open(
        cls,
        bind: Address | None,
        rows: Iterable[AddressInfo],
        refusals: Counter[str],
        on_unroutable: Callable[..., None],
    ) -> "UdpSocket":
        """Bind the socket to the first address in `rows` that works, or to any port when there are
        none.

        Raises `ConfigError`, which names the address and how to fix the problem.
        """
        targets = [plain_address(row[4]) for row in rows]
        targets = targets or [("::", 0), ("0.0.0.0", 0)]  # noqa: S104
        failure: OSError | None = None
        for target in targets:
            try:
                sock = _bind(target)
            except OSError as error:
                failure = failure or error
                continue
            enable_icmp_errors(sock)
            return cls(sock, refusals, on_unroutable)
        assert failure is not None
        raise ConfigError(listen_error(bind or targets[0], failure, "UDP")) from failure

    @property
    def address(self) -> Address:
        """Local address of the socket."""
        return plain_address(self.raw.getsockname())

    def send(self, datagram: bytes, address: Address) -> None:
        """Send a datagram to a numeric address. If that fails, the datagram is lost."""
        host, port = address
        if self.is_ipv6 and ":" not in host:
            host = f"::ffff:{host}"
        try:
            self.raw.sendto(datagram, (host, port))
        except BlockingIOError:
            self._refusals["send_buffer_full"] += 1  # QUIC sends the data again.
        except ConnectionRefusedError:
            # The kernel reports an earlier datagram's failure here, and has not sent this one.
            with suppress_system_errors():
                self.raw.sendto(datagram, (host, port))
        except OSError as error:
            if error.errno is None:
                raise  # A signal handler has raised it.
            self._refusals["send_failed"] += 1
            if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EAFNOSUPPORT):
                self._on_unroutable(address, datagram[:64])

    def has_datagrams(self) -> bool:
        """Return whether datagrams wait to be read."""
        poll = select.poll()
        poll.register(self.raw, select.POLLIN)
        return any([events & select.POLLIN for _, events in poll.poll(0)])

    def usable(self, rows: Iterable[AddressInfo]) -> list[Address]:
        """Return the given addresses to which this socket can send, without duplicates, `::1` last.

        Nodes listen on 127.0.0.1 by default, but many hosts resolve localhost to ::1 first.
        """
        addresses = [plain_address(row[4]) for row in rows]
        usable = [a for a in dict.fromkeys(addresses) if self.is_ipv6 or ":" not in a[0]]
        return sorted(usable, key=lambda address: address[0] == "::1")

    def close(self) -> None:
        """Close the UDP socket."""
        self.raw.close()


def plain_address(address: tuple[object, ...]) -> Address:
    """Return a socket's address as host and port; IPv4 within IPv6 becomes IPv4."""
    host, port, *rest = address
    assert isinstance(host, str)
    assert isinstance(port, int)
    if host.startswith("::ffff:"):
        host = host[7:]
    elif rest and rest[-1] and "%" not in host:
        host = f"{host}%{rest[-1]}"
    return host, port


def _bind(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_SIZE)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock
