"""The admin port over real loopback sockets."""

import json
import socket
import ssl
import struct
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

from node.admin import AdminPort, open_port
from node.admin.connection import AdminLimits
from node.config.access import KeyDir
from node.config.key_files import renew, write_keys
from ringfence.errors import ConfigError
from tests.node.cluster import world


@asynccontextmanager
async def port(limits: AdminLimits | None = None) -> AsyncIterator[AdminPort]:
    async with world("a") as made:
        opened = await open_port(made.nodes["a"], ("127.0.0.1", 0), None, limits)
        made.nursery.start_soon(opened.run)
        yield opened


def get(url: str) -> tuple[int, object]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def get_text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


@asynccontextmanager
async def connected(
    opened: AdminPort, address: str = "127.0.0.1"
) -> AsyncIterator[trio.SocketStream]:
    """Open a connection and receive one response, so that the port has accepted it."""
    port = int(opened.url.rpartition(":")[2])
    stream = await trio.open_tcp_stream("127.0.0.1", port, local_address=address)
    async with stream:
        await ask(stream)
        yield stream


async def ask(stream: trio.abc.Stream) -> None:
    await stream.send_all(b"GET /v1/ring HTTP/1.1\r\nhost: localhost\r\n\r\n")
    received = b""
    while b"}" not in received:
        received += await stream.receive_some()
    assert received.startswith(b"HTTP/1.1 200")


async def test_the_port_answers_over_http() -> None:
    async with port() as opened:
        assert opened.url.startswith("http://127.0.0.1:")
        ready = await trio.to_thread.run_sync(get, f"{opened.url}/readyz")
        wrong = await trio.to_thread.run_sync(get, f"{opened.url}/nothing")

    assert ready == (200, {"status": "ready", "node": "a", "state": "alive"})
    assert wrong[0] == 404


async def test_one_connection_too_many_closes_the_longest_idle_one() -> None:
    with trio.fail_after(30):
        async with (
            port(AdminLimits(connections=2)) as opened,
            connected(opened) as first,
            connected(opened) as second,
            connected(opened) as third,
        ):
            assert await first.receive_some() == b""
            await ask(second)
            await ask(third)


@pytest.mark.parametrize(
    "limits",
    [
        AdminLimits(connections_per_address=2),
        AdminLimits(connections=3, connections_per_address=3),
    ],
)
async def test_an_address_over_its_share_loses_its_own_connection(
    limits: AdminLimits,
) -> None:
    with trio.fail_after(30):
        async with (
            port(limits) as opened,
            connected(opened, "127.0.0.2") as other,
            connected(opened) as first,
            connected(opened) as second,
            connected(opened) as third,
        ):
            assert await first.receive_some() == b""
            for each in (other, second, third):
                await ask(each)


def open_with_request(port: int, address: str) -> socket.socket:
    """Open a connection and send a request. The port does not run during this call."""
    sock = socket.create_connection(("127.0.0.1", port), 10, source_address=(address, 0))
    sock.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    sock.setblocking(False)
    return sock


def is_answered(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1000))
    except OSError:
        return False


async def test_connections_of_one_address_do_not_delay_another() -> None:
    async with port(AdminLimits(connections_per_second=10.0)) as opened:
        number = int(opened.url.rpartition(":")[2])
        with ExitStack() as stack, trio.fail_after(30):
            others = [
                stack.enter_context(open_with_request(number, "127.0.0.2")) for _ in range(100)
            ]
            probe = stack.enter_context(open_with_request(number, "127.0.0.1"))

            await trio.lowlevel.wait_readable(probe)

            assert is_answered(probe)
            # In the order of arrival, the port would have answered all of them first.
            assert sum(map(is_answered, others)) < 50


async def test_a_reset_before_accept_is_no_internal_error() -> None:
    async with port() as opened:
        number = int(opened.url.rpartition(":")[2])
        for _ in range(5):
            with open_with_request(number, "127.0.0.1") as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        answer = await trio.to_thread.run_sync(get_text, f"{opened.url}/metrics")

    assert 'cause="http_bug"' not in answer
    assert 'place="http"' not in answer


async def test_a_reset_connection_is_no_internal_error() -> None:
    async with port() as opened:
        for data in (b"", b"GET / HT", b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n"):
            async with connected(opened) as stream:
                if data:
                    await stream.send_all(data)
                # With this option, closing resets the connection.
                stream.socket.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
        answer = await trio.to_thread.run_sync(get_text, f"{opened.url}/metrics")

    assert "ringfence_decisions" in answer
    assert "http_bug" not in answer


async def test_an_address_in_use_is_a_configuration_error() -> None:
    async with port() as opened, world("a") as other:
        used_port = int(opened.url.rpartition(":")[2])

        with pytest.raises(ConfigError, match="stop it or choose another port"):
            await open_port(other.nodes["a"], ("127.0.0.1", used_port), None)


@pytest.mark.parametrize(
    ("host", "has_keys", "scheme"),
    [
        ("127.0.0.1", False, "http://127.0.0.1"),
        ("127.0.0.1", True, "http://127.0.0.1"),
        ("0.0.0.0", True, "https://0.0.0.0"),
    ],
)
async def test_a_port_that_other_hosts_can_reach_uses_tls(
    tmp_path: Path, host: str, scheme: str, *, has_keys: bool
) -> None:
    keys = KeyDir(tmp_path / "keys")
    write_keys(keys.path, [], [], ["app:check"], 2)
    async with world("a") as made:
        opened = await open_port(made.nodes["a"], (host, 0), keys if has_keys else None)
        made.nursery.start_soon(opened.run)
        port = int(opened.url.rpartition(":")[2])

        assert opened.url == f"{scheme}:{port}"
        stream: trio.abc.Stream = await trio.open_tcp_stream("127.0.0.1", port)
        if scheme.startswith("https"):
            context = ssl.create_default_context(cafile=keys.ca)
            context.check_hostname = False
            stream = trio.SSLStream(stream, context)
        async with stream:
            await ask(stream)


async def certificate_of(opened: AdminPort) -> bytes:
    """Return the certificate that the port presents on a new connection."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    stream = trio.SSLStream(
        await trio.open_tcp_stream("127.0.0.1", int(opened.url.rpartition(":")[2])), context
    )
    async with stream:
        await ask(stream)
        return bytes(stream.getpeercert(binary_form=True))


async def test_new_connections_use_a_renewed_certificate_only_if_it_matches_its_key(
    tmp_path: Path,
) -> None:
    """Files may be copied one after the other while the certificate is loaded again."""
    keys = KeyDir(tmp_path / "keys")
    write_keys(keys.path, [], [], ["app:check"], 2)
    async with world("a") as made:
        opened = await open_port(made.nodes["a"], ("0.0.0.0", 0), keys)
        made.nursery.start_soon(opened.run)
        before = await certificate_of(opened)
        old_key = keys.key.read_bytes()
        renew(keys.path, [], 3)
        new_key = keys.key.read_bytes()

        keys.key.write_bytes(old_key)
        with pytest.raises(ConfigError, match="a certificate that the admin port can use"):
            opened.reload_certificate()
        assert await certificate_of(opened) == before
        keys.key.write_bytes(new_key)
        assert await certificate_of(opened) == before
        opened.reload_certificate()

        assert await certificate_of(opened) != before


async def test_a_port_without_tls_has_no_certificate_to_load_again() -> None:
    async with port() as opened:
        opened.reload_certificate()
        assert opened.url.startswith("http:")
