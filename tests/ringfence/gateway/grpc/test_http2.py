"""Tests of the HTTP/2 server against an independent client implementation, the package h2."""

import struct

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.gateway.grpc.http2 import Http2, Request, StreamReset, TooLarge
from ringfence.gateway.grpc.http2_sender import STATUS_200, Flags, Kind, field, frame

MAX_BODY = 40_000
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/a.Service/Call"),
    (":authority", "x"),
    ("content-type", "application/grpc"),
]
CONTENT = STATUS_200 + field(b"content-type", b"application/grpc")
TRAILER = field(b"grpc-status", b"0")


def receive_all(server: Http2, sent: bytes, now: float = 0.0) -> list[object]:
    """Return all inputs that a server decodes from bytes."""
    inputs: list[object] = [*server.receive(sent, now)]
    while server.has_more:
        inputs += server.receive(b"", now)
    return inputs


class Wire:
    """Client of the package h2 and our server; `carry` transfers their bytes."""

    def __init__(self, window: int = 65_535) -> None:
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.client = h2.connection.H2Connection(config)
        self.server = Http2(MAX_BODY, 0.0)
        self.inputs: list[object] = []
        self.events: list[h2.events.Event] = []
        self.client.initiate_connection()
        self.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.carry()
        self.carry()

    def carry(self, piece: int = 1 << 20, now: float = 0.0) -> None:
        sent = self.client.data_to_send()
        for at in range(0, len(sent), piece):
            self.inputs += receive_all(self.server, sent[at : at + piece], now)
        if written := self.server.out.take():
            self.events += self.client.receive_data(written)

    def call(self, body: bytes, headers: object = HEADERS, **carry_options: int) -> int:
        stream = self.client.get_next_available_stream_id()
        self.client.send_headers(stream, headers)
        for at in range(0, len(body), 16_384):
            self.client.send_data(stream, body[at : at + 16_384])
        self.client.end_stream(stream)
        self.carry(**carry_options)
        return stream

    def response(self, stream: int) -> tuple[object, bytes, object]:
        """Return header, body and trailer of the response that the client received."""
        events = [each for each in self.events if getattr(each, "stream_id", None) == stream]
        header = [each.headers for each in events if isinstance(each, h2.events.ResponseReceived)]
        data = b"".join([each.data for each in events if isinstance(each, h2.events.DataReceived)])
        trailer = [each.headers for each in events if isinstance(each, h2.events.TrailersReceived)]
        return (header or [None])[0], data, (trailer or [None])[0]


@given(bodies=st.lists(st.binary(max_size=300), min_size=1, max_size=5), piece=st.integers(1, 80))
@settings(max_examples=40, deadline=None)
def test_requests_arrive_complete_and_in_order_for_any_chunks(
    bodies: list[bytes], piece: int
) -> None:
    wire = Wire()

    streams = [wire.call(body, piece=piece) for body in bodies]

    assert [(each.stream, each.body) for each in wire.inputs] == list(  # type: ignore[attr-defined]
        zip(streams, bodies, strict=True)
    )
    assert {each.head.path for each in wire.inputs} == {  # type: ignore[attr-defined]
        "/a.Service/Call"
    }


def test_a_response_has_a_header_a_body_and_a_trailer() -> None:
    wire = Wire()
    stream = wire.call(b"question")

    wire.server.out.answer(stream, CONTENT, b"answer", TRAILER)
    wire.carry()

    header, body, trailer = wire.response(stream)
    assert header == [(":status", "200"), ("content-type", "application/grpc")]
    assert (body, trailer) == (b"answer", [("grpc-status", "0")])
    assert not wire.server.out.open


@pytest.mark.parametrize("change", [("authorization", "value"), ("authorization", "v" * 200)])
def test_repeated_headers_are_decoded_after_any_other_headers(
    change: tuple[str, str],
) -> None:
    wire = Wire()
    for headers in (HEADERS, HEADERS, [*HEADERS, change], HEADERS, [*HEADERS, change], HEADERS):
        wire.call(b"", headers)

    fields = [each.head.fields.get("authorization") for each in wire.inputs]  # type: ignore[attr-defined]
    assert fields == [None, None, change[1], None, change[1], None]
    heads = [each.head for each in wire.inputs]  # type: ignore[attr-defined]
    assert heads[0] == heads[1] == heads[3] == heads[5]


def test_a_long_header_can_span_several_frames() -> None:
    wire = Wire()
    block = Encoder().encode([*HEADERS, ("authorization", "v" * 9000)], huffman=False)
    pieces = block[:3000], block[3000:6000], block[6000:]
    kinds = (Kind.HEADERS, Flags.END_STREAM), (Kind.CONTINUATION, 0), (Kind.CONTINUATION, 4)

    for (kind, flags), piece in zip(kinds, pieces, strict=True):
        wire.inputs += wire.server.receive(frame(kind, flags, 1, piece), 0.0)

    [request] = wire.inputs
    assert isinstance(request, Request)
    assert len(request.head.fields["authorization"]) == 9000


def test_a_large_response_waits_for_the_clients_window() -> None:
    wire = Wire(window=1000)
    stream = wire.call(b"")
    answer = bytes(range(256)) * 150

    wire.server.out.answer(stream, CONTENT, answer, TRAILER)
    wire.carry()
    assert len(wire.response(stream)[1]) == 1000
    while wire.response(stream)[2] is None:
        got = len(wire.response(stream)[1])
        wire.client.acknowledge_received_data(1000 if got % 1000 == 0 else got % 1000, stream)
        wire.carry()

    assert wire.response(stream)[1] == answer


def test_a_window_enlarged_by_settings_resumes_responses() -> None:
    wire = Wire(window=10)
    stream = wire.call(b"")
    wire.server.out.answer(stream, CONTENT, b"twenty bytes or more.", TRAILER)

    wire.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1000})
    wire.carry()
    wire.carry()

    assert wire.response(stream)[1] == b"twenty bytes or more."


def test_many_large_requests_do_not_exhaust_the_window() -> None:
    wire = Wire()
    for _ in range(60):
        stream = wire.call(bytes(30_000))
        wire.server.out.answer(stream, CONTENT, b"", TRAILER)
        wire.carry()

    assert len(wire.inputs) == 60


def test_a_too_large_body_is_reported_once_and_the_connection_stays_open() -> None:
    wire = Wire()
    stream = wire.client.get_next_available_stream_id()
    wire.client.send_headers(stream, HEADERS)
    for _ in range(3):
        wire.client.send_data(stream, bytes(16_384))
    wire.carry()
    wire.server.out.end(stream, CONTENT + field(b"grpc-status", b"8"))
    wire.carry()
    other = wire.call(b"small")

    assert wire.inputs[0] == TooLarge(stream)
    assert ("grpc-status", "8") in wire.response(stream)[0]  # type: ignore[operator]
    assert [each.stream for each in wire.inputs[1:]] == [other]  # type: ignore[attr-defined]


def test_a_reset_call_gets_no_response() -> None:
    wire = Wire()
    stream = wire.call(b"")
    wire.client.reset_stream(stream)
    wire.carry()

    wire.server.out.answer(stream, CONTENT, b"late", TRAILER)

    assert wire.inputs[1:] == [StreamReset(stream)]
    assert wire.server.out.take() == b""


def test_pings_are_answered_and_unknown_frames_ignored() -> None:
    wire = Wire()
    wire.client.ping(b"12345678")
    wire.carry()
    assert any(isinstance(each, h2.events.PingAckReceived) for each in wire.events)

    assert wire.server.receive(frame(0xBE, 0xFF, 77, b"whatever"), 0.0) == []
    assert not wire.server.is_broken


def test_a_draining_connection_answers_open_calls_and_refuses_new_ones() -> None:
    wire = Wire()
    stream = wire.call(b"")
    block = Encoder().encode(HEADERS)

    wire.server.drain()
    late = wire.server.receive(frame(Kind.HEADERS, 5, 99, block), 0.0)
    wire.server.out.answer(stream, CONTENT, b"x", TRAILER)

    assert late == []
    written = wire.server.out.take()
    assert frame(Kind.RST_STREAM, 0, 99, struct.pack(">I", 7)) in written
    assert b"x" in written


def test_streams_beyond_the_announced_maximum_are_refused() -> None:
    wire = Wire()
    for _ in range(1000):
        wire.client.send_headers(wire.client.get_next_available_stream_id(), HEADERS)
    wire.carry()
    block = Encoder().encode(HEADERS)
    wire.server.receive(frame(Kind.HEADERS, 4, 5001, block), 0.0)

    assert wire.server.out.take() == frame(Kind.RST_STREAM, 0, 5001, struct.pack(">I", 7))


def test_calls_of_slow_senders_are_reset() -> None:
    wire = Wire()
    stream = wire.client.get_next_available_stream_id()
    wire.client.send_headers(stream, HEADERS)
    wire.carry(now=1.0)

    assert wire.server.give_up_before(0.5) == []
    assert wire.server.give_up_before(1.5) == [stream]
    assert not wire.server.is_broken

    silent, partial = Http2(MAX_BODY, 1.0), Http2(MAX_BODY, 0.0)
    partial.receive(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00", 1.0)
    for server in (silent, partial):
        server.give_up_before(0.5)
        assert not server.is_broken
        server.give_up_before(1.5)
        assert server.is_broken


PING = frame(Kind.PING, 0, 0, bytes(8))
BLOCK = Encoder().encode(HEADERS)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\n", 1),
        (frame(Kind.PING, 0, 0, b"short"), 6),
        (frame(Kind.SETTINGS, 0, 0, b"five5"), 6),
        (frame(Kind.SETTINGS, 1, 0, bytes(6)), 6),
        (frame(Kind.WINDOW_UPDATE, 0, 0, bytes(4)), 1),
        (frame(Kind.WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1)), 3),
        (frame(Kind.WINDOW_UPDATE, 0, 0, b"x"), 6),
        (frame(Kind.DATA, 0, 1, b"no header"), 1),
        (frame(Kind.DATA, 0, 0, b""), 1),
        (frame(Kind.RST_STREAM, 0, 1, bytes(4)), 1),
        (frame(Kind.PUSH_PROMISE, 0, 1, bytes(4)), 1),
        (frame(Kind.CONTINUATION, 4, 1, b""), 1),
        (frame(Kind.HEADERS, 0, 1, BLOCK) + PING, 1),
        (frame(Kind.HEADERS, 5, 2, BLOCK), 1),
        (frame(Kind.HEADERS, 5, 1, b"\xff\xff\xff\xff\xff"), 9),
        (frame(Kind.HEADERS, 5 | Flags.PADDED, 1, b"\xff" + BLOCK), 1),
        (frame(Kind.HEADERS, 0, 1, bytes(16_384)) + 2 * frame(9, 0, 1, bytes(16_384)), 11),
        (frame(Kind.HEADERS, 5, 1, field(b"a", b"b") * 500), 11),
        (b"\x00\x40\x01" + bytes(6), 6),
    ],
)
def test_a_protocol_error_is_reported_and_ends_reading(sent: bytes, code: int) -> None:
    server = Http2(MAX_BODY, 0.0)
    server.out.take()
    if not sent.startswith(b"GET"):
        server.receive(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0.0)

    assert receive_all(server, sent) == []

    written = server.out.take()
    assert server.is_broken
    assert written[3] == Kind.GOAWAY
    assert struct.unpack_from(">I", written, 13) == (code,)
    assert server.receive(PING, 0.0) == []
    assert server.out.take() == b""


@given(sent=st.binary(max_size=200))
@settings(max_examples=200)
def test_no_input_bytes_raise_an_exception(sent: bytes) -> None:
    server = Http2(MAX_BODY, 0.0)
    server.receive(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0.0)

    server.receive(sent, 0.0)
    for kind in (Kind.DATA, Kind.HEADERS, Kind.SETTINGS, Kind.CONTINUATION):
        server.receive(frame(kind, sent[0] if sent else 0, 1, sent), 0.0)
    server.give_up_before(1.0)


@pytest.mark.parametrize("size", [0, 126, 127, 128, 300, 20_000])
def test_header_fields_of_any_length_round_trip(size: int) -> None:
    from hpack import Decoder

    value = b"v" * size
    assert Decoder().decode(field(b"name", value), raw=True) == [(b"name", value)]


def send_call(server: Http2, stream: int, *, window: int = 65_535) -> None:
    """Send one complete call with this flow-control window for its response."""
    settings = frame(Kind.SETTINGS, 0, 0, struct.pack(">HI", 4, window))
    receive_all(server, settings + frame(Kind.HEADERS, 5, stream, Encoder().encode(HEADERS)))


def server_after_preface() -> Http2:
    server = Http2(MAX_BODY, 0.0)
    server.receive(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0.0)
    server.out.take()
    return server


def test_a_response_blocked_for_too_long_is_reset() -> None:
    server = server_after_preface()
    send_call(server, 1, window=3)
    server.out.answer(1, CONTENT, b"answer", TRAILER)

    assert server.give_up_before(0.0) == []
    assert server.give_up_before(0.1) == [1]
    assert (server.out.waiting, server.kept) == (0, 0)


def test_a_slow_decision_does_not_reset_the_call() -> None:
    server = server_after_preface()
    send_call(server, 1)

    assert server.give_up_before(9.0) == []


def test_waiting_responses_are_bounded() -> None:
    server = server_after_preface()
    for stream in range(1, 100, 2):
        send_call(server, stream, window=0)
        server.out.answer(stream, CONTENT, bytes(16_000), TRAILER)

    assert server.out.waiting <= 262_144
    assert len(server.out.open) == 16


def test_headers_of_unanswered_calls_are_bounded() -> None:
    server = server_after_preface()
    encoder = Encoder()
    for stream in range(1, 1000, 2):
        block = encoder.encode([*HEADERS, ("authorization", 4000 * "v")])
        receive_all(server, frame(Kind.HEADERS, 4, stream, block))

    assert len(server.out.open) < 300
    assert server.kept < 1_100_000


def test_the_work_of_one_receive_call_is_bounded() -> None:
    server = server_after_preface()

    assert server.receive(900 * PING, 0.0) == []
    assert server.has_more
    assert len(server.out.take()) < 40 * len(PING)
    assert receive_all(server, b"") == []
    assert not server.has_more


def test_frames_without_a_call_are_limited_by_responses_and_time() -> None:
    server = server_after_preface()
    receive_all(server, 990 * PING)
    send_call(server, 1)  # This also sends a SETTINGS frame, which belongs to no call.
    server.out.answer(1, CONTENT, b"", TRAILER)
    receive_all(server, (9 + 4) * PING)
    assert not server.is_broken
    receive_all(server, PING)
    assert server.is_broken

    later = server_after_preface()
    receive_all(later, 1000 * PING)
    receive_all(later, 33 * PING, now=1.0)
    assert not later.is_broken
    receive_all(later, PING, now=1.0)
    assert later.is_broken


def test_frames_for_a_reset_call_are_ignored() -> None:
    server = server_after_preface()
    header = frame(Kind.HEADERS, 4, 1, Encoder().encode(HEADERS))
    server.receive(header, 0.0)
    assert server.give_up_before(1.0) == [1]

    assert receive_all(server, frame(Kind.DATA, 0, 1, b"late") + frame(Kind.DATA, 1, 1, b"")) == []
    assert not server.is_broken
    server.receive(frame(Kind.DATA, 1, 1, b"later than the end"), 0.0)
    assert server.is_broken


def test_a_slowly_sent_header_times_out_for_any_number_of_frames() -> None:
    server = server_after_preface()
    server.receive(frame(Kind.HEADERS, 0, 1, b""), 1.0)
    server.receive(frame(Kind.CONTINUATION, 0, 1, b""), 2.0)

    server.give_up_before(1.5)

    assert server.is_broken


def test_a_client_whose_segments_end_inside_frames_is_not_treated_as_slow() -> None:
    server = server_after_preface()
    for now in range(1, 20):
        server.receive(PING[5:] + PING[:5] if now > 1 else PING[:5], float(now))
        server.give_up_before(now - 2.0)
    assert not server.is_broken

    server.give_up_before(20.0)
    assert server.is_broken
