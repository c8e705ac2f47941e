"""Compiled form of `packet_sender`."""

from ringfence.transport.quic.fast_path.packet_sender import FastSender as FastSender
