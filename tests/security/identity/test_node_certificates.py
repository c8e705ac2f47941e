"""Certificates per node: the private key of one node does not authenticate another node.

The hardening list contains this point under "To investigate". The tests run real nodes with their
own certificates. The impostor has the cluster key and the private key of one node, and uses the
name of another node.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from signal import SIGHUP

import trio

from node.config.access import KeyDir, load_access
from node.config.key_files import add_node, write_keys
from node.config.settings import NodeSettings
from node.node import Node
from ringfence.peering.clock import SystemClock
from ringfence.rules import RuleSet
from ringfence.transport.tls.certificates import load_client_tls, load_server_tls
from ringfence.transport.udp.udp_trio import TrioUdp
from tests.node.end_to_end.test_serve import NodeProcess, free_port, ringfence, started, until
from tests.security.connections.callers import Caller


def keys_of(directory: Path, *nodes: str) -> KeyDir:
    write_keys(directory, [], [], ["app:check"], 2, nodes)
    return KeyDir(directory)


@contextmanager
def cluster(directory: Path, keys: KeyDir, *names: str) -> Iterator[dict[str, NodeProcess]]:
    """Start node processes, each with a copy of only those keys that its host must have."""
    flags = {}
    for name in names:
        node_keys = KeyDir(directory / f"keys-{name}")
        node_keys.nodes.mkdir(parents=True)
        shared = [path for path in (keys.certificate, keys.key) if path.exists()]
        for path in [keys.ca, keys.cluster_key, keys.tokens, *shared]:
            (node_keys.path / path.name).write_bytes(path.read_bytes())
        node_keys.certificate_of(name).write_bytes(keys.certificate_of(name).read_bytes())
        node_keys.key_of(name).write_bytes(keys.key_of(name).read_bytes())
        flags[name] = ["--keys", str(node_keys.path), "--name", name]
    with started(directory, flags) as running:
        yield running


@asynccontextmanager
async def impostor(keys: KeyDir, name: str, *, holds: str, seed: int) -> AsyncIterator[int]:
    """Run a node `name` that has the certificate of `holds` and joins at `seed`; yield its port."""
    port = free_port()
    settings = NodeSettings(name=name, listen=f"127.0.0.1:{port}")
    access = load_access(keys, settings.cluster)
    node = Node(settings, access, RuleSet(), clock=SystemClock(), random=Random(1))
    now = datetime.now(UTC)
    transport = TrioUdp(
        ("127.0.0.1", port),
        on_bug=_raise,
        client=load_client_tls(keys.ca, now),
        server=load_server_tls(keys.certificate_of(holds), keys.key_of(holds), now),
        accept=node.accept,
    )

    async def seeds() -> list[tuple[str, int]]:
        return [("127.0.0.1", seed)]

    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run)
        await nursery.start(node.run, transport, seeds)
        yield port
        nursery.cancel_scope.cancel()


def _raise(error: Exception) -> None:
    raise error


async def wait_logged(node: NodeProcess, text: str) -> None:
    await trio.to_thread.run_sync(until, lambda: text in node.log)


async def test_the_key_of_one_node_does_not_authenticate_another_node(tmp_path: Path) -> None:
    keys = keys_of(tmp_path / "keys", "a", "b", "c")
    with cluster(tmp_path, keys, "a", "b") as running:
        a, b = running["a"], running["b"]
        await wait_logged(a, f"peer b at 127.0.0.1:{b.port} is within reach")
        async with impostor(keys, "c", holds="b", seed=a.port) as port:
            await wait_logged(
                a,
                f"peer at 127.0.0.1:{port} cannot be reached: the certificate of 127.0.0.1:{port} "
                "does not name 'c.node.ringfence.internal', but",
            )
        assert "peer c at" not in a.log


async def test_a_stolen_key_does_not_authenticate_a_peer_to_the_node_that_it_belongs_to(
    tmp_path: Path,
) -> None:
    keys = keys_of(tmp_path / "keys", "a", "b")
    with cluster(tmp_path, keys, "a") as running:
        async with impostor(keys, "b", holds="a", seed=running["a"].port):
            await wait_logged(running["a"], "does not name 'b.node.ringfence.internal', but")
        assert "peer b at" not in running["a"].log


async def test_a_node_with_its_own_key_is_accepted(tmp_path: Path) -> None:
    keys = keys_of(tmp_path / "keys", "a", "c")
    with cluster(tmp_path, keys, "a") as running:
        async with impostor(keys, "c", holds="c", seed=running["a"].port) as port:
            await wait_logged(running["a"], f"peer c at 127.0.0.1:{port} is within reach")


def test_a_node_does_not_start_with_the_certificate_of_another_node(tmp_path: Path) -> None:
    keys = keys_of(tmp_path / "keys", "b")
    keys.certificate_of("b").rename(keys.certificate_of("c"))
    keys.key_of("b").rename(keys.key_of("c"))

    status, _, err = ringfence("node", "--keys", str(keys.path), "--name", "c")

    assert status == 2
    assert "must name c.node.ringfence.internal, got b.node.ringfence.internal" in err


async def test_names_are_verified_after_a_reload_without_the_shared_certificate(
    tmp_path: Path,
) -> None:
    """Test the two steps in which a cluster replaces its shared certificate."""
    keys = keys_of(tmp_path / "keys")
    for name in ("a", "b", "c"):
        add_node(keys.path, name, [], [], 2)
    with cluster(tmp_path, keys, "a") as running:
        a = running["a"]
        async with impostor(keys, "b", holds="c", seed=a.port) as port:
            await wait_logged(a, f"peer b at 127.0.0.1:{port} is within reach")
        keys_of_a = KeyDir(tmp_path / "keys-a")
        keys_of_a.certificate.unlink()
        keys_of_a.key.unlink()
        a.signal(SIGHUP)
        async with impostor(keys, "c", holds="b", seed=a.port):
            await wait_logged(a, "does not name 'c.node.ringfence.internal', but")


async def test_a_reload_applies_a_renewed_certificate(tmp_path: Path) -> None:
    keys = keys_of(tmp_path / "keys", "a")
    with cluster(tmp_path, keys, "a") as running:
        a = running["a"]
        assert await connection_error(keys, a.port, "new.example.org") is not None
        keys_of_a = KeyDir(tmp_path / "keys-a")
        add_node(keys.path, "a", ["new.example.org"], [], 2, replace=True)
        keys_of_a.certificate_of("a").write_bytes(keys.certificate_of("a").read_bytes())
        a.signal(SIGHUP)
        await wait_logged(a, "keys not reloaded, the old ones stay in force: the key in")
        keys_of_a.key_of("a").write_bytes(keys.key_of("a").read_bytes())
        a.signal(SIGHUP)
        await wait_logged(a, "keys and certificates reloaded")
        assert await connection_error(keys, a.port, "new.example.org") is None


async def connection_error(keys: KeyDir, port: int, server_name: str) -> str | None:
    """Return why a client that verifies this name cannot connect, None when it can."""
    tls = load_client_tls(keys.ca, datetime.now(UTC), server_name=server_name)
    transport = TrioUdp(on_bug=_raise, client=tls)
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run)
        caller = Caller(transport=transport)
        transport.connect(("127.0.0.1", port), caller)
        transport.flush()
        await caller.wait_open()
        nursery.cancel_scope.cancel()
    return None if caller.closed is None else caller.closed[1]
