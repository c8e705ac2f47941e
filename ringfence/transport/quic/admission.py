"""Admission of QUIC connections: which Initial packets may become connections.

Other packets are answered without keeping state: by version negotiation, Retry, refusal or
stateless reset. `endpoint` creates the admitted connections and limits their number.
"""

from collections.abc import Callable
from typing import TypeAlias

from aioquic.buffer import Buffer  # type: ignore[attr-defined]  # Public, by its docs.
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE
from aioquic.quic.connection import TRANSPORT_CLOSE_FRAME_CAPACITY
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicFrameType,
    QuicHeader,
    QuicPacketType,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.retry import QuicRetryTokenHandler
from msgspec import Struct

from ringfence.transport.interface import Address
from ringfence.transport.quic.aioquic_connection import reset_token
from ringfence.transport.quic.configuration import CID_LENGTH, VERSIONS
from ringfence.transport.settings import Settings

__all__ = [
    "Acceptor",
    "Admit",
    "Drop",
    "HandshakePressure",
    "Reply",
    "Verdict",
    "parse_header",
]

_RESET_SIZE = 42
_MIN_RESET_SIZE = 21
"""Sizes of a stateless reset, which must look like any packet with a short header."""


class Admit(Struct, frozen=True):
    """Decision about a packet: create a connection for it."""

    original_cid: bytes
    retry_cid: bytes | None


class Reply(Struct, frozen=True):
    """Decision about a packet: send `datagram` as the answer, and keep no state."""

    datagram: bytes
    cause: str


class Drop(Struct, frozen=True):
    """Decision about a packet: send no answer."""

    cause: str


Verdict: TypeAlias = Admit | Reply | Drop


def parse_header(datagram: bytes) -> QuicHeader:
    """Parse the header of the first packet in a datagram. Raises `ValueError` for a malformed
    one."""
    return pull_quic_header(Buffer(data=datagram), host_cid_length=CID_LENGTH)


class HandshakePressure:
    """Decaying count of incoming handshakes that failed recently.

    A failed handshake has cost processor time but holds no memory any more. It counts like a
    half-open one for as long as an unfinished handshake may last.
    """

    def __init__(self, settings: Settings) -> None:
        self._max = 2.0 * settings.retry_above
        self._decay_per_second = settings.retry_above / settings.handshake_timeout
        self._failed = 0.0
        self._updated_at = 0.0

    def count_failure(self) -> None:
        """Count one failed incoming handshake."""
        self._failed += 1.0

    def current(self, now: float) -> float:
        """Return the count of failed handshakes after its decay."""
        decay = (now - self._updated_at) * self._decay_per_second
        self._failed = min(max(0.0, self._failed - decay), self._max)
        self._updated_at = now
        return self._failed


class Acceptor:
    """Classifier of packets that belong to no connection. Its only state is two keys.

    One key signs Retry tokens and lives as long as this object. The other signs stateless resets
    and stays the same after a restart.
    """

    def __init__(self, entropy: Callable[[int], bytes], reset_key: bytes) -> None:
        self._entropy = entropy
        self._reset_key = reset_key
        self._tokens = QuicRetryTokenHandler()

    def classify(  # noqa: PLR0911 - a list of verdicts.
        self,
        header: QuicHeader,
        size: int,
        sender: Address,
        now: float,
        *,
        require_retry: bool,
        is_full: bool,
    ) -> Verdict:
        """Decide what to do with a packet with a long header that belongs to no connection.

        `require_retry`: the sender must first prove that it receives at its address. `is_full`: the
        endpoint has no room for another connection.
        """
        if header.packet_type is QuicPacketType.VERSION_NEGOTIATION:
            return Drop("unknown_connection")
        if size < SMALLEST_MAX_DATAGRAM_SIZE:
            return Drop("short_initial")  # An answer could be larger than the packet.
        assert header.version is not None
        if header.version not in VERSIONS:
            return Reply(_version_negotiation(header), "quic_version")
        if header.packet_type is not QuicPacketType.INITIAL:
            return Drop("unknown_connection")
        if len(header.destination_cid) < CID_LENGTH:
            return Drop("malformed_header")
        if is_full:
            return Reply(_refusal(header, QuicErrorCode.CONNECTION_REFUSED), "too_many_connections")
        if header.token:
            return self._check_retry_token(header, sender, now)
        if require_retry:
            return Reply(self._retry(header, sender, now), "retry")
        return Admit(header.destination_cid, None)

    def stateless_reset(self, datagram: bytes) -> bytes | None:
        """Create the packet that makes the sender of `datagram` end a connection that this node
        does not know.

        Such a connection was made before this node restarted. The reset is always smaller than
        `datagram`, so two endpoints cannot exchange resets forever.
        """
        size = min(len(datagram) - 1, _RESET_SIZE)
        if size < _MIN_RESET_SIZE:
            return None
        noise = self._entropy(size - 16)
        token = reset_token(self._reset_key, datagram[1 : 1 + CID_LENGTH])
        return bytes([0x40 | noise[0] & 0x3F]) + noise[1:] + token

    def _retry(self, header: QuicHeader, sender: Address, now: float) -> bytes:
        assert header.version is not None
        cid = self._entropy(CID_LENGTH)
        token = self._tokens.create_token(
            address=sender,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=cid,
            now=now,
        )
        return encode_quic_retry(
            version=header.version,
            source_cid=cid,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=token,
        )

    def _check_retry_token(self, header: QuicHeader, sender: Address, now: float) -> Verdict:
        try:
            original = self._tokens.validate_token(
                address=sender,
                destination_cid=header.destination_cid,
                token=header.token,
                now=now,
            )
        except ValueError:
            return Reply(_refusal(header, QuicErrorCode.INVALID_TOKEN), "bad_retry_token")
        return Admit(original, header.destination_cid)


def _version_negotiation(header: QuicHeader) -> bytes:
    packet = encode_quic_version_negotiation(
        source_cid=header.destination_cid,
        destination_cid=header.source_cid,
        supported_versions=VERSIONS,
    )
    # aioquic draws the fixed bit at random, but we recognise QUIC datagrams by it.
    return bytes([packet[0] | 0x40]) + packet[1:]


def _refusal(header: QuicHeader, error: QuicErrorCode) -> bytes:
    """Create the closing packet for a connection that was never created.

    Its Initial keys are derived from the connection id in `header`.
    """
    assert header.version is not None
    crypto = CryptoPair()
    crypto.setup_initial(cid=header.destination_cid, is_client=False, version=header.version)
    builder = QuicPacketBuilder(
        host_cid=header.destination_cid,
        is_client=False,
        max_datagram_size=SMALLEST_MAX_DATAGRAM_SIZE,
        peer_cid=header.source_cid,
        version=header.version,
    )
    builder.start_packet(QuicPacketType.INITIAL, crypto)
    frame = builder.start_frame(
        QuicFrameType.TRANSPORT_CLOSE, capacity=TRANSPORT_CLOSE_FRAME_CAPACITY
    )
    frame.push_uint_var(error)
    frame.push_uint_var(QuicFrameType.PADDING)
    frame.push_uint_var(0)
    datagrams, _ = builder.flush()
    return datagrams[0]
