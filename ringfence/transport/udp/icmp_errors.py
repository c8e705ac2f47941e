"""What the network says about datagrams that nobody took: Linux keeps it in a queue per socket.

Decides how to read that queue (`man 7 ip`, IP_RECVERR). What to make of the news is the endpoint's
business; elsewhere than on Linux there is no queue, and time-outs say the same later.
"""

import errno
import socket
import sys
from collections.abc import Iterator
from struct import Struct

__all__ = ["listen_for_errors", "read_errors"]

_IP_RECVERR = 11
_IPV6_RECVERR = 25
_ORIGIN_ICMP = 2
_ORIGIN_ICMP6 = 3
_ERROR = Struct("=IBBBxII")
_MOST = 64


def listen_for_errors(sock: socket.socket) -> bool:
    """Ask the kernel to queue ICMP errors for `sock`; tell whether it will."""
    if sys.platform != "linux":
        return False
    try:
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
        sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
    except OSError:
        return False
    return True


def read_errors(sock: socket.socket) -> Iterator[tuple[object, bytes]]:
    """Take up to 64 errors from the queue; yield those that say "nobody listens there".

    Each is the address that the datagram was for, as the socket writes addresses, and the front of
    the datagram itself.
    """
    for _ in range(_MOST):
        try:
            quoted, ancillary, _, address = sock.recvmsg(512, 512, socket.MSG_ERRQUEUE)
        except OSError:
            return  # Usually the end of the queue; anything else comes back if it matters.
        for _level, _kind, content in ancillary:
            if len(content) < _ERROR.size:
                continue
            number, origin, *_ = _ERROR.unpack_from(content)
            if number == errno.ECONNREFUSED and origin in (_ORIGIN_ICMP, _ORIGIN_ICMP6):
                yield address, quoted
