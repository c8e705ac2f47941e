"""What a listening endpoint answers to a datagram that belongs to no connection.

Decides which Initial packets may become connections and answers the rest without keeping anything
about them: version negotiation, Retry, refusal. Making and bounding connections is the endpoint's.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
    QuicProtocolVersion,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.retry import QuicRetryTokenHandler

from ringfence.transport.interface import Address
from ringfence.transport.quic.aioquic_connection import reset_token

__all__ = ["CID_LENGTH", "VERSIONS", "Admit", "Acceptor", "Drop", "Reply", "Verdict", "header_of"]

CID_LENGTH = 8
"""Bytes of our own connection ids, and the fewest a newcomer may choose (RFC 9000, section 7.2)."""

_RESET = 42
_SMALLEST_RESET = 21
"""Sizes of a stateless reset, which should look like any short packet."""

VERSIONS: list[int] = [QuicProtocolVersion.VERSION_1]
"""QUIC versions we speak; keys are derived for each at every Initial, so fewer is cheaper."""


@dataclass(frozen=True, slots=True)
class Admit:
    """Make a connection of it."""

    original_cid: bytes
    retry_cid: bytes | None


@dataclass(frozen=True, slots=True)
class Reply:
    """Send `datagram` back and forget it."""

    datagram: bytes
    cause: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Say nothing."""

    cause: str


Verdict: TypeAlias = Admit | Reply | Drop


def header_of(datagram: bytes) -> QuicHeader:
    """Read the header of a datagram's first packet. Raises `ValueError` when it is none."""
    return pull_quic_header(Buffer(data=datagram), host_cid_length=CID_LENGTH)


class Acceptor:
    """Stateless but for its keys: of Retry tokens, its own, and of resets, which outlives it."""

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
        """Say what to do with a packet that has a long header and no connection.

        `require_retry`: the sender must show that it receives at its address. `is_full`: there is
        no room for another connection.
        """
        if header.packet_type is QuicPacketType.VERSION_NEGOTIATION:
            return Drop("unknown_connection")
        if size < SMALLEST_MAX_DATAGRAM_SIZE:
            return Drop("short_initial")  # Answering could send more than came.
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
            return self._prove(header, sender, now)
        if require_retry:
            return Reply(self._retry(header, sender, now), "retry")
        return Admit(header.destination_cid, None)

    def reset(self, datagram: bytes) -> bytes | None:
        """Tell the sender of a datagram for a connection we do not know that it is over.

        Its peer was we, before a restart. The answer is always smaller than `datagram`, so two
        endpoints cannot keep each other busy.
        """
        size = min(len(datagram) - 1, _RESET)
        if size < _SMALLEST_RESET:
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

    def _prove(self, header: QuicHeader, sender: Address, now: float) -> Verdict:
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
    # aioquic leaves the fixed bit to chance, but we tell QUIC from other datagrams by it.
    return bytes([packet[0] | 0x40]) + packet[1:]


def _refusal(header: QuicHeader, error: QuicErrorCode) -> bytes:
    """Close a connection that we never made; its Initial keys follow from the id it came with."""
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
