"""Seeds resolved by a real name server on loopback, whose records change."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.resolver
import dns.rrset
import pytest
import trio

from node.config.discovery import Discovery

SERVICE = "_ringfence._udp.prod.test."


class NameServer:
    """Name server on UDP that answers from a table. The test can change the table."""

    def __init__(self, rows: dict[tuple[str, str], list[str]]) -> None:
        self.rows = rows
        self.queries: list[tuple[str, str]] = []
        self.is_mute = False
        self.resolver = dns.asyncresolver.Resolver(configure=False)
        self.resolver.lifetime = 30

    async def run(self, sock: trio.socket.SocketType) -> None:
        while True:
            wire, client = await sock.recvfrom(4096)
            if not self.is_mute:
                await sock.sendto(self._answer(dns.message.from_wire(wire)).to_wire(), client)

    def _answer(self, query: dns.message.Message) -> dns.message.Message:
        [question] = query.question
        name, kind = question.name.to_text(), dns.rdatatype.to_text(question.rdtype)
        self.queries.append((name, kind))
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.AA
        texts = self.rows.get((name, kind))
        if texts:
            answer.answer.append(dns.rrset.from_text(question.name, 0, "IN", kind, *texts))
        elif not any(known == name for known, _ in self.rows):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        return answer


class Host(trio.abc.HostnameResolver):
    """Resolver of a host that is configured to use the name server."""

    def __init__(self, resolver: dns.asyncresolver.Resolver) -> None:
        self._resolver = resolver

    async def getaddrinfo(self, host, port, *args, **options):  # type: ignore[no-untyped-def]
        """Resolve IPv6 and IPv4 addresses."""
        name = host.decode() if isinstance(host, bytes) else host
        rows = []
        for kind, family in (("AAAA", socket.AF_INET6), ("A", socket.AF_INET)):
            try:
                for found in await self._resolver.resolve(name, kind):
                    rows.append((family, socket.SOCK_DGRAM, 17, "", (found.address, port)))
            except (dns.resolver.NoAnswer, dns.resolver.NXDOMAIN):
                continue
        if not rows:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return rows

    async def getnameinfo(self, sockaddr, flags):  # type: ignore[no-untyped-def]
        """Fail, because no test needs it."""
        raise NotImplementedError


@asynccontextmanager
async def name_server(
    monkeypatch: pytest.MonkeyPatch, rows: dict[tuple[str, str], list[str]]
) -> AsyncIterator[NameServer]:
    """Start a name server and make this host use it for all queries."""
    server = NameServer(rows)
    with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        await sock.bind(("127.0.0.1", 0))
        resolver = server.resolver
        resolver.nameservers = ["127.0.0.1"]
        resolver.port = sock.getsockname()[1]
        monkeypatch.setattr(dns.asyncresolver, "default_resolver", resolver)
        trio.socket.set_custom_hostname_resolver(Host(resolver))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run, sock)
            yield server
            nursery.cancel_scope.cancel()


async def test_a_dns_seed_gives_all_addresses_and_is_resolved_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = {
        ("nodes.test.", "A"): ["10.0.0.1", "10.0.0.2"],
        ("nodes.test.", "AAAA"): ["fd00::1"],
    }
    async with name_server(monkeypatch, rows) as server:
        discovery = Discovery(["dns:nodes.test:7101"])
        before = await discovery.resolve()
        server.rows = {("nodes.test.", "A"): ["10.0.0.3"]}
        after = await discovery.resolve()

    assert sorted(before) == [("10.0.0.1", 7101), ("10.0.0.2", 7101), ("fd00::1", 7101)]
    assert after == [("10.0.0.3", 7101)]


async def test_a_service_record_gives_target_addresses_with_their_ports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = {
        (SERVICE, "SRV"): ["0 0 7101 a.prod.test.", "0 0 7201 b.prod.test."],
        ("a.prod.test.", "A"): ["10.0.0.1"],
        ("b.prod.test.", "AAAA"): ["fd00::2"],
    }
    async with name_server(monkeypatch, rows) as server:
        discovery = Discovery(["srv:_ringfence._udp.prod.test"])
        before = await discovery.resolve()
        server.rows = {
            (SERVICE, "SRV"): ["0 0 7301 c.prod.test."],
            ("c.prod.test.", "A"): ["10.0.0.9"],
        }
        after = await discovery.resolve()

    assert sorted(before) == [("10.0.0.1", 7101), ("fd00::2", 7201)]
    assert after == [("10.0.0.9", 7301)]
    assert server.queries.count((SERVICE, "SRV")) == 2


async def test_a_target_of_a_service_without_an_address_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record of a member that has just ended may remain for some time."""
    rows = {
        (SERVICE, "SRV"): ["0 0 7101 gone.prod.test.", "0 0 7201 b.prod.test."],
        ("b.prod.test.", "A"): ["10.0.0.2"],
    }
    async with name_server(monkeypatch, rows) as server:
        discovery = Discovery(["srv:_ringfence._udp.prod.test"])
        before = await discovery.resolve()
        del server.rows["b.prod.test.", "A"]
        after = await discovery.resolve()

    assert before == [("10.0.0.2", 7201)]
    assert after == before, "the previous addresses are used when no target has an address"


async def test_previous_addresses_are_used_while_the_name_server_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = {(SERVICE, "SRV"): ["0 0 7101 a.prod.test."], ("a.prod.test.", "A"): ["10.0.0.1"]}
    async with name_server(monkeypatch, rows) as server:
        discovery = Discovery(["srv:_ringfence._udp.prod.test", "dns:nodes.test:7101"])
        expected = [("10.0.0.1", 7101)]
        assert await discovery.resolve() == expected, "the name has no records yet"
        server.rows = {}
        assert await discovery.resolve() == expected
        server.is_mute, server.resolver.lifetime = True, 0.2
        assert await discovery.resolve() == expected
        server.is_mute, server.resolver.lifetime = False, 30
        server.rows = {("nodes.test.", "A"): ["10.0.0.2"]}
        assert await discovery.resolve() == [*expected, ("10.0.0.2", 7101)]
