"""A network that loses: a UDP relay before a node, in a process of its own."""

import multiprocessing
import selectors
import socket
from multiprocessing.connection import Connection as PipeEnd
from random import Random
from types import TracebackType
from typing import Self

__all__ = ["LossyRelay"]

_HOST = "127.0.0.1"
_LARGEST = 65_536


class LossyRelay:
    """Carries datagrams to a port of this host and back, for as long as the `with` block lasts.

    Loses `loss` of them, in both directions, by chance that is the same in every run.
    """

    def __init__(self, port: int, loss: float) -> None:
        self._target = port
        self._loss = loss

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(
            target=_relay, args=(theirs, self._target, self._loss), daemon=True
        )
        self._process.start()
        theirs.close()
        self.port: int = ours.recv()
        """Where clients connect to."""
        ours.close()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.join()


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
