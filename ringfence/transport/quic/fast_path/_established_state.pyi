"""Compiled form of `established_state`."""

from ringfence.transport.quic.fast_path.established_state import (
    EstablishedState as EstablishedState,
)
