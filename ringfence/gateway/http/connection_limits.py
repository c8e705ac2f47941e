"""Limits on connections of the HTTP port that Granian lacks: per address, and idle time.

Granian limits the total number of connections. It keeps connections that send nothing, and does not
report them to the application. Each worker therefore lists its own sockets through Linux and shuts
down those that exceed a limit. Granian then closes them.
"""

import logging
import os
import resource
import socket
import struct
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from ipaddress import ip_address, ip_network
from pathlib import Path

from msgspec import Struct

from ringfence.gateway.process.settings import GatewaySettings

__all__ = ["HttpConnections"]

logger = logging.getLogger("ringfence.gateway")

_LIST = Path("/proc/self/fd")
_TCP_INFO = struct.Struct("52xI72xQ")
"""Fields of `struct tcp_info`: milliseconds since the last received data, and bytes received."""
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_MIN_REQUEST = 18
"""Bytes of the shortest request: `GET / HTTP/1.0` and an empty line."""
_CROWDED_SHARE = 7 / 8
"""Share of `max_connections` above which idle connections are closed."""
_LAST_DESCRIPTORS = 8


class _Connection(Struct, frozen=True):
    socket: socket.socket
    host: str
    idle: float
    """Seconds since the client last sent data."""
    received: int


class HttpConnections:
    """HTTP connections of one worker, with their limits."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._port = settings.listen_at[1]
        self._trusted = [ip_network(each, strict=False) for each in _networks(settings)]
        self._lacks_descriptors = False

    def close_excess(self) -> dict[str, int]:
        """Shut down connections that exceed a limit; return by cause how many were shut down.

        This call may block.
        """
        with ExitStack() as stack:
            mine = sorted(self._connections(stack), key=lambda each: -each.idle)
            shut: dict[_Connection, str] = {}
            for each in mine:
                if self._is_late(each):
                    shut[each] = "idle"
            by_address = defaultdict(list)
            for each in mine:
                if each not in shut and not self._is_trusted(each.host):
                    by_address[each.host].append(each)
            for same_address in by_address.values():
                surplus = len(same_address) - self._settings.max_connections_per_address
                shut |= dict.fromkeys(same_address[: max(0, surplus)], "connections")
            surplus = len(mine) - len(shut) - int(_CROWDED_SHARE * self._settings.max_connections)
            resting = [
                each
                for each in mine
                if each not in shut and each.idle > self._settings.header_timeout
            ]
            shut |= dict.fromkeys(resting[: max(0, surplus)], "connections")
            for each in shut:
                with suppress(OSError):
                    each.socket.shutdown(socket.SHUT_RDWR)
        causes = list(shut.values())
        counted = {cause: causes.count(cause) for cause in set(causes)}
        return counted | self._descriptors()

    def _is_late(self, each: _Connection) -> bool:
        settings = self._settings
        if each.received < _MIN_REQUEST:
            return each.idle > settings.header_timeout
        # A request that waits at `/v1/acquire` sends nothing, so the time-out must be longer.
        return each.idle > settings.idle_timeout + settings.max_wait

    def _is_trusted(self, host: str) -> bool:
        address = ip_address(host)
        return any(address in network for network in self._trusted)

    def _connections(self, stack: ExitStack) -> Iterator[_Connection]:
        for entry in os.listdir(_LIST):
            with suppress(OSError, ValueError):  # Already closed, or not a TCP socket.
                if not os.readlink(_LIST / entry).startswith("socket:"):
                    continue
                # A duplicate descriptor, so that the number is not reused for another socket here.
                each = stack.enter_context(socket.socket(fileno=os.dup(int(entry))))
                is_tcp = each.family in _FAMILIES and each.type == socket.SOCK_STREAM
                if not is_tcp or each.getsockname()[1] != self._port:
                    continue
                host = each.getpeername()[0].removeprefix("::ffff:")
                info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
                idle, received = _TCP_INFO.unpack(info)
                yield _Connection(each, host, idle / 1000, received)

    def _descriptors(self) -> dict[str, int]:
        """Log once when file descriptors run out; return this event as a count for the metrics."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        was_short, is_short = (
            self._lacks_descriptors,
            len(os.listdir(_LIST)) >= limit - _LAST_DESCRIPTORS,
        )
        self._lacks_descriptors = is_short
        if not is_short or was_short:
            return {}
        logger.error("file descriptors run out: limit=%d; raise it or lower max_connections", limit)
        return {"accept_error": 1}


def _networks(settings: GatewaySettings) -> list[str]:
    return [each for each in settings.trusted_proxies if each != "unix"]
