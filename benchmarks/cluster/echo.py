"""Echo server on trio and aioquic without our code: the lower bound of a round trip.

Other benchmarks report latencies as multiples of the echo's latency in the same run. Such a figure
depends on our code and little on the host.
"""

import os
import socket
import ssl
import time
from collections import deque
from datetime import UTC, datetime
from math import inf
from multiprocessing.connection import Connection as PipeEnd

import trio
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import HandshakeCompleted, StreamDataReceived
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate

from benchmarks.server_process import ServerProcess
from ringfence.transport.tls.certificate_authority import self_signed

__all__ = ["RawEcho"]

_ALPN = ["echo"]
_KEY = 20
"""Bytes of a key."""


class RawEcho(ServerProcess[int]):
    """QUIC echo server in a separate process, as a context manager."""

    def __init__(self, size: int = 60) -> None:
        """`size` is the size of the payload in bytes."""
        super().__init__(_serve)
        self._size = size

    def lone(self, n: int) -> list[float]:
        """Measure `n` sequential round trips on one warm connection; return seconds."""
        return trio.run(_measure, self.address, os.urandom(self._size), n)

    def concurrent(self, tasks: int, seconds: float) -> float:
        """Return echoed keys per second of `tasks` concurrent tasks; each sends one key after the
        other.

        Keys of all tasks that are ready leave in one frame, as in any client that batches.
        """
        return trio.run(_measure_crowd, self.address, tasks, seconds)


class _Peer:
    """QUIC connection with a socket that no other connection uses."""

    def __init__(self, sock: socket.socket, quic: QuicConnection) -> None:
        self.sock = sock
        self.quic = quic

    def flush(self) -> None:
        for datagram, address in self.quic.datagrams_to_send(trio.current_time()):
            self.sock.sendto(datagram, address)

    async def wait(self) -> tuple[bytes, tuple[str, int]] | None:
        """Wait for a datagram; return None when a QUIC timer was due first."""
        deadline = self.quic.get_timer()
        with trio.move_on_at(inf if deadline is None else deadline):
            await trio.lowlevel.wait_readable(self.sock)
            datagram, address = self.sock.recvfrom(2048)
            return datagram, address
        self.quic.handle_timer(trio.current_time())
        self.flush()
        return None


async def _measure(port: int, payload: bytes, n: int) -> list[float]:
    configuration = QuicConfiguration(alpn_protocols=_ALPN, verify_mode=ssl.CERT_NONE)
    quic = QuicConnection(configuration=configuration)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))
        peer = _Peer(sock, quic)
        quic.connect(("127.0.0.1", port), trio.current_time())
        peer.flush()
        while not await _advance(peer, HandshakeCompleted):
            pass
        warm_up = min(n, 200)
        samples = [await _round_trip(peer, payload) for _ in range(warm_up + n)]
        quic.close()
        peer.flush()
        return samples[warm_up:]


async def _measure_crowd(port: int, tasks: int, seconds: float) -> float:
    configuration = QuicConfiguration(alpn_protocols=_ALPN, verify_mode=ssl.CERT_NONE)
    quic = QuicConnection(configuration=configuration)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))
        peer = _Peer(sock, quic)
        quic.connect(("127.0.0.1", port), trio.current_time())
        peer.flush()
        while not await _advance(peer, HandshakeCompleted):
            pass
        echoes = _EchoTasks(peer)
        started_at = time.perf_counter()
        async with trio.open_nursery() as service:
            service.start_soon(echoes.read)
            service.start_soon(echoes.send)
            async with trio.open_nursery() as callers:
                for _ in range(tasks):
                    callers.start_soon(echoes.ask, started_at + seconds)
            spent = time.perf_counter() - started_at
            service.cancel_scope.cancel()
        quic.close()
        peer.flush()
    return echoes.done / spent


class _EchoTasks:
    """Group of tasks; each sends a key to the echo server and waits until the key comes back."""

    def __init__(self, peer: _Peer) -> None:
        self.done = 0
        self._peer = peer
        self._keys: list[bytes] = []
        self._waiting: deque[trio.lowlevel.Task] = deque()
        self._asked = trio.Event()

    async def ask(self, until: float) -> None:
        key = os.urandom(_KEY)
        while time.perf_counter() < until:
            self._keys.append(key)
            self._waiting.append(trio.lowlevel.current_task())
            self._asked.set()
            await trio.lowlevel.wait_task_rescheduled(_never_abort)
            self.done += 1

    async def send(self) -> None:
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            keys, self._keys = self._keys, []
            if keys:
                self._peer.quic.send_stream_data(0, b"".join(keys))
                self._peer.flush()

    async def read(self) -> None:
        left = 0
        while True:
            left += await _advance(self._peer, StreamDataReceived)
            while left >= _KEY:
                left -= _KEY
                trio.lowlevel.reschedule(self._waiting.popleft())


def _never_abort(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


async def _round_trip(peer: _Peer, payload: bytes) -> float:
    began = time.perf_counter()
    peer.quic.send_stream_data(0, payload)
    peer.flush()
    left = len(payload)
    while left:
        left -= await _advance(peer, StreamDataReceived)
    return time.perf_counter() - began


async def _advance(peer: _Peer, awaited: type[HandshakeCompleted | StreamDataReceived]) -> int:
    """Receive one datagram; return the number of finished handshakes or of echoed bytes in it."""
    came = await peer.wait()
    if came is None:
        return 0
    peer.quic.receive_datagram(*came, trio.current_time())
    found = 0
    while (event := peer.quic.next_event()) is not None:
        if isinstance(event, awaited):
            found += len(event.data) if isinstance(event, StreamDataReceived) else 1
    peer.flush()
    return found


def _serve(parent: PipeEnd) -> None:
    trio.run(_serve_each, parent)


async def _serve_each(parent: PipeEnd) -> None:
    """Echo the data of one client after the other, until the process is stopped."""
    tls = self_signed(datetime.now(UTC))
    configuration = QuicConfiguration(
        is_client=False,
        alpn_protocols=_ALPN,
        certificate=load_pem_x509_certificate(tls.certificate_pem),
        private_key=load_pem_private_key(tls.key_pem, None),
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))
        parent.send(sock.getsockname()[1])
        parent.close()
        current: tuple[str, int] | None = None
        peer: _Peer | None = None
        while True:
            if peer is None:
                await trio.lowlevel.wait_readable(sock)
                came = sock.recvfrom(2048)
            else:
                waited = await peer.wait()
                if waited is None:
                    continue
                came = waited
            datagram, address = came
            if peer is None or address != current:
                if len(datagram) < 1200:
                    continue  # A late datagram of the previous client.
                current = address
                cid = datagram[6 : 6 + datagram[5]]
                peer = _Peer(
                    sock,
                    QuicConnection(
                        configuration=configuration, original_destination_connection_id=cid
                    ),
                )
            peer.quic.receive_datagram(datagram, address, trio.current_time())
            while (event := peer.quic.next_event()) is not None:
                if isinstance(event, StreamDataReceived):
                    peer.quic.send_stream_data(event.stream_id, event.data)
            peer.flush()
