"""Echo server over plain UDP: the lower bound of any check over the network, without encryption."""

import socket
import time
from multiprocessing.connection import Connection as PipeEnd

import trio

from benchmarks.server_process import ServerProcess

__all__ = ["UdpEcho"]

_HOST = "127.0.0.1"
_PAYLOAD = bytes(60)
_WARM_UP = 100


class UdpEcho(ServerProcess[int]):
    """UDP echo server in a separate process, as a context manager."""

    def __init__(self) -> None:
        super().__init__(_serve)

    def blocking_lone(self, n: int) -> list[float]:
        """Return the seconds of `n` round trips by a blocking socket."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((_HOST, self.address))
            samples = []
            for _ in range(_WARM_UP + n):
                started_at = time.perf_counter()
                sock.send(_PAYLOAD)
                sock.recv(2048)
                samples.append(time.perf_counter() - started_at)
            return samples[_WARM_UP:]

    def trio_lone(self, n: int) -> list[float]:
        """Return the seconds of `n` round trips by a trio task."""
        return trio.run(self._on_trio, n)

    async def _on_trio(self, n: int) -> list[float]:
        with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as sock:
            await sock.connect((_HOST, self.address))
            samples = []
            for _ in range(_WARM_UP + n):
                started_at = time.perf_counter()
                await sock.send(_PAYLOAD)
                await sock.recv(2048)
                samples.append(time.perf_counter() - started_at)
            return samples[_WARM_UP:]


def _serve(pipe: PipeEnd) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((_HOST, 0))
        pipe.send(sock.getsockname()[1])
        while True:
            payload, address = sock.recvfrom(2048)
            sock.sendto(payload, address)
