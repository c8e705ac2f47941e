"""Fast path for packets after the handshake: it must behave exactly as aioquic."""

from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import count
from random import Random
from unittest.mock import patch

import pytest
from aioquic.tls import Epoch
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.limiter.compiled import why_not_compiled
from ringfence.transport.quic import fast_path as fast_path_module
from ringfence.transport.quic.aioquic_connection import STREAM, AioquicConnection
from ringfence.transport.quic.configuration import client_configuration, server_configuration
from ringfence.transport.quic.fast_path import established_state, packet_receiver, packet_sender
from ringfence.transport.settings import Settings
from ringfence.transport.tls.certificate_authority import self_signed
from ringfence.transport.tls.certificates import ClientTls

CLIENT = ("10.0.1.1", 40000)
SERVER = ("10.0.0.1", 7600)
WINDOW = 64 << 10
TLS = self_signed(datetime.now(UTC))
BOTH_FORMS = pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "plain"])
"""Both forms of the fast path: compiled, where it was built, and its Python source."""


@contextmanager
def fast_path_of(*, is_compiled):
    """Use the compiled fast path (if it was built) or its Python source for new connections."""
    plain = {
        "EstablishedState": established_state.EstablishedState,
        "FastReceiver": packet_receiver.FastReceiver,
        "FastSender": packet_sender.FastSender,
    }
    with nullcontext() if is_compiled else patch.multiple(fast_path_module, **plain):
        yield


class Side:
    """One end of a connection, with the bytes that it sent and received."""

    def __init__(self, quic, address, *, is_fast):
        self.quic = quic
        self.address = address
        self.is_fast = is_fast
        self.sent = b""
        self.received = b""
        self.sizes = []
        """Sizes of the sent datagrams."""

    def send(self, data):
        self.sent += data
        self.quic.send_stream_data(STREAM, data)


class World:
    """Two ends and a network that delays, loses, repeats and reorders datagrams."""

    def __init__(
        self, *, fast_path=(True, True), random=None, loss=0.0, datagram=1200, is_compiled=True
    ):
        self.now = 10.0
        self.loss = 0.0
        self.random = random or Random(0)
        self.in_flight = []
        self.order = count()
        options = Settings(
            receive_window=WINDOW, untrusted_receive_window=WINDOW, max_datagram=datagram
        )
        quic = AioquicConnection(
            client_configuration(ClientTls(verify=False), options), window=WINDOW
        )
        quic.connect(SERVER, self.now)
        self.client = Side(quic, CLIENT, is_fast=fast_path[0])
        configuration = server_configuration(TLS, options)
        cid = quic.original_destination_connection_id
        quic = AioquicConnection(configuration, window=WINDOW, original_cid=cid)
        self.server = Side(quic, SERVER, is_fast=fast_path[1])
        with fast_path_of(is_compiled=is_compiled):
            self.run(0.1)
            self.client.send(b"hello")
            self.run(0.1)
            self.server.send(b"welcome")
            self.run(0.1)
        for side in self.sides:
            # Signatures differ in length, and with them the windows after the handshake.
            recovery = side.quic._loss
            recovery._cc.congestion_window = 12 * datagram
            recovery._pacer.update_rate(12 * datagram, recovery._rtt_smoothed)
            recovery._pacer.bucket_time = recovery._pacer.bucket_max
        self.loss = loss

    @property
    def sides(self):
        return self.client, self.server

    def run(self, seconds):
        until = self.now + seconds
        while self.now < until:
            self.step()
            dues = [flight[0] for flight in self.in_flight[:1]]
            dues += [due for side in self.sides if (due := side.quic.get_timer()) is not None]
            self.now = max(self.now + 1e-5, min([until, *dues]))

    def step(self):
        while self.in_flight and self.in_flight[0][0] <= self.now:
            _, _, target, datagram, sender = heappop(self.in_flight)
            target.received += target.quic.receive(datagram, sender, self.now)
            while (event := target.quic.next_event()) is not None:
                if hasattr(event, "data") and getattr(event, "stream_id", None) == STREAM:
                    target.received += event.data
        for side, other in (self.sides, self.sides[::-1]):
            due = side.quic.get_timer()
            if due is not None and due <= self.now:
                side.quic.handle_timer(self.now)
            if not side.is_fast:
                side.quic._fast_path = None
            for datagram, _ in side.quic.urgent_datagrams(self.now):
                side.sizes.append(len(datagram))
                self.carry(datagram, side, other)

    def carry(self, datagram, side, other):
        if self.random.random() < self.loss:
            return
        copies = 2 if self.random.random() < self.loss / 2 else 1
        for _ in range(copies):
            slow = self.random.random() * 0.02 if self.random.random() < self.loss else 0.0
            arrives = self.now + 0.0005 + slow
            heappush(self.in_flight, (arrives, next(self.order), other, datagram, side.address))


EITHER_WAY = pytest.mark.parametrize(
    "fast_path", [(True, True), (True, False), (False, True)], ids=["both", "client", "server"]
)


@BOTH_FORMS
@EITHER_WAY
@given(
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.02, 0.2]),
    talk=st.lists(st.tuples(st.booleans(), st.integers(1, 9000), st.floats(0, 0.02)), max_size=12),
    datagram=st.sampled_from([1200, 8900, 16_000]),
)
@settings(max_examples=8, deadline=None)
def test_every_message_arrives_once_and_in_order(
    fast_path, is_compiled, seed, loss, talk, datagram
):
    world = World(
        fast_path=fast_path,
        random=Random(seed),
        loss=loss,
        datagram=datagram,
        is_compiled=is_compiled,
    )
    for by_client, size, pause in talk:
        (world.client if by_client else world.server).send(world.random.randbytes(size))
        world.run(pause)
    world.loss = 0.0
    world.run(25.0)

    for side, other in (world.sides, world.sides[::-1]):
        quic = side.quic
        assert quic.closing is None
        assert other.received == side.sent
        assert quic.unacknowledged == 0
        assert max(side.sizes) <= datagram
    for side in world.sides:
        space = side.quic._spaces[Epoch.ONE_RTT]
        assert (space.ack_eliciting_in_flight, space.loss_time) == (0, None)
        assert side.quic._loss.bytes_in_flight == sum(
            packet.sent_bytes for packet in space.sent_packets.values() if packet.in_flight
        )


def fast_path_results(world):
    """Record the results of the fast path; None means that aioquic processed the datagram."""
    taken = []
    for side in world.sides:
        fast_path = side.quic._fast_path

        def watched(data, address, now, receive=fast_path.receive):
            taken.append(receive(data, address, now))
            return taken[-1]

        fast_path.receive = watched
    return taken


@BOTH_FORMS
def test_questions_and_answers_take_the_fast_path(is_compiled):
    world = World(is_compiled=is_compiled)
    taken = fast_path_results(world)
    for _ in range(20):
        world.client.send(b"question")
        world.run(0.003)
        world.server.send(b"answer")
        world.run(0.003)

    assert len(taken) >= 40
    assert None not in taken


@BOTH_FORMS
def test_the_next_question_acknowledges_an_answer(is_compiled):
    world = World(is_compiled=is_compiled)
    before = [len(side.sizes) for side in world.sides]
    for _ in range(20):
        world.client.send(b"question")
        world.run(0.001)
        world.server.send(b"answer")
        world.run(0.007)

    assert [len(side.sizes) - more for side, more in zip(world.sides, before, strict=True)] == [
        20,
        20,
    ]


@BOTH_FORMS
def test_a_lone_message_is_acknowledged_before_its_sender_repeats_it(is_compiled):
    world = World(is_compiled=is_compiled)
    before = [len(side.sizes) for side in world.sides]
    world.client.send(b"no answer needed")
    world.run(0.015)

    assert world.client.quic._spaces[Epoch.ONE_RTT].ack_eliciting_in_flight == 0
    assert [len(side.sizes) - more for side, more in zip(world.sides, before, strict=True)] == [
        1,
        1,
    ]


@BOTH_FORMS
@EITHER_WAY
def test_aioquic_processes_a_ping_and_acknowledges_it_at_once(fast_path, is_compiled):
    world = World(fast_path=fast_path, is_compiled=is_compiled)
    world.client.quic.send_ping(7)
    world.run(0.0012)

    assert world.client.quic._spaces[Epoch.ONE_RTT].ack_eliciting_in_flight == 0


@BOTH_FORMS
def test_keys_can_change_while_messages_are_exchanged(is_compiled):
    world = World(is_compiled=is_compiled)
    for _ in range(3):
        world.client.quic.request_key_update()
        for side in (*world.sides, *world.sides):
            side.send(b"a few words")
            world.run(0.05)

    assert world.server.received == world.client.sent
    assert world.client.received == world.server.sent
    assert world.client.quic._cryptos[Epoch.ONE_RTT].recv.key_phase == 1


@BOTH_FORMS
def test_datagrams_that_were_tampered_with_change_nothing(is_compiled):
    world = World(is_compiled=is_compiled)
    world.client.send(b"the true words")
    datagram, _ = world.client.quic.urgent_datagrams(world.now)[0]
    before = world.server.quic._close_at
    for place in range(len(datagram)):
        forged = bytearray(datagram)
        forged[place] ^= 0x01
        for data in (bytes(forged), datagram[:place]):
            assert not world.server.quic.receive(data, CLIENT, world.now + 1.0)

    assert world.server.quic.next_event() is None
    assert world.server.quic.closing is None
    assert world.server.quic._close_at == before
    assert world.server.quic.receive(datagram, CLIENT, world.now) == b"the true words"


def test_a_repeated_datagram_is_processed_once():
    world = World()
    world.client.send(b"once")
    datagram, _ = world.client.quic.urgent_datagrams(world.now)[0]
    received = [world.server.quic.receive(datagram, CLIENT, world.now) for _ in range(2)]

    assert received == [b"once", b""]
    assert world.server.quic.next_event() is None


@pytest.mark.parametrize(
    "frames",
    [
        b"",  # No frame at all.
        b"\x0a\x05\x01x",  # A stream that only this side may open.
        b"\x0b\x00\x00",  # The end of the stream, before received bytes.
        b"\x0a\x00\x50",  # Frames that are truncated.
        b"\x0e\x00\xc0",
        b"\x02\x40",
        b"\x0e\x00\x80\xff\xff\xff\x01x",  # Far beyond the window.
        b"\x02\x05\x00\x00\x3f",  # An acknowledgement of packets before the first one.
        b"\x02\x7f\xff\x00\x00\x00",  # An acknowledgement of a packet that was never sent.
        b"\x0e\x00\x05\x01x\x3f",  # A valid frame, then one of an unknown type.
    ],
)
@BOTH_FORMS
def test_frames_that_break_the_rules_end_the_connection_as_in_aioquic(frames, is_compiled):
    reasons = []
    for is_fast in (True, False):
        world = World(fast_path=(True, is_fast))
        server = world.server.quic
        with fast_path_of(is_compiled=is_compiled):
            state = fast_path_module.EstablishedState.of(server, STREAM)
            inward = fast_path_module.FastReceiver(state)
        (inward._process_frames if is_fast else inward._process_by_aioquic)(frames, world.now)
        assert server.closed_locally
        reasons.append((server.closing.error_code, server.closing.reason_phrase))

    assert reasons[0] == reasons[1]


def test_the_connection_to_a_silent_peer_times_out():
    world = World()
    world.loss = 1.0
    world.client.send(b"anybody there?")
    world.run(40.0)

    assert world.client.quic.closing is not None
    assert world.client.quic.closing.reason_phrase == "Idle timeout"


def history(*, is_compiled):
    """Exchange messages over a bad network; return the state of both ends."""
    world = World(random=Random(5), loss=0.1, datagram=1200, is_compiled=is_compiled)
    datagrams = []
    for size in (1, 60, 63, 64, 1100, 1200, 9000, 20_000, 3) * 4:
        for side in world.sides:
            side.send(bytes(size))
        world.run(0.004)
        datagrams.append([len(side.sizes) for side in world.sides])
    state = []
    for side in world.sides:
        quic, space = side.quic, side.quic._spaces[Epoch.ONE_RTT]
        loss = {name: value for name, value in vars(quic._loss).items() if name != "spaces"}
        state.append((sorted(space.sent_packets), [*space.ack_queue], side.sizes))
        state.append({name: value for name, value in loss.items() if type(value) in (int, float)})
        state.append((vars(quic._loss._pacer), quic._loss._cc.get_log_data()))
        state.append((space.ack_at, space.loss_time, quic._close_at, quic._spin_bit))
    return datagrams, state


def test_the_compiled_form_and_its_source_send_the_same_and_have_equal_states():
    assert history(is_compiled=True) == history(is_compiled=False)


def test_the_compiled_form_is_built_where_the_limiter_is():
    if why_not_compiled() is None:
        assert fast_path_module.FastReceiver is not packet_receiver.FastReceiver
