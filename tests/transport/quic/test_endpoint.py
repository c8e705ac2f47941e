"""Endpoints joined by a wire of our own: no sockets, and a clock that jumps."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random

import pytest
from aioquic.quic.connection import QuicConnection as AioquicBase
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.recovery import QuicPacketRecovery
from aioquic.quic.stream import QuicStream
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringfence.transport.close_reason import TransportCode
from ringfence.transport.interface import Address, Connection
from ringfence.transport.quic.aioquic_connection import AioquicConnection
from ringfence.transport.quic.connection import QuicConnection
from ringfence.transport.quic.endpoint import Endpoint
from ringfence.transport.settings import Settings
from ringfence.transport.tls.certificate_authority import issue, new_authority, self_signed
from ringfence.transport.tls.certificates import (
    ClientTls,
    ServerTls,
    client_configuration,
    node_server_name,
)
from ringfence.wire.errors import ErrorCode
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
    """A handler that remembers; `reply` may answer."""

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


class Wire:
    """Carries datagrams between endpoints after 5 ms each, or loses them."""

    def __init__(self, loss: float = 0.0, seed: int = 0) -> None:
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
            settings=options or Settings(stranger_message=MAX_MESSAGE),
            on_bug=self.bugs.append,
            client=trust(),
            server=tls or node_tls(),
            accept=accept,
        )
        endpoint.on_sealed = on_sealed
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
            settings=options or Settings(), on_bug=self.bugs.append, client=tls or trust()
        )
        self.endpoints[address] = endpoint
        return endpoint

    def connect(self, app: Endpoint, to: Address = NODE) -> tuple[QuicConnection, Log]:
        log = Log()
        pipe = app.connect(to, log, self.now)
        assert isinstance(pipe, QuicConnection)
        return pipe, log

    def inject(self, datagram: bytes, source: Address, target: Address = NODE) -> None:
        self.endpoints[target].receive_datagram(datagram, source, self.now)

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
                    self.endpoints[target].receive_datagram(datagram, source, self.now)
            for endpoint in self.endpoints.values():
                endpoint.tick(self.now)
        self.now = end

    def _send(self) -> None:
        for source, endpoint in self.endpoints.items():
            for datagram, target in endpoint.datagrams_to_send(self.now):
                self.carried.append((source, target, datagram))
                if self.random.random() >= self.loss and not self.lost(source, target, datagram):
                    entry = (self.now + 0.005, next(self._order), source, target, datagram)
                    heappush(self._flight, entry)


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    assert made.bugs == []


def open_pair(wire: Wire, handler: Callable[[], Log] = echo) -> tuple[QuicConnection, Log]:
    wire.node(handler=handler)
    pipe, log = wire.connect(wire.app())
    wire.run(0.1)
    assert pipe.is_open
    return pipe, log


# Messages.


@pytest.mark.parametrize("size", [1, 60, 1200, 65_536, MAX_MESSAGE])
def test_a_message_of_any_size_goes_there_and_back(wire: Wire, size: int) -> None:
    pipe, log = open_pair(wire)
    payload = Random(size).randbytes(size)

    pipe.send(payload)
    wire.run(5)

    assert log.messages == [payload]
    assert pipe.unsent == 0


def test_what_is_sent_before_the_handshake_is_done_arrives_after_it(wire: Wire) -> None:
    wire.node()
    pipe, log = wire.connect(wire.app())

    pipe.send(b"early")
    assert pipe.unsent == 9
    wire.run(0.1)

    assert log.messages == [b"early"]
    assert pipe.unsent == 0


def test_the_accepting_side_may_speak_first_once_it_has_heard_something(wire: Wire) -> None:
    pipe, log = open_pair(wire, handler=Log)
    served = wire.accepted[0].connection
    assert served is not None

    served.send(b"welcome")
    pipe.send(b"hello")
    wire.run(0.1)

    assert log.messages == [b"welcome"]
    assert served.address == APP


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_lost_datagrams_delay_messages_but_neither_drop_nor_reorder_them(seed: int) -> None:
    wire = Wire(loss=0.15, seed=seed)
    wire.node()
    pipe, log = wire.connect(wire.app(options=Settings(handshake_timeout=20)))
    payloads = [Random(i).randbytes(1 + i * 97 % 3000) for i in range(60)]

    for payload in payloads:
        pipe.send(payload)
        wire.run(0.01)
    wire.run(60)

    assert log.messages == payloads
    assert wire.bugs == []


def test_two_nodes_connect_to_each_other_and_serve_an_app_on_the_same_ports(wire: Wire) -> None:
    one, other = wire.node(), wire.node(OTHER_NODE)
    app = wire.app()
    talks = [wire.connect(one, OTHER_NODE), wire.connect(other, NODE)]
    talks += [wire.connect(app, NODE), wire.connect(app, OTHER_NODE)]

    for i, (pipe, _) in enumerate(talks):
        pipe.send(b"from %d" % i)
    wire.run(0.2)

    assert [log.messages for _, log in talks] == [[b"from %d" % i] for i in range(4)]
    assert (one.connections, other.connections, app.connections) == (3, 3, 2)


def test_a_check_and_its_answer_cost_two_datagrams_when_they_follow_each_other(wire: Wire) -> None:
    pipe, log = open_pair(wire)
    wire.run(1)
    before = len(wire.carried)

    for i in range(20):
        pipe.send(b"check %d" % i)
        while len(log.messages) <= i:
            wire.run(0.0005)

    assert len(wire.carried) - before <= 44


# Ends.


def test_a_close_tells_the_peer_its_code_and_reason_after_what_was_sent_before(wire: Wire) -> None:
    pipe, log = open_pair(wire, handler=Log)

    pipe.send(b"last words")
    pipe.close(3, "enough")
    pipe.send(b"never leaves")
    wire.run(0.1)

    assert wire.accepted[0].messages == [b"last words"]
    assert wire.accepted[0].closed == (3, "enough")
    assert log.closed is None
    assert not pipe.is_open


def test_a_close_leaves_even_when_an_old_timer_comes_up_before_it(wire: Wire) -> None:
    pipe, _ = open_pair(wire)
    app = wire.endpoints[APP]
    pipe.send(b"one")
    wire.run(0.0101)  # The answer came, and its acknowledgement may wait a little.
    due = app.next_deadline()
    assert due is not None
    pipe.send(b"two")  # It rides on this, so that its time means nothing any more.
    wire.run(0)
    wire.now = due

    pipe.close(3, "enough")
    app.tick(wire.now)
    wire.run(0.1)

    assert wire.accepted[0].closed == (3, "enough")


def test_closed_connections_leave_nothing_behind(wire: Wire) -> None:
    node = wire.node()
    app = wire.app()
    for _ in range(3):
        pipe, _ = wire.connect(app)
        wire.run(0.1)
        pipe.close()
        wire.run(2)

    assert (node.connections, app.connections) == (0, 0)
    assert node._routes == {}
    assert app._routes == {}
    assert not node._pipes
    assert not app._pipes


def test_closing_everything_tells_every_peer(wire: Wire) -> None:
    node = wire.node()
    app = wire.app()
    logs = [wire.connect(app)[1] for _ in range(3)]
    wire.run(0.1)

    node.close_all(wire.now)
    wire.run(0.1)

    assert [log.closed for log in logs] == [(ErrorCode.DRAINING, "shutting down")] * 3


def test_an_idle_connection_is_kept_open_by_the_side_that_made_it(wire: Wire) -> None:
    pipe, log = open_pair(wire)

    wire.run(600)
    pipe.send(b"still there?")
    wire.run(0.1)

    assert log.messages == [b"still there?"]


def test_a_peer_that_goes_silent_is_given_up_after_the_idle_timeout(wire: Wire) -> None:
    pipe, log = open_pair(wire)

    wire.loss = 1.1
    wire.run(45)

    assert log.closed == (ErrorCode.IDLE, "idle timeout: 10.0.0.1:7600 went silent")
    assert wire.accepted[0].closed is not None
    assert wire.accepted[0].closed[0] == ErrorCode.IDLE
    assert not pipe.is_open


def test_a_node_that_restarts_ends_the_connections_it_has_forgotten(wire: Wire) -> None:
    pipe, log = open_pair(wire)
    pipe.send(b"before")
    wire.run(0.1)
    wire.node()  # In the place of the old one, with the same certificate and key.

    pipe.send(b"after")
    wire.run(0.1)

    reason = "10.0.0.1:7600 has restarted and no longer knows this connection"
    assert log.closed == (TransportCode.UNREACHABLE, reason)
    assert wire.endpoints[APP]._resets == {}


def test_only_the_holder_of_the_key_can_say_that_it_restarted(wire: Wire) -> None:
    pipe, _ = open_pair(wire)
    wire.run(1)
    wire.node(tls=self_signed(NOW))

    pipe.send(b"after")
    wire.run(0.1)

    assert pipe.is_open


def test_resets_cannot_make_two_endpoints_talk_for_ever(wire: Wire) -> None:
    wire.node(), wire.node(OTHER_NODE)

    wire.inject(b"\x40" + bytes(1000), OTHER_NODE)
    wire.run(10)

    assert len(wire.carried) < 30


def test_nobody_answering_is_told_as_such(wire: Wire) -> None:
    _, log = wire.connect(wire.app())

    wire.run(6)

    reason = "handshake timed out (no answer from 10.0.0.1:7600)"
    assert log.closed == (TransportCode.HANDSHAKE_TIMEOUT, reason)


def test_a_bug_in_a_handler_closes_its_connection_and_no_other() -> None:
    wire = Wire()

    def fail(_: Connection, payload: bytes) -> None:
        if payload == b"trigger":
            raise ZeroDivisionError

    wire.node(handler=lambda: Log(fail))
    app = wire.app()
    bad, bad_log = wire.connect(app)
    good, good_log = wire.connect(app)
    wire.run(0.1)

    bad.send(b"trigger")
    good.send(b"fine")
    wire.run(0.1)

    assert [type(bug) for bug in wire.bugs] == [ZeroDivisionError]
    assert bad_log.closed == (ErrorCode.INTERNAL, "internal error")
    assert good_log.closed is None
    assert good.is_open


# Trust.


def refusal_of(wire: Wire, server: ServerTls, client: ClientTls) -> tuple[int, str]:
    wire.node(tls=server)
    _, log = wire.connect(wire.app(tls=client))
    wire.run(1)
    assert log.closed is not None
    assert wire.accepted == []
    assert wire.endpoints[NODE].refusals["handshake_refused_by_peer"] == 1
    return log.closed


def test_a_certificate_of_another_authority_is_refused(wire: Wire) -> None:
    other_ca, _ = new_authority(NOW, 30)

    code, reason = refusal_of(wire, node_tls(), ClientTls(other_ca))

    assert code == TransportCode.CERTIFICATE
    assert reason.startswith("the CA given does not sign the certificate of 10.0.0.1:7600")


def test_an_expired_certificate_is_refused(wire: Wire) -> None:
    expired = ServerTls(*issue(*authority(), [], [], NOW - timedelta(days=9), 8))

    code, reason = refusal_of(wire, expired, trust())

    assert code == TransportCode.CERTIFICATE_EXPIRED
    assert reason.startswith("the certificate of 10.0.0.1:7600 has expired or is not valid yet")
    assert "ringfence keys renew" in reason


def test_a_certificate_without_the_expected_name_is_refused(wire: Wire) -> None:
    code, reason = refusal_of(
        wire, node_tls(), ClientTls(authority()[0], server_name="limits.example")
    )

    assert code == TransportCode.CERTIFICATE
    assert reason.startswith("the certificate of 10.0.0.1:7600 does not name 'limits.example'")


@pytest.mark.parametrize(
    ("node", "by_node_name", "is_open"),
    [("b", True, True), ("c", True, False), ("c", False, True), ("", True, True)],
)
def test_a_known_node_must_show_a_certificate_with_its_name(
    wire: Wire, node: str, by_node_name: bool, is_open: bool
) -> None:
    wire.node(tls=ServerTls(*issue(*authority(), [node_server_name("b")], [], NOW, 30)))
    app = wire.app(tls=ClientTls(authority()[0], by_node_name=by_node_name))
    log = Log()
    pipe = app.prepare(NODE, log, wire.now, node)
    app.begin(pipe, [NODE], wire.now)

    wire.run(1)

    assert pipe.is_open == is_open
    if not is_open:
        assert log.closed is not None
        assert "does not name 'c.node.ringfence.internal'" in log.closed[1]


def test_without_verification_any_certificate_will_do(wire: Wire) -> None:
    wire.node()
    pipe, _ = wire.connect(wire.app(tls=ClientTls(verify=False)))

    wire.run(0.1)

    assert pipe.is_open


def test_another_protocol_is_refused_in_words(wire: Wire) -> None:
    wire.node()
    app = wire.app()
    app._client[False].alpn_protocols = ["h3"]
    _, log = wire.connect(app)

    wire.run(1)

    assert log.closed is not None
    assert log.closed[0] == TransportCode.TLS
    assert "does not speak this protocol" in log.closed[1]


# Garbage.


def assert_still_serves(wire: Wire, pipe: QuicConnection, log: Log) -> None:
    pipe.send(b"are you well?")
    wire.run(1)
    assert log.messages[-1] == b"are you well?"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(junk=st.lists(st.binary(max_size=1400), max_size=20))
def test_random_datagrams_are_counted_and_change_nothing(junk: list[bytes]) -> None:
    wire = Wire()
    node = wire.node()

    for datagram in junk:
        wire.inject(datagram, APP)

    assert node.refusals.total() == len(junk)
    assert node.half_open == 0
    assert wire.bugs == []


def test_damaged_truncated_and_repeated_datagrams_disturb_no_connection(wire: Wire) -> None:
    pipe, log = open_pair(wire)
    pipe.send(bytes(5000))
    wire.run(0.1)
    genuine = [d for source, target, d in wire.carried if target == NODE]
    random = Random(1)

    for datagram in genuine * 4:
        damaged = bytearray(datagram)
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        wire.inject(bytes(damaged), APP)
        wire.inject(datagram[: random.randrange(len(datagram))], APP)
        wire.inject(datagram, APP)
        wire.inject(datagram, ("192.0.2.9", 9))
    wire.run(1)

    assert log.messages == [bytes(5000)]
    assert_still_serves(wire, pipe, log)


@pytest.mark.parametrize(
    ("break_it", "cause", "code"),
    [
        (lambda quic: quic.send_stream_data(0, b"\xff" * 8), "frame_oversized", 1),
        (lambda quic: quic.send_stream_data(0, bytes(4)), "frame_empty", 1),
        (lambda quic: quic.send_stream_data(4, b"x"), "unexpected_stream", 1),
        (lambda quic: quic.send_stream_data(2, b"x"), "unexpected_stream", 1),
        (lambda quic: quic.send_stream_data(0, b"", end_stream=True), "stream_ended", 1),
        (lambda quic: quic.reset_stream(0, 7), "stream_reset", 1),
        (lambda quic: quic.stop_stream(0, 7), "stream_reset", 1),
    ],
)
def test_bytes_that_break_the_protocol_close_their_connection_and_no_other(
    wire: Wire, break_it: Callable[[QuicConnection], None], cause: str, code: int
) -> None:
    node = wire.node()
    app = wire.app()
    bad, bad_log = wire.connect(app)
    good, good_log = wire.connect(app)
    bad.send(b"hello")
    wire.run(0.1)

    assert bad.quic is not None
    break_it(bad.quic)
    app.wake(bad)
    wire.run(0.1)

    assert bad_log.closed is not None
    assert bad_log.closed[0] == code
    assert node.refusals == {cause: 1}
    assert wire.accepted[0].closed == bad_log.closed
    assert_still_serves(wire, good, good_log)


def test_datagrams_that_are_not_quic_go_to_whoever_wants_them(wire: Wire) -> None:
    sealed: list[tuple[bytes, Address]] = []
    wire.node(on_sealed=lambda datagram, sender: sealed.append((datagram, sender)))

    wire.inject(b"\x00probe", APP)
    wire.inject(b"\x9fprobe", APP)

    assert sealed == [(b"\x00probe", APP), (b"\x9fprobe", APP)]
    assert wire.endpoints[NODE].refusals.total() == 0


def test_an_unknown_version_of_quic_is_answered_with_ours_in_a_datagram_we_know_as_quic(
    wire: Wire,
) -> None:
    node = wire.node()
    initial = first_datagram(wire)

    wire.inject(initial[:1] + b"\x1a\x2a\x3a\x4a" + initial[5:], APP)
    [(answer, target)] = node.datagrams_to_send(wire.now)

    assert target == APP
    assert answer[0] & 0xC0 == 0xC0
    assert answer[1:5] == bytes(4)
    assert len(answer) < len(initial)


# Floods.


def first_datagram(wire: Wire) -> bytes:
    quic = AioquicBase(configuration=client_configuration(trust(), Settings()))
    quic.connect(NODE, wire.now)
    return quic.datagrams_to_send(wire.now)[0][0]


def test_ten_thousand_forged_handshakes_keep_memory_bounded_and_a_good_client_gets_in(
    wire: Wire,
) -> None:
    node = wire.node(options=Settings(max_half_open=24, retry_above=16))
    for i in range(30):
        wire.inject(first_datagram(wire), ("198.51.100.7", i))
    template = first_datagram(wire)
    random = Random(2)
    for i in range(9_970):
        forged = template[:6] + random.randbytes(8) + template[14:]
        wire.inject(forged, ("198.51.100.7", 1 + i % 60_000))
        if i % 100 == 0:
            node.datagrams_to_send(wire.now)

    assert node.half_open == 16
    assert len(node._routes) <= 2 * 16
    assert node.refusals["retry"] == 9_984
    pipe, log = wire.connect(wire.app())
    wire.run(0.5)
    assert_still_serves(wire, pipe, log)
    wire.run(10)
    assert node.half_open == 0
    assert node.refusals["handshake_timeout"] == 16
    assert node.connections == 1


@pytest.mark.parametrize("size", [1025, MAX_MESSAGE])
def test_a_stranger_cannot_send_a_long_message(wire: Wire, size: int) -> None:
    node = wire.node(options=Settings())
    pipe, log = wire.connect(wire.app())
    pipe.send(bytes(size))
    wire.run(1)

    assert log.closed == (
        ErrorCode.BAD_MESSAGE,
        f"a frame of {size} bytes; at most 1024 are allowed",
    )
    assert node.refusals["frame_oversized"] == 1


def test_a_caller_may_send_long_messages_right_behind_the_first_one(wire: Wire) -> None:
    wire.node(options=Settings())
    pipe, log = wire.connect(wire.app())
    for size in (1024, 5000, 70_000):
        pipe.send(bytes(size))
    wire.run(1)

    assert [len(message) for message in log.messages] == [1024, 5000, 70_000]


def test_what_strangers_leave_behind_is_free_without_the_garbage_collector(wire: Wire) -> None:
    """A node lets the collector come by rarely, so it must not be needed under attack."""
    node = wire.node(options=Settings(max_half_open=4, retry_above=4))
    datagrams = [first_datagram(wire) for _ in range(50)]
    gc.collect()
    gc.disable()
    try:
        before = live_parts()
        for port, datagram in enumerate(datagrams):
            wire.inject(datagram, ("198.51.100.7", port))
            node.datagrams_to_send(wire.now)
        assert live_parts() > before
        wire.run(20)
        wire.inject(b"anything", ("198.51.100.7", 1))

        assert node.connections == 0
        assert live_parts() == before
    finally:
        gc.enable()


def live_parts() -> int:
    """Count the parts of all QUIC connections there are."""
    kinds = (AioquicConnection, QuicPacketRecovery, QuicStream, CryptoPair)
    # By type alone: to ask a lazy proxy of another test's framework would wake it.
    return sum(issubclass(type(each), kinds) for each in gc.get_objects())


def test_when_all_half_open_places_are_taken_the_oldest_one_is_dropped(wire: Wire) -> None:
    """These clients do receive, so they pass the Retry, but never finish."""
    node = wire.node(options=Settings(max_half_open=12, retry_above=4))
    wire.lost = lambda source, target, datagram: (
        target[0].startswith("203.") and len(datagram) >= 1000
    )
    for i in range(20):
        wire.connect(wire.app((f"203.0.113.{i}", 1000)))
    wire.run(0.1)

    assert node.half_open == 12
    assert node.refusals["half_open_full"] == 8
    pipe, log = wire.connect(wire.app())
    wire.run(0.1)
    assert_still_serves(wire, pipe, log)


def test_initials_that_cannot_be_read_soon_meet_a_retry_although_they_take_no_place(
    wire: Wire,
) -> None:
    node = wire.node(options=Settings(max_half_open=24, retry_above=16))
    template = first_datagram(wire)
    random = Random(3)

    for i in range(500):
        wire.inject(template[:6] + random.randbytes(8) + template[14:], ("198.51.100.7", i))

    assert node.half_open == 0
    assert node.refusals == {"bad_initial": 16, "retry": 484}


def test_handshakes_given_up_at_once_soon_meet_a_retry_although_they_take_no_place(
    wire: Wire,
) -> None:
    """A handshake costs us most at its beginning, whoever ends it and however soon."""
    node = wire.node(options=Settings(max_half_open=24, retry_above=16))
    wire.lost = lambda source, target, datagram: (
        target[0].startswith("203.") and len(datagram) >= 1000
    )
    for i in range(100):
        pipe, _ = wire.connect(wire.app((f"203.0.113.{i}", 1000)))
        wire.run(0.01)
        pipe.close()
        wire.run(0.01)

    assert node.half_open < 16
    assert node.refusals["retry"] > 60
    pipe, log = wire.connect(wire.app())
    wire.run(0.1)
    assert_still_serves(wire, pipe, log)


def test_a_retry_token_of_another_address_is_refused(wire: Wire) -> None:
    node = wire.node(options=Settings(max_half_open=4, retry_above=0))
    wire.connect(wire.app())
    wire.run(0.011)
    [proven] = [d for source, target, d in wire.carried[2:] if target == NODE][:1]

    wire.inject(proven, ("198.51.100.7", 7))

    assert node.refusals["bad_retry_token"] == 1
    assert node.half_open <= 1


def test_a_full_node_says_so(wire: Wire) -> None:
    options = Settings(max_connections=2, max_half_open=2, retry_above=2)
    node = wire.node(options=options)
    app = wire.app()
    for _ in range(2):
        wire.connect(app)
    wire.run(0.1)

    _, log = wire.connect(app)
    wire.run(0.1)

    assert log.closed == (ErrorCode.OVERLOADED, "10.0.0.1:7600 has too many connections")
    assert node.refusals["too_many_connections"] == 1
    assert node.connections == 2


def test_timers_of_a_busy_connection_do_not_pile_up(wire: Wire) -> None:
    pipe, log = open_pair(wire)

    for _ in range(300):
        pipe.send(b"tick")
        wire.run(0.012)

    assert len(log.messages) == 300
    assert len(wire.endpoints[APP]._timers) < 80
    assert len(wire.endpoints[NODE]._timers) < 80


# What the network says.


def test_when_nobody_listens_a_connection_ends_at_once(wire: Wire) -> None:
    app = wire.app()
    _, log = wire.connect(app)
    wire.run(0.001)
    _, _, datagram = wire.carried[0]

    app.unreachable(NODE, datagram[:64], wire.now)

    assert log.closed == (TransportCode.UNREACHABLE, "nobody listens at 10.0.0.1:7600")


def test_an_open_connection_ends_too_when_the_quoted_datagram_is_its_own(wire: Wire) -> None:
    pipe, log = open_pair(wire)
    pipe.send(b"check")
    wire.run(0)
    _, _, datagram = wire.carried[-1]

    wire.endpoints[APP].unreachable(NODE, datagram[:64], wire.now)

    assert log.closed == (TransportCode.UNREACHABLE, "nobody listens at 10.0.0.1:7600")


def test_a_forged_notice_ends_nothing(wire: Wire) -> None:
    pipe, _ = open_pair(wire)
    wire.run(0)
    app = wire.endpoints[APP]
    last = wire.carried[-1][2]

    for quoted in (b"", bytes(64), b"\x40" + bytes(63), last[:8], b"\xc0" + last[1:64]):
        app.unreachable(NODE, quoted, wire.now)
    app.unreachable(OTHER_NODE, last[:64], wire.now)

    assert pipe.is_open


def test_a_name_with_two_addresses_is_tried_at_both(wire: Wire) -> None:
    wire.node()
    app = wire.app()
    log = Log()
    pipe = app.prepare(("node.example", 7600), log, wire.now)
    pipe.send(b"found you")

    app.begin(pipe, [OTHER_NODE, NODE], wire.now)
    wire.run(4)

    assert log.messages == [b"found you"]
    assert pipe.address == ("node.example", 7600)


def test_a_name_that_is_not_resolved_in_time_times_out(wire: Wire) -> None:
    app = wire.app()
    log = Log()
    app.prepare(("node.example", 7600), log, wire.now)

    wire.run(6)

    assert log.closed is not None
    assert log.closed[0] == TransportCode.HANDSHAKE_TIMEOUT
    assert app.connections == 0
