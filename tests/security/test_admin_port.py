"""P15: a flood of requests without a token does not fail the probes of the operator's port.

A real node with keys, its port on loopback.
"""

from collections.abc import Awaitable, Callable, Iterator

import pytest
import trio

from node.access import KeyDir
from node.keys import write_keys
from tests.gateway.processes import fetch, free_tcp_ports, is_up
from tests.node.test_serve import rules_of, started, until

PROBES = 8
PROBE_TIMEOUT = 2.0
"""Seconds; Kubernetes allows 3 in the example."""
AT_ONCE = 100
ASK = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The operator's port of a node; asks for tokens."""
    directory = tmp_path_factory.mktemp("node")
    keys = KeyDir(directory / "keys")
    write_keys(keys.path, ["a"], ["127.0.0.1"], ["operator:observe"], days=2)
    rules = directory / "rules.yaml"
    rules.write_text(rules_of(5), "utf-8")
    [port] = free_tcp_ports(1)
    flags = ["--name", "a", "--rules", str(rules), "--keys", str(keys.path)]
    with started(directory, {"a": [*flags, "--http", f"127.0.0.1:{port}"]}):
        until(lambda: is_up(f"http://127.0.0.1:{port}/readyz"))
        yield port
        assert fetch(f"http://127.0.0.1:{port}/metrics").status == 401
        token = (keys.path / "operator.token").read_text("ascii").strip()
        told = fetch(
            f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {token}"}
        )
        assert b'cause="http_bug"' not in told.body


async def new_connections(port: int) -> None:
    """Ask without a token, on a new connection each time."""
    while True:
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(ASK % b"/metrics")
                while await stream.receive_some():
                    pass
        except (OSError, trio.BrokenResourceError):
            pass


async def kept_connections(port: int) -> None:
    """Ask without a token, many requests at once and again on the same connection."""
    while True:
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                while True:
                    await stream.send_all(ASK % b"/metrics" * 100)
                    if not await stream.receive_some():
                        break
        except (OSError, trio.BrokenResourceError):
            pass


async def health_alone(port: int) -> None:
    """Ask for what needs no token, many requests at once and again on the same connection."""
    while True:
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                while True:
                    await stream.send_all(ASK % b"/healthz" * 100)
                    if not await stream.receive_some():
                        break
        except (OSError, trio.BrokenResourceError):
            pass


async def silent(port: int) -> None:
    """Connect and send one header that has no end."""
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
                await stream.send_all(ASK % path)
                return (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        except (OSError, trio.BrokenResourceError):
            return False
    return False


@pytest.mark.parametrize("flood", [new_connections, kept_connections, health_alone, silent])
async def test_probes_are_answered_amid_a_flood(
    port: int, flood: Callable[[int], Awaitable[None]]
) -> None:
    answered = []
    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(flood, port)
        await trio.sleep(1.0)
        for number in range(PROBES):
            answered.append(await probe(port, (b"/healthz", b"/readyz")[number % 2]))
        nursery.cancel_scope.cancel()

    assert answered == [True] * PROBES
