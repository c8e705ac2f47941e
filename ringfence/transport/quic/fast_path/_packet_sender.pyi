"""Compiled form of `packet_sender`."""

from ringfence.transport.quic.fast_path.packet_sender import FastSender as FastSender
from ringfence.transport.quic.fast_path.packet_sender import (
    hasten_acknowledgement as hasten_acknowledgement,
)
