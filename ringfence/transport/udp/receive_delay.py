"""Receive delay: the time that a datagram waited in the kernel, from the kernel's time stamps."""

import socket
import sys
import time
from struct import Struct

__all__ = ["MEASURE_ALL_NS", "STAMP_SPACE", "ReceiveDelay"]

MEASURE_ALL_NS = 1_000_000
"""Delay from which every datagram of a read is measured; below it, only the first one."""

_SO_TIMESTAMPNS = 35
"""Linux option: the kernel stamps each datagram on arrival. `socket` has no name for it."""
_STAMP = Struct("@ll")
"""Layout of a time stamp: seconds and nanoseconds on the wall clock."""
STAMP_SPACE = socket.CMSG_SPACE(_STAMP.size) if hasattr(socket, "CMSG_SPACE") else 0
"""Bytes of ancillary data that hold a time stamp."""


class ReceiveDelay:
    """Measurement of receive delays; steps of the wall clock do not affect the result."""

    def __init__(self) -> None:
        self._wall_offset_ns = time.time_ns() - time.monotonic_ns()
        """Wall clock minus monotonic clock, at the last comparison."""

    @staticmethod
    def enable_stamps(sock: socket.socket) -> bool:
        """Ask the kernel to stamp each datagram with its arrival time; return whether it does."""
        if sys.platform != "linux":
            return False
        try:
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        except OSError:
            return False
        return True

    def measure(self, ancillary: list[tuple[int, int, bytes]]) -> int:
        """Return how many nanoseconds ago the kernel stamped a datagram; 0 without a stamp."""
        if not ancillary or len(ancillary[0][2]) != _STAMP.size:
            return 0
        seconds, nanoseconds = _STAMP.unpack(ancillary[0][2])
        now = time.time_ns()
        delay: int = now - seconds * 1_000_000_000 - nanoseconds
        if delay < MEASURE_ALL_NS:
            return max(0, delay)
        # Slewing changes both clocks alike. A difference between them is a step of the wall clock,
        # by an operator or a suspended host, and no delay.
        offset = now - time.monotonic_ns()
        step, self._wall_offset_ns = offset - self._wall_offset_ns, offset
        return max(0, delay - step) if step > MEASURE_ALL_NS else delay
