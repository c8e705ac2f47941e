"""Compiled form of `packet_receiver`."""

from ringfence.transport.quic.fast_path.packet_receiver import FastReceiver as FastReceiver
