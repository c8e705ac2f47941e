"""Simulated network between endpoints, without sockets and with a fake clock."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random

from aioquic.quic.connection import QuicConnection as AioquicBase
from msgspec.structs import replace

from ringfence.transport.interface import Address, Connection
from ringfence.transport.quic.configuration import client_configuration
from ringfence.transport.quic.connection import QuicConnection
from ringfence.transport.quic.endpoint import Endpoint
from ringfence.transport.settings import Settings
from ringfence.transport.tls.certificate_authority import issue, new_authority
from ringfence.transport.tls.certificates import ClientTls, ServerTls
from ringfence.wire.framing import MAX_MESSAGE

NODE: Address = ("10.0.0.1", 7600)
OTHER_NODE: Address = ("10.0.0.2", 7600)
APP: Address = ("10.0.1.1", 40000)
NOW = datetime.now(UTC)


@cache
def authority() -> tuple[bytes, bytes]:
    return new_authority(NOW, days=30)


@cache
def node_tls() -> ServerTls:
    return ServerTls(*issue(*authority(), [], ["10.0.0.1"], NOW, 30))


def trust() -> ClientTls:
    return ClientTls(authority()[0])


@dataclass(eq=False)
class Log:
    """Handler that records its calls; `reply` may answer a message."""

    reply: Callable[[Connection, bytes], None] | None = None
    connection: Connection | None = None
    messages: list[bytes] = field(default_factory=list)
    closed: tuple[int, str] | None = None

    def on_open(self, connection: Connection) -> None:
        self.connection = connection

    def on_message(self, payload: bytes) -> None:
        self.messages.append(payload)
        if self.reply is not None:
            assert self.connection is not None
            self.reply(self.connection, payload)

    def on_close(self, code: int, reason: str) -> None:
        assert self.closed is None
        self.closed = code, reason


def echo() -> Log:
    return Log(lambda connection, payload: connection.send(payload))


class Network:
    """Simulated network that delivers datagrams after 5 ms, or loses them."""

    def __init__(self, loss: float = 0.0, seed: int = 0, *, use_fast_path: bool = True) -> None:
        self.use_fast_path = use_fast_path
        self.now = 1000.0
        self.loss = loss
        self.random = Random(seed)
        self.endpoints: dict[Address, Endpoint] = {}
        self.bugs: list[Exception] = []
        self.accepted: list[Log] = []
        self.carried: list[tuple[Address, Address, bytes]] = []
        self.lost: Callable[[Address, Address, bytes], bool] = lambda *_: False
        self._flight: list[tuple[float, int, Address, Address, bytes]] = []
        self._order = count()

    def node(
        self,
        address: Address = NODE,
        *,
        tls: ServerTls | None = None,
        handler: Callable[[], Log] = echo,
        options: Settings | None = None,
        on_sealed: Callable[[bytes, Address], None] | None = None,
    ) -> Endpoint:
        def accept(_: Connection) -> Log:
            self.accepted.append(handler())
            return self.accepted[-1]

        endpoint = Endpoint(
            # These callers send long messages without a hello.
            settings=self._settings(options or Settings(max_untrusted_message=MAX_MESSAGE)),
            on_bug=self.bugs.append,
            client=trust(),
            server=tls or node_tls(),
            accept=accept,
        )
        endpoint.receive_sealed(on_sealed)
        self.endpoints[address] = endpoint
        return endpoint

    def app(
        self,
        address: Address = APP,
        *,
        tls: ClientTls | None = None,
        options: Settings | None = None,
    ) -> Endpoint:
        endpoint = Endpoint(
            settings=self._settings(options or Settings()),
            on_bug=self.bugs.append,
            client=tls or trust(),
        )
        self.endpoints[address] = endpoint
        return endpoint

    def connect(self, app: Endpoint, to: Address = NODE) -> tuple[QuicConnection, Log]:
        log = Log()
        connection = app.dialer.prepare(to, log, self.now)
        app.dialer.begin(connection, [to], self.now)
        return connection, log

    def inject(self, datagram: bytes, source: Address, target: Address = NODE) -> None:
        endpoint = self.endpoints[target]
        if not endpoint.receive_established(datagram, source, self.now):
            endpoint.receive_datagram(datagram, source, self.now)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            self._send()
            deadlines = [self._flight[0][0]] if self._flight else []
            for endpoint in self.endpoints.values():
                deadline = endpoint.next_deadline()
                if deadline is not None:
                    deadlines.append(deadline)
            soonest = min(deadlines, default=inf)
            if soonest > end:
                break
            self.now = max(self.now, soonest)
            while self._flight and self._flight[0][0] <= self.now:
                _, _, source, target, datagram = heappop(self._flight)
                if target in self.endpoints:
                    self.inject(datagram, source, target)
            for endpoint in self.endpoints.values():
                endpoint.tick(self.now)
        self.now = end

    def _settings(self, options: Settings) -> Settings:
        return replace(options, use_fast_path=self.use_fast_path)

    def _send(self) -> None:
        for source, endpoint in self.endpoints.items():
            for datagram, target in endpoint.datagrams_to_send(self.now):
                self.carried.append((source, target, datagram))
                if self.random.random() >= self.loss and not self.lost(source, target, datagram):
                    entry = (self.now + 0.005, next(self._order), source, target, datagram)
                    heappush(self._flight, entry)


def open_pair(network: Network, handler: Callable[[], Log] = echo) -> tuple[QuicConnection, Log]:
    network.node(handler=handler)
    connection, log = network.connect(network.app())
    network.run(0.1)
    assert connection.is_open
    return connection, log


def assert_still_serves(network: Network, connection: QuicConnection, log: Log) -> None:
    connection.send(b"are you well?")
    network.run(1)
    assert log.messages[-1] == b"are you well?"


def first_datagram(network: Network) -> bytes:
    quic = AioquicBase(configuration=client_configuration(trust(), Settings()))
    quic.connect(NODE, network.now)
    return quic.datagrams_to_send(network.now)[0][0]
