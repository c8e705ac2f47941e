"""Host names of seeds are resolved again when a client has lost all nodes."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from random import Random

import trio

from node.config.access import load_access
from node.config.settings import NodeSettings
from node.node import Node
from ringfence.client.cluster.cluster import Cluster, ClusterSettings
from ringfence.client.limiter import Limiter
from ringfence.peering.clock import SystemClock
from ringfence.rules.loading.mapping import load_mapping
from ringfence.transport.tls.certificate_authority import self_signed
from ringfence.transport.tls.certificates import ClientTls
from ringfence.transport.udp.udp_trio import TrioUdp
from ringfence.wire import Hello, Role, Source

LIMIT = {"requests_per_unit": 5, "unit": "hour"}
RULES = load_mapping({"domain": "d", "descriptors": [{"key": "u", "rate_limit": LIMIT}]}).rules


class Resolver(trio.abc.HostnameResolver):
    """Resolver that returns the address that the test sets."""

    def __init__(self) -> None:
        self.address = "127.0.0.1"
        self.asked: list[str] = []

    async def getaddrinfo(self, host, port, *args, **options):  # type: ignore[no-untyped-def]
        """Return the current address for the name of the cluster."""
        name = host.decode() if isinstance(host, bytes) else host
        if name == "cluster.test":
            self.asked.append(self.address)
            name = self.address
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (name, port or 0))]

    async def getnameinfo(self, sockaddr, flags):  # type: ignore[no-untyped-def]
        """Raise an error, because no code calls this method."""
        raise NotImplementedError


@asynccontextmanager
async def serving(name: str, host: str, port: int) -> AsyncIterator[None]:
    """Run a node that is the only member of its cluster."""
    settings = NodeSettings(name=name, listen=f"{host}:{port}")
    node = Node(settings, load_access(None), RULES, clock=SystemClock(), random=Random(name))
    transport = TrioUdp(
        settings.listen_at,
        on_bug=_raise,
        client=ClientTls(verify=False),
        server=self_signed(datetime.now(UTC)),
        accept=node.accept,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run)
        await nursery.start(node.run, transport)
        yield
        await node.leave()
        nursery.cancel_scope.cancel()


async def test_seed_names_are_resolved_again_after_losing_all_nodes() -> None:
    resolver = Resolver()
    trio.socket.set_custom_hostname_resolver(resolver)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    transport = TrioUdp(None, on_bug=_raise, client=ClientTls(verify=False))
    hello = Hello(Role.CLIENT, "app", b"", 1)
    cluster = Cluster(
        transport, [("cluster.test", port)], hello, ClusterSettings(), SystemClock(), Random(1)
    )
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            await nursery.start(transport.run)
            async with serving("old", "127.0.0.1", port):
                await nursery.start(cluster.run)
                assert await cluster.wait_joined(5.0) is None
                assert (await Limiter(cluster).check("d", {"u": "1"})).source is Source.OWNER
            resolver.address = "127.0.0.2"
            async with serving("new", "127.0.0.2", port):
                while [row.name for row in cluster.members] != ["new"]:  # noqa: ASYNC110
                    await trio.sleep(0.05)
                assert (await Limiter(cluster).check("d", {"u": "1"})).source is Source.OWNER
            cluster.close()
            nursery.cancel_scope.cancel()
    assert {"127.0.0.1", "127.0.0.2"} == set(resolver.asked)


def _raise(error: BaseException) -> None:
    raise error
