"""Garbage over real UDP: the node stays up, uses bounded memory and reports rejections."""

import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
import trio
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted

import ringfence
from node.config.access import KeyDir, load_access
from node.config.key_files import write_keys
from node.config.settings import NodeSettings
from node.node import Node
from ringfence.client.connect import open_cluster
from ringfence.client.url import parse_token, parse_url
from ringfence.peering.clock import SystemClock
from ringfence.rules.loading.yaml_files import load_text
from ringfence.transport.quic.configuration import ALPN
from ringfence.transport.tls.certificates import NODE_NAME, ClientTls, load_server_tls
from ringfence.transport.udp.udp_trio import TrioUdp
from ringfence.wire import ErrorCode, Hello, Ping, Role, encode, frame

RULES = """
domain: api
descriptors:
  - key: client
    rate_limit: {unit: year, requests_per_unit: 1000000, algorithm: fixed_window}
"""


@dataclass
class Served:
    """Running node, with a valid client that keeps checking."""

    node: Node
    transport: TrioUdp
    url: str
    port: int
    token: str
    limiter: ringfence.Limiter
    checked: int = 0

    async def check(self) -> None:
        """Check that the node still serves the valid client."""
        self.checked += 1
        decision = await self.limiter.check("api", {"client": "good"})
        assert decision.source is ringfence.Source.OWNER
        assert decision.remaining == 1_000_000 - self.checked

    async def refusals(self) -> dict[str, int]:
        """Return the rejections that `ringfence members` shows."""
        async with open_cluster(parse_url(self.url), raise_on_outage=True) as cluster:
            [(_, counters)] = await cluster.admin.all_stats()
        assert counters is not None
        return {
            name.removeprefix("refused_"): count
            for name, count in counters.items()
            if "refused_" in name and count
        }


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyDir:
    directory: Path = tmp_path_factory.mktemp("cluster") / "keys"
    write_keys(directory, [], [], ["app:check,observe"], 2)
    return KeyDir(directory)


@asynccontextmanager
async def served(keys: KeyDir) -> AsyncIterator[Served]:
    bugs: list[BaseException] = []
    port = free_port()
    settings = NodeSettings(name="a", listen=f"127.0.0.1:{port}")
    rules = load_text(RULES).rules
    node = Node(settings, load_access(keys), rules, clock=SystemClock(), random=Random(1))
    transport = TrioUdp(
        ("127.0.0.1", port),
        on_bug=bugs.append,
        client=ClientTls(keys.ca.read_bytes()),
        server=load_server_tls(keys.certificate, keys.key, datetime.now(UTC)),
        accept=node.accept,
    )
    token = keys.token("app").read_text("ascii").strip()
    url = f"ringfence://{token}@127.0.0.1:{port}?ca={keys.ca}"
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run)
        await nursery.start(node.run, transport)
        patient = f"{url}&timeout=20"  # The machine may be busy with other processes.
        async with ringfence.connect(patient, raise_on_outage=True, use_leases=False) as limiter:
            running = Served(node, transport, url, port, token, limiter)
            await running.check()
            yield running
            await running.check()
        nursery.cancel_scope.cancel()
    assert bugs == []


@contextmanager
def open_socket(served: Served) -> Iterator[socket.socket]:
    """Open a socket that sends arbitrary bytes to the node."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.connect(("127.0.0.1", served.port))
        yield sock


def quic_client(port: int) -> QuicConnection:
    quic = QuicConnection(
        configuration=QuicConfiguration(
            is_client=True,
            alpn_protocols=[ALPN],
            server_name=NODE_NAME,
            verify_mode=ssl.CERT_NONE,
        )
    )
    quic.connect(("127.0.0.1", port), trio.current_time())
    return quic


async def send_raw(served: Served, data: bytes, *, end_stream: bool = False) -> tuple[int, str]:
    """Send raw bytes on the stream of a valid connection; return how the node closed it."""
    quic = quic_client(served.port)
    is_sent = False
    with open_socket(served) as plain, trio.fail_after(30):
        sock = trio.socket.from_stdlib_socket(plain)
        while True:
            while (event := quic.next_event()) is not None:
                if isinstance(event, ConnectionTerminated):
                    return event.error_code, event.reason_phrase
                if isinstance(event, HandshakeCompleted) and not is_sent:
                    quic.send_stream_data(0, data, end_stream)
                    is_sent = True
            if quic._close_event is not None:  # aioquic reports it only after a drain period.
                return quic._close_event.error_code, quic._close_event.reason_phrase
            for datagram, _ in quic.datagrams_to_send(trio.current_time()):
                await sock.send(datagram)
            due = quic.get_timer()
            with trio.move_on_at(trio.current_time() + 1 if due is None else due):
                quic.receive_datagram(
                    await sock.recv(4096), ("127.0.0.1", served.port), trio.current_time()
                )
                continue
            quic.handle_timer(trio.current_time())


async def test_random_datagrams_change_nothing_and_are_counted(keys: KeyDir) -> None:
    random = Random(1)
    async with served(keys) as s:
        with open_socket(s) as sock:
            for number in range(1000):
                sock.send(random.randbytes(random.choice([0, 1, 5, 30, 100, 1200, 9000])))
                if number % 20 == 0:
                    await trio.lowlevel.checkpoint()
            await s.check()

        refusals = await s.refusals()
        gossip = {
            "gossip_refused_truncated",
            "gossip_refused_oversized",
            "gossip_refused_wrong_version",
        }
        assert {"malformed_header", "unknown_connection", *gossip} <= refusals.keys()
        assert s.transport.connections <= 2  # the valid client, and the client of this check


@pytest.mark.parametrize(
    ("data", "end_stream", "cause", "code"),
    [
        ((1 << 20 | 1).to_bytes(4, "big"), False, "frame_oversized", ErrorCode.BAD_MESSAGE),
        (b"\xff\xff\xff\xff", False, "frame_oversized", ErrorCode.BAD_MESSAGE),
        (b"\0\0\0\0", False, "frame_empty", ErrorCode.BAD_MESSAGE),
        (b"\0\0\1\0half of it", True, "stream_ended", ErrorCode.BAD_MESSAGE),
        (frame(b"\xc1\xc1"), False, "bad_message_garbled", ErrorCode.BAD_MESSAGE),
        (frame(b"\x91\x7f"), False, "bad_message_unknown_type", ErrorCode.BAD_MESSAGE),
        (frame(encode(Ping(1))), False, "hello_expected", ErrorCode.HELLO_EXPECTED),
    ],
    ids=["too long", "far too long", "empty", "cut off", "garbled", "unknown type", "no hello"],
)
async def test_invalid_protocol_bytes_close_only_their_connection(
    keys: KeyDir, data: bytes, end_stream: bool, cause: str, code: ErrorCode
) -> None:
    async with served(keys) as s:
        close_code, reason = await send_raw(s, data, end_stream=end_stream)

        assert close_code == code
        assert reason
        assert (await s.refusals())[cause] == 1


async def test_a_wrong_version_or_token_is_rejected_with_a_reason_and_counted(
    keys: KeyDir,
) -> None:
    async with served(keys) as s:
        valid = Hello(Role.CLIENT, "app", parse_token(s.token).secret, 1)
        wrong_version = bytearray(encode(valid))
        wrong_version[2] += 1  # The version is the first field of a hello.

        close_codes = [
            (await send_raw(s, frame(payload)))[0]
            for payload in (
                bytes(wrong_version),
                encode(Hello(Role.CLIENT, "app", b"x" * 32, 1)),
                encode(Hello(Role.NODE, "a", b"x" * 32, 1)),
            )
        ]

        assert close_codes == [
            ErrorCode.WRONG_VERSION,
            ErrorCode.BAD_CREDENTIAL,
            ErrorCode.BAD_CREDENTIAL,
        ]
        refusals = await s.refusals()
        assert refusals["wrong_version"] == 1
        assert refusals["bad_credential"] == 2


async def test_two_thousand_unfinished_handshakes_use_little_memory_and_block_no_client(
    keys: KeyDir,
) -> None:
    random = Random(2)
    async with served(keys) as s:
        with open_socket(s) as sock:
            for _ in range(100):  # valid handshakes, each with different keys
                [(first, _), *_] = quic_client(s.port).datagrams_to_send(trio.current_time())
                sock.send(first)
                await trio.lowlevel.checkpoint()
            for number in range(1900):  # and well-formed noise
                sock.send(first[:6] + random.randbytes(8) + first[14:])
                if number % 20 == 0:
                    await trio.lowlevel.checkpoint()
                if number % 500 == 0:
                    await s.check()
            connections_after_flood = s.transport.connections

        refusals = await s.refusals()  # A new client can still connect and read the counters.
        assert connections_after_flood < 100
        assert refusals["retry"] + refusals.get("handshakes_waiting", 0) > 1000
        assert s.node.queries.stats(1).counters["connections"] <= 2
