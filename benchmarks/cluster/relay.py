"""UDP relays in front of nodes, in separate processes, which simulate lossy and slow networks."""

import selectors
import socket
from collections.abc import Mapping
from heapq import heappop, heappush
from itertools import count
from multiprocessing.connection import Connection as PipeEnd
from random import Random
from time import monotonic

from msgspec import Struct

from benchmarks.server_process import ServerProcess

__all__ = ["DistantRelay", "LossyRelay"]

_HOST = "127.0.0.1"
_LARGEST = 65_536


class LossyRelay(ServerProcess[int]):
    """Relay of datagrams to a port of this host and back, as a context manager.

    It loses the share `loss` of them in both directions, with the same random sequence in every
    run.
    """

    def __init__(self, port: int, loss: float) -> None:
        super().__init__(_relay, port, loss)

    @property
    def port(self) -> int:
        """Port that clients connect to."""
        return self.address


def _relay(parent: PipeEnd, target: int, loss: float) -> None:
    random = Random(0)
    front = _bound()
    parent.send(front.getsockname()[1])
    parent.close()
    backs: dict[tuple[str, int], socket.socket] = {}
    ready = selectors.DefaultSelector()
    ready.register(front, selectors.EVENT_READ, None)
    while True:
        for key, _ in ready.select():
            client = key.data
            if client is not None:
                datagram = backs[client].recv(_LARGEST)
                if random.random() >= loss:
                    front.sendto(datagram, client)
                continue
            datagram, client = front.recvfrom(_LARGEST)
            if client not in backs:
                backs[client] = _bound()
                ready.register(backs[client], selectors.EVENT_READ, client)
            if random.random() >= loss:
                backs[client].sendto(datagram, (_HOST, target))


def _bound() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    sock.bind((_HOST, 0))
    return sock


class DistantRelay(ServerProcess[dict[int, int]]):
    """Relay of datagrams between ports of this host, with the delay between data centers.

    `places` has the data center of each port. A sender without a place, such as a client, is in the
    data center of its target. The relay runs in a separate process while the `with` block lasts.
    """

    def __init__(self, places: Mapping[int, str], delay: float) -> None:
        """`delay` is the one-way delay in seconds."""
        super().__init__(_carry, dict(places), delay)

    @property
    def doors(self) -> Mapping[int, int]:
        """Relay's port through which each port is reached."""
        return self.address


class _Way(Struct, frozen=True):
    """Route from one socket of the relay to its target."""

    target: int
    door: socket.socket
    client: tuple[str, int] | None
    """Address that answers of the target go to; None at the relay's own port."""


def _carry(parent: PipeEnd, places: Mapping[int, str], delay: float) -> None:
    doors = {port: _bound() for port in places}
    parent.send({port: door.getsockname()[1] for port, door in doors.items()})
    parent.close()
    ready = selectors.DefaultSelector()
    for port, door in doors.items():
        ready.register(door, selectors.EVENT_READ, _Way(port, door, None))
    backs: dict[tuple[int, tuple[str, int]], socket.socket] = {}
    late: list[tuple[float, int, socket.socket, bytes, tuple[str, int]]] = []
    order = count()
    while True:
        for key, _ in ready.select(max(0.0, late[0][0] - monotonic()) if late else None):
            way: _Way = key.data
            datagram, sender = key.fileobj.recvfrom(_LARGEST)  # type: ignore[union-attr]
            client = way.client or sender
            if (way.target, client) not in backs:
                back = backs[way.target, client] = _bound()
                ready.register(back, selectors.EVENT_READ, _Way(way.target, way.door, client))
            sock, to = way.door, client
            if way.client is None:
                sock, to = backs[way.target, client], (_HOST, way.target)
            here = places[way.target]
            pause = 0.0 if places.get(client[1], here) == here else delay
            heappush(late, (monotonic() + pause, next(order), sock, datagram, to))
        while late and late[0][0] <= monotonic():
            _, _, sock, datagram, to = heappop(late)
            sock.sendto(datagram, to)
