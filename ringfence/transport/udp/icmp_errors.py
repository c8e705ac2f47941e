"""ICMP errors of a UDP socket: reports of the network about datagrams that reached no process.

Linux keeps them in a queue per socket (`man 7 ip`, IP_RECVERR). Other systems have no such queue;
there, time-outs have the same effect later.
"""

import errno
import socket
import sys
from collections.abc import Iterator
from struct import Struct

__all__ = ["enable_icmp_errors", "read_icmp_errors"]

_IP_RECVERR = 11
_IPV6_RECVERR = 25
_ORIGIN_ICMP = 2
_ORIGIN_ICMP6 = 3
_ERROR = Struct("=IBBBxII")
_MAX_ERRORS = 64


def enable_icmp_errors(sock: socket.socket) -> bool:
    """Ask the kernel to queue ICMP errors for `sock`; return whether it does."""
    if sys.platform != "linux":
        return False
    try:
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
        sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
    except OSError:
        return False
    return True


def read_icmp_errors(sock: socket.socket) -> Iterator[tuple[object, bytes]]:
    """Read up to 64 errors from the queue; yield those that report "port unreachable".

    Each item has the destination of the datagram, in the socket's form, and the beginning of the
    datagram.
    """
    for _ in range(_MAX_ERRORS):
        try:
            quoted, ancillary, _, address = sock.recvmsg(512, 512, socket.MSG_ERRQUEUE)
        except OSError as error:
            if error.errno is None:
                raise  # A signal handler has raised it.
            return  # Usually the end of the queue; a lasting error appears at the next call.
        for _level, _kind, content in ancillary:
            if len(content) < _ERROR.size:
                continue
            number, origin, *_ = _ERROR.unpack_from(content)
            if number == errno.ECONNREFUSED and origin in (_ORIGIN_ICMP, _ORIGIN_ICMP6):
                yield address, quoted
