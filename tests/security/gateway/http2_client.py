"""Caller of HTTP/2 that sends raw frames and may violate the protocol."""

import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from hpack import Encoder

from ringfence.gateway.grpc.http2_sender import Kind, frame
from tests.ringfence.gateway.processes import TIMEOUT, Gateway, gateway, until

__all__ = [
    "HEALTH",
    "IN_TOTAL",
    "PER_ADDRESS",
    "PREFACE",
    "WATCH",
    "Caller",
    "allowed",
    "lone_gateway",
    "memory",
    "open_files",
    "raise_descriptor_limit",
    "worker_of",
]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(Kind.SETTINGS, 0, 0, b"")
WATCH = "/grpc.health.v1.Health/Watch"
HEALTH = "/grpc.health.v1.Health/Check"
PER_ADDRESS, IN_TOTAL = 256, 1024
"""Default bounds on connections, as docs/guides/gateway.md states them."""
EMPTY = bytes(5)
"""An empty gRPC message."""
OTHER_ADDRESS = "127.0.0.2"
"""Second address of this host, so that bounds per address do not affect the test's own calls."""


@contextmanager
def lone_gateway(directory: Path, *flags: str) -> Iterator[Gateway]:
    """Start a gateway without any node: both ports serve, and nothing is counted."""
    with gateway(directory, "ringfence://127.0.0.1:1", *flags, ready=False) as gate:
        until(lambda: _listens(gate.port) and _listens(gate.grpc_port))
        yield gate


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def raise_descriptor_limit() -> None:
    """Let this process open as many connections as a test needs."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def worker_of(gate: Gateway) -> int:
    """Return the process ID of the only worker."""
    children = Path(f"/proc/{gate.process.pid}/task/{gate.process.pid}/children")
    [worker] = [
        int(each)
        for each in children.read_text("ascii").split()
        if b"resource_tracker" not in Path(f"/proc/{each}/cmdline").read_bytes()
    ]
    return worker


def memory(gate: Gateway) -> int:
    """Return the resident memory of the worker in bytes."""
    status = Path(f"/proc/{worker_of(gate)}/status").read_text("ascii")
    [line] = [each for each in status.splitlines() if each.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


def open_files(gate: Gateway) -> int:
    """Return how many file descriptors the worker has open."""
    return len(list(Path(f"/proc/{worker_of(gate)}/fd").iterdir()))


def allowed(gate: Gateway, timeout: float = TIMEOUT) -> bool:
    """Return whether a check is allowed that is sent on a new connection, as Envoy would."""
    request = rls_pb2.RateLimitRequest(domain="api")
    request.descriptors.add().entries.add(key="client", value="x")
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(gate.grpc, options) as channel:
        stub = rls_pb2_grpc.RateLimitServiceStub(channel)
        answer = stub.ShouldRateLimit(request, timeout=timeout)
        return bool(answer.overall_code == rls_pb2.RateLimitResponse.OK)


class Caller:
    """One HTTP/2 connection."""

    def __init__(self, port: int, host: str = OTHER_ADDRESS) -> None:
        self.socket = socket.create_connection(
            ("127.0.0.1", port), timeout=TIMEOUT, source_address=(host, 0)
        )
        self.encoder = Encoder()
        self._buffer = b""

    def __enter__(self) -> "Caller":
        self.send(PREFACE)
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def header(self, path: str, *more: tuple[str, str]) -> bytes:
        """Return the header block of a gRPC call."""
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path)]
        return self.encoder.encode([*fields, ("content-type", "application/grpc"), *more])

    def call(self, stream: int, path: str, *more: tuple[str, str], body: bytes = EMPTY) -> bytes:
        """Return all frames of a call."""
        header = frame(Kind.HEADERS, 4, stream, self.header(path, *more))
        return header + frame(Kind.DATA, 1, stream, body)

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield kind, flags, stream and payload of each frame until the connection ends."""
        while True:
            while len(self._buffer) >= 9:
                size = int.from_bytes(self._buffer[:3], "big")
                if len(self._buffer) < 9 + size:
                    break
                stream = int.from_bytes(self._buffer[5:9], "big")
                kind, flags, payload = self._buffer[3], self._buffer[4], self._buffer[9 : 9 + size]
                self._buffer = self._buffer[9 + size :]
                yield kind, flags, stream, payload
            try:
                received = self.socket.recv(65_536)
            except ConnectionError:
                return
            if not received:
                return
            self._buffer += received

    def wait_response(self, stream: int) -> float:
        """Wait until a response has ended; return how many seconds this took."""
        started = time.monotonic()
        for kind, flags, number, _ in self.frames():
            if number == stream and kind == Kind.HEADERS and flags & 1:
                return time.monotonic() - started
        raise ConnectionError("closed before the answer")

    def goaway_code(self) -> int | None:
        """Return the code of the GOAWAY that ends the connection, None without a GOAWAY."""
        code = None
        for kind, _, _, payload in self.frames():
            if kind == Kind.GOAWAY:
                [code] = struct.unpack_from(">I", payload, 4)
        return code

    def is_open(self) -> bool:
        """Return whether the gateway has not closed the connection yet; discard received bytes."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(65_536):
                pass
        except BlockingIOError:
            return True
        except OSError:
            pass
        finally:
            self.socket.settimeout(TIMEOUT)
        return False
