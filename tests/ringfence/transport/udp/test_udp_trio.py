"""UDP transport on trio, over real sockets on loopback."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import pytest
import trio

from ringfence.errors import ConfigError, LocalProtocolError
from ringfence.transport.close_reason import TransportCode
from ringfence.transport.interface import MAX_SEALED, Address, Connection
from ringfence.transport.settings import Settings
from ringfence.transport.tls.certificate_authority import self_signed
from ringfence.transport.tls.certificates import ClientTls
from ringfence.transport.udp.udp_trio import TrioUdp
from ringfence.wire.errors import ErrorCode


@dataclass(eq=False)
class Log:
    """Handler that records its calls; `wait_until` waits for them."""

    echoes: bool = False
    connection: Connection | None = None
    messages: list[bytes] = field(default_factory=list)
    closed: tuple[int, str] | None = None
    changed: trio.Event = field(default_factory=trio.Event)

    def on_open(self, connection: Connection) -> None:
        self.connection = connection
        self._notify()

    def on_message(self, payload: bytes) -> None:
        self.messages.append(payload)
        if self.echoes:
            assert self.connection is not None
            self.connection.send(payload)
        self._notify()

    def on_close(self, code: int, reason: str) -> None:
        self.closed = code, reason
        self._notify()

    def _notify(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(30):
            while not condition():
                await self.changed.wait()


def report(error: Exception) -> None:
    raise error


def node(bind: Address = ("127.0.0.1", 0), accepted: list[Log] | None = None) -> TrioUdp:
    def accept(_: Connection) -> Log:
        log = Log(echoes=True)
        if accepted is not None:
            accepted.append(log)
        return log

    return TrioUdp(bind, on_bug=report, server=self_signed(datetime.now(UTC)), accept=accept)


def app(bind: Address | None = None) -> TrioUdp:
    return TrioUdp(bind, on_bug=report, client=ClientTls(verify=False))


@asynccontextmanager
async def running(*transports: TrioUdp) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for transport in transports:
            await nursery.start(transport.run)
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("bind", [None, ("127.0.0.1", 0)])
async def test_messages_are_sent_and_echoed(bind: Address | None) -> None:
    server, client = node(), app(bind)
    async with running(server, client):
        log = Log()
        connection = client.connect(server.address, log)
        payloads = [b"x", bytes(100_000), b"last"]
        for payload in payloads:
            connection.send(payload)
        client.flush()

        await log.wait_until(lambda: len(log.messages) == 3)

        assert log.messages == payloads
        assert connection.is_open
        assert (server.connections, client.connections) == (1, 1)


async def test_a_host_name_is_resolved_and_each_of_its_addresses_tried() -> None:
    server, client = node(), app()
    async with running(server, client):
        log = Log()
        connection = client.connect(("localhost", server.address[1]), log)
        connection.send(b"hello")

        await log.wait_until(lambda: log.messages == [b"hello"])

        assert connection.address == ("localhost", server.address[1])


async def test_a_name_that_does_not_exist_is_reported() -> None:
    client = app()
    async with running(client):
        log = Log()
        client.connect(("no-such-host.invalid", 7600), log)

        await log.wait_until(lambda: log.closed is not None)

        reason = "the name 'no-such-host.invalid' has no address that this host can use"
        assert log.closed == (TransportCode.UNREACHABLE, reason)


async def test_an_address_without_a_listener_is_reported_at_once() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        unused.bind(("127.0.0.1", 0))
        address = unused.getsockname()
    client = app()
    async with running(client):
        log = Log()
        client.connect(address, log)

        with trio.fail_after(30):
            await log.wait_until(lambda: log.closed is not None)

        reason = f"no process listens at 127.0.0.1:{address[1]}"
        assert log.closed == (TransportCode.UNREACHABLE, reason)


async def test_a_stopping_transport_closes_its_connections() -> None:
    server, client = node(), app()
    async with running(client):
        log = Log()
        async with running(server):
            client.connect(server.address, log).send(b"hello")
            await log.wait_until(lambda: log.messages == [b"hello"])

        await log.wait_until(lambda: log.closed is not None)

        assert log.closed == (ErrorCode.DRAINING, "shutting down")


async def test_invalid_datagrams_are_counted_and_affect_no_connection() -> None:
    server, client = node(), app()
    async with running(server, client):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for junk in (b"", b"\x00", b"\x40", b"\xff" * 1400, bytes(9000)):
                sender.sendto(junk, server.address)
            log = Log()
            client.connect(server.address, log).send(b"hello")
            await log.wait_until(lambda: log.messages == [b"hello"])

        assert server.refusals.total() == 5


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("127.0.0.1", "another program has this UDP port"),
        ("203.0.113.1", "no interface of this host has that address"),
        ("no-such-host.invalid", "no such host name or address"),
    ],
)
async def test_an_address_that_cannot_be_bound_raises_a_clear_error(
    host: str, message: str
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))

        with pytest.raises(ConfigError, match=message):
            await node((host, taken.getsockname()[1])).run()


async def test_a_transport_that_does_not_run_cannot_connect() -> None:
    with pytest.raises(LocalProtocolError):
        app().connect(("127.0.0.1", 1), Log())


async def test_call_soon_waits_for_the_tasks_that_are_ready() -> None:
    client = app()
    order: list[str] = []

    async def work(name: str) -> None:
        client.call_soon(partial(order.append, f"soon after {name}"))
        order.append(name)

    async with running(client), trio.open_nursery() as nursery:
        for i in range(5):
            nursery.start_soon(work, str(i))
        while len(order) < 10:
            await trio.lowlevel.checkpoint()

    assert sorted(order[:5]) == ["0", "1", "2", "3", "4"]
    assert order[5:] == [f"soon after {name}" for name in order[:5]]


async def test_call_at_keeps_its_order_and_a_cancelled_call_is_not_made() -> None:
    client = app()
    made: list[str] = []
    done = trio.Event()
    async with running(client):
        now = client.now()
        client.call_at(now + 0.02, done.set)
        client.call_at(now + 0.01, partial(made.append, "second"))
        client.call_at(now + 0.005, partial(made.append, "first"))
        client.call_at(now + 0.007, partial(made.append, "never")).cancel()

        with trio.fail_after(30):
            await done.wait()

    assert made == ["first", "second"]


async def test_a_name_server_that_never_answers_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = TrioUdp(
        on_bug=report,
        client=ClientTls(verify=False),
        settings=Settings(handshake_timeout=0.02),
    )
    monkeypatch.setattr(client, "_resolve", lambda *_: None)
    async with running(client):
        log = Log()
        client.connect(("never.example", 1), log)

        await log.wait_until(lambda: log.closed is not None)

    assert log.closed is not None
    assert log.closed[0] == TransportCode.HANDSHAKE_TIMEOUT


@pytest.mark.parametrize("step", ["_read", "_run_soon", "_tick"])
async def test_an_exception_of_the_transport_is_reported_and_stops_nothing(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bugs: list[Exception] = []
    client = TrioUdp(("127.0.0.1", 0), on_bug=bugs.append)
    works, done = getattr(client, step), trio.Event()

    def break_once() -> None:
        monkeypatch.setattr(client, step, works)
        raise ZeroDivisionError

    monkeypatch.setattr(client, step, break_once)
    async with running(client):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"junk", client.address)
        client.call_at(client.now() + 0.01, partial(client.call_soon, done.set))
        client.call_soon(partial(client.call_at, client.now() + 0.02, partial(str, 1)))
        with trio.fail_after(30):
            while not (done.is_set() and bugs):
                await trio.sleep(0.01)
                client.call_soon(done.set)
                client.call_at(client.now(), partial(str, 1))

    assert [type(bug) for bug in bugs] == [ZeroDivisionError]


async def test_a_bug_in_a_planned_call_is_reported_and_stops_nothing() -> None:
    bugs: list[Exception] = []
    client = TrioUdp(on_bug=bugs.append)
    done = trio.Event()
    async with running(client):
        client.call_soon(lambda: 1 // 0)
        client.call_soon(done.set)
        with trio.fail_after(30):
            await done.wait()

    assert [type(bug) for bug in bugs] == [ZeroDivisionError]


# Sealed datagrams.


class Sealed:
    """Sealed datagrams that a transport receives; `wait_for` waits for a number of them."""

    def __init__(self, transport: TrioUdp) -> None:
        self.received: list[tuple[bytes, Address]] = []
        self.transport = transport
        transport.receive_sealed(self.take)

    def take(self, datagram: bytes, source: Address) -> None:
        self.received.append((datagram, source))

    async def wait_for(self, count: int) -> None:
        with trio.fail_after(30):
            while len(self.received) < count:
                await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("bind", [None, ("127.0.0.1", 0)])
async def test_sealed_datagrams_are_sent_in_both_directions_beside_connections(
    bind: Address | None,
) -> None:
    server, client = node(), app(bind)
    async with running(server, client):
        there, back = Sealed(server), Sealed(client)
        log = Log()
        client.connect(server.address, log).send(b"hello")

        client.send_sealed(b"\x00ping", server.address)
        await there.wait_for(1)
        [(datagram, source)] = there.received
        server.send_sealed(b"\x9fpong", source)
        await back.wait_for(1)
        await log.wait_until(lambda: log.messages == [b"hello"])

        assert datagram == b"\x00ping"
        assert back.received == [(b"\x9fpong", server.address)]
        assert source[1] == client.address[1]
        assert server.refusals.total() == client.refusals.total() == 0


async def test_the_largest_sealed_datagram_passes_and_no_larger_one_is_sent() -> None:
    server, client = node(), app()
    async with running(server, client):
        there = Sealed(server)

        for wrong in (b"", bytes(MAX_SEALED + 1), b"\x40like QUIC"):
            with pytest.raises(LocalProtocolError, match="sealed datagram"):
                client.send_sealed(wrong, server.address)
        client.send_sealed(bytes(MAX_SEALED), server.address)
        await there.wait_for(1)

        assert [len(datagram) for datagram, _ in there.received] == [MAX_SEALED]


async def test_sealed_datagrams_to_a_name_arrive_once_it_is_resolved() -> None:
    server, client = node(), app()
    async with running(server, client):
        there = Sealed(server)

        with trio.fail_after(30):
            while not there.received:
                client.send_sealed(b"\x00ping", ("localhost", server.address[1]))
                await trio.lowlevel.checkpoint()

        assert there.received[0][0] == b"\x00ping"
        assert client.refusals.total() == 0


async def test_an_unknown_name_for_sealed_datagrams_is_counted_and_tried_again() -> None:
    client = app()
    async with running(client):
        clock = client.now()
        client.now = lambda: clock  # type: ignore[method-assign]
        for tries in (1, 2):
            with trio.fail_after(30):
                while client.refusals["name_not_resolved"] < tries:
                    client.send_sealed(b"\x00ping", ("no-such-host.invalid", 7600))
                    await trio.lowlevel.checkpoint()
            client.send_sealed(b"\x00ping", ("no-such-host.invalid", 7600))
            clock += 1.0

        assert client.refusals == {"name_not_resolved": 2}


async def test_sealed_datagrams_without_a_receiver_are_dropped() -> None:
    server, client = node(), app(("127.0.0.1", 0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        unused.bind(("127.0.0.1", 0))
        no_member = unused.getsockname()
    async with running(server, client):
        there = Sealed(server)
        log = Log()
        connection = client.connect(server.address, log)
        await log.wait_until(lambda: log.connection is not None)
        for _ in range(10):
            client.send_sealed(b"\x00ping", no_member)
            client.send_sealed(b"\x00ping", ("203.0.113.1", 9))

        client.send_sealed(b"\x00pong", server.address)
        connection.send(b"hello")
        client.flush()
        await there.wait_for(1)
        await log.wait_until(lambda: log.messages == [b"hello"])

        assert connection.is_open


async def test_a_transport_that_does_not_run_drops_sealed_datagrams_without_an_error() -> None:
    client = app()
    client.send_sealed(b"\x00ping", ("localhost", 9))
    async with running(client):
        pass

    client.send_sealed(b"\x00ping", ("localhost", 9))


async def test_a_bug_in_a_receiver_of_sealed_datagrams_is_reported_and_stops_nothing() -> None:
    bugs: list[Exception] = []
    server, client = TrioUdp(("127.0.0.1", 0), on_bug=bugs.append), app()

    def fail(datagram: bytes, source: Address) -> None:
        raise ZeroDivisionError

    async with running(server, client):
        server.receive_sealed(fail)
        client.send_sealed(b"\x00first", server.address)
        with trio.fail_after(30):
            while not bugs:
                await trio.lowlevel.checkpoint()
        there = Sealed(server)
        client.send_sealed(b"\x00second", server.address)
        await there.wait_for(1)

    assert [type(bug) for bug in bugs] == [ZeroDivisionError]


async def test_messages_of_open_connections_do_not_wait_for_handshakes() -> None:
    accepted: list[Log] = []
    listening, client = node(accepted=accepted), app()
    others = [app() for _ in range(16)]
    async with running(listening, client, *others):
        log = Log()
        client.connect(listening.address, log)
        await log.wait_until(lambda: log.connection is not None)
        assert log.connection is not None
        log.connection.send(b"first")
        client.flush()
        await log.wait_until(lambda: log.messages == [b"first"])
        # All these datagrams wait in the kernel before the listener reads the first one.
        logs = [Log() for _ in others]
        for other, each in zip(others, logs, strict=True):
            other.connect(listening.address, each)
            other.flush()
        log.connection.send(b"hello")
        client.flush()

        await accepted[0].wait_until(lambda: accepted[0].messages == [b"first", b"hello"])

        assert listening.connections - 1 < 4
        for each in logs:
            await each.wait_until(lambda each=each: each.connection is not None)


async def test_datagrams_of_handshakes_beyond_the_bound_are_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ringfence.transport.udp.udp_transport._MAX_HANDSHAKE_QUEUE", 2)
    listening = node()
    others = [app() for _ in range(6)]
    async with running(listening, *others):
        logs = [Log() for _ in others]
        for other, each in zip(others, logs, strict=True):
            other.connect(listening.address, each)
            other.flush()
        for each in logs:  # Dropped datagrams are sent again.
            await each.wait_until(lambda each=each: each.connection is not None)

        assert listening.refusals["handshakes_waiting"] > 0
