"""P15: a flood of requests without a token does not fail the probes of the admin port.

The tests run a real node with keys. Its admin port listens on loopback.
"""

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

import pytest
import trio

from node.config.access import KeyDir
from node.config.key_files import write_keys
from tests.node.end_to_end.test_serve import rules_of, started, until
from tests.ringfence.gateway.processes import fetch, free_tcp_ports, is_up

PROBES = 8
PROBE_TIMEOUT = 3.0
"""Seconds, as the probes in docs/operate/admin-port.md have."""
CONCURRENT = 100
MAX_PER_ADDRESS = 32
REQUEST = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass(frozen=True)
class Port:
    number: int
    token: str


@pytest.fixture(scope="module")
def admin_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Port]:
    """Start a node whose admin port requires tokens; yield the port."""
    directory = tmp_path_factory.mktemp("node")
    keys = KeyDir(directory / "keys")
    write_keys(keys.path, ["a"], ["127.0.0.1"], ["operator:observe"], days=2)
    rules = directory / "rules.yaml"
    rules.write_text(rules_of(5), "utf-8")
    [port] = free_tcp_ports(1)
    flags = ["--name", "a", "--rules", str(rules), "--keys", str(keys.path)]
    with started(directory, {"a": [*flags, "--http", f"127.0.0.1:{port}"]}):
        until(lambda: is_up(f"http://127.0.0.1:{port}/readyz"))
        token = (keys.path / "operator.token").read_text("ascii").strip()
        yield Port(port, token)
        assert fetch(f"http://127.0.0.1:{port}/metrics").status == 401
        bearer = {"Authorization": f"Bearer {token}"}
        metrics = fetch(f"http://127.0.0.1:{port}/metrics", headers=bearer)
        assert b'cause="http_bug"' not in metrics.body


@pytest.fixture
def port(admin_port: Port) -> int:
    return admin_port.number


async def new_connections(port: int) -> None:
    """Send requests without a token, each on a new connection."""
    while True:
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(REQUEST % b"/metrics")
                while await stream.receive_some():
                    pass
        except (OSError, trio.BrokenResourceError):
            pass


async def kept_connections(port: int) -> None:
    """Send batches of requests without a token, repeatedly on the same connection."""
    while True:
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                while True:
                    await stream.send_all(REQUEST % b"/metrics" * 100)
                    if not await stream.receive_some():
                        break
        except (OSError, trio.BrokenResourceError):
            pass


async def health_requests(port: int) -> None:
    """Send batches of requests that need no token, repeatedly on the same connection."""
    while True:
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                while True:
                    await stream.send_all(REQUEST % b"/healthz" * 100)
                    if not await stream.receive_some():
                        break
        except (OSError, trio.BrokenResourceError):
            pass


async def unfinished_headers(port: int) -> None:
    """Connect and send a header that never ends."""
    while True:
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(b"GET / HTTP/1.1\r\n")
                while await stream.receive_some():
                    pass
        except (OSError, trio.BrokenResourceError):
            pass


async def probe(port: int, path: bytes) -> bool:
    with trio.move_on_after(PROBE_TIMEOUT):
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(REQUEST % path)
                return (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        except (OSError, trio.BrokenResourceError):
            return False
    return False


@pytest.mark.parametrize(
    "flood", [new_connections, kept_connections, health_requests, unfinished_headers]
)
async def test_probes_succeed_during_a_flood(
    port: int, flood: Callable[[int], Awaitable[None]]
) -> None:
    answered = []
    async with trio.open_nursery() as nursery:
        for _ in range(CONCURRENT):
            nursery.start_soon(flood, port)
        await trio.sleep(1.0)
        for number in range(PROBES):
            answered.append(await probe(port, (b"/healthz", b"/readyz")[number % 2]))
        nursery.cancel_scope.cancel()

    assert answered == [True] * PROBES


async def test_connections_of_one_address_do_not_close_those_of_another_address(
    admin_port: Port,
) -> None:
    closed: list[trio.SocketStream] = []
    enough = trio.Event()

    async def watch(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.receive_some()  # The node sends nothing; this returns on close.
        closed.append(stream)
        if len(closed) == CONCURRENT - MAX_PER_ADDRESS:
            enough.set()

    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        operator = await trio.open_tcp_stream("127.0.0.1", admin_port.number)
        await stack.enter_async_context(operator)
        assert await is_answered(operator, admin_port.token)
        for _ in range(CONCURRENT):
            stream = await trio.open_tcp_stream(
                "127.0.0.1", admin_port.number, local_address="127.0.0.2"
            )
            await stack.enter_async_context(stream)
            nursery.start_soon(watch, stream)
        with trio.fail_after(4):  # One second less than the time-out of silent connections.
            await enough.wait()
        assert await is_answered(operator, admin_port.token)
        nursery.cancel_scope.cancel()


async def is_answered(stream: trio.SocketStream, token: str) -> bool:
    request = f"GET /v1/ring HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    await stream.send_all(request.encode("ascii"))
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = await stream.receive_some()
        if not chunk:
            return False
        received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    [length] = re.findall(rb"content-length: (\d+)", head)
    while len(body) < int(length):
        body += await stream.receive_some()
    return head.startswith(b"HTTP/1.1 200")
