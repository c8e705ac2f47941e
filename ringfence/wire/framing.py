"""Messages on a byte stream: each is its length, four bytes in big endian, and then itself.

Decides where a message ends and how large one may be; what it means is the codec's business.
"""

from ringfence.errors import LocalProtocolError
from ringfence.wire.errors import BadMessage, Cause

__all__ = ["Framer", "MAX_MESSAGE", "frame"]

MAX_MESSAGE = 1 << 20
"""Most bytes in one message, its length prefix not counted."""

_PREFIX = 4


def frame(payload: bytes) -> bytes:
    """Put the length before one message.

    Raises `LocalProtocolError` for a payload that the other side's `Framer` would refuse.
    """
    if not 0 < len(payload) <= MAX_MESSAGE:
        raise LocalProtocolError(f"a message has 1 to {MAX_MESSAGE} bytes, not {len(payload)}")
    return len(payload).to_bytes(_PREFIX, "big") + payload


class Framer:
    """Cuts one stream into messages; every connection has its own.

    Between two calls it holds less than `limit` + 4 bytes. A byte is copied at most twice,
    however small the pieces it comes in.
    """

    __slots__ = ("_buffer", "_wanted", "_wrong_length", "limit")

    def __init__(self, limit: int = MAX_MESSAGE) -> None:
        self.limit = limit
        """Most bytes in one message. Below `MAX_MESSAGE`, each call of `feed` returns at most one
        message, so that the receiver can raise the limit before the next length is read."""
        self._buffer = bytearray()
        self._wanted = _PREFIX
        """Bytes that the buffer must hold before there is anything new to see."""
        self._wrong_length: int | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """Take the stream's next bytes; return the messages they complete, in order.

        Raises `BadMessage` at a length of 0 or above `limit`, and loses with it whatever else
        was in `data`. The stream is then beyond repair: each later call raises too. Under a lower
        limit than `MAX_MESSAGE`, call again with no data until no message is returned.
        """
        if self._wrong_length is None:
            messages = self._take(data)
        if self._wrong_length is not None:
            self._buffer.clear()
            raise _bad_length(self._wrong_length, self.limit)
        return messages

    def _take(self, data: bytes) -> list[bytes]:
        if not self._buffer:
            messages, used = self._cut(data)
            self._buffer += data[used:]
            return messages
        self._buffer += data
        if len(self._buffer) < self._wanted:
            return []
        with memoryview(self._buffer) as view:
            messages, used = self._cut(view)
        del self._buffer[:used]
        return messages

    def _cut(self, stream: bytes | memoryview) -> tuple[list[bytes], int]:
        """Copy the whole messages from the front of `stream`; tell how many bytes they took."""
        messages = []
        start = 0
        end = len(stream)
        wanted = _PREFIX
        while end - start >= _PREFIX:
            length = int.from_bytes(stream[start : start + _PREFIX], "big")
            if not 0 < length <= self.limit:
                self._wrong_length = length
                break
            wanted = _PREFIX + length
            if end - start < wanted:
                break
            messages.append(bytes(stream[start + _PREFIX : start + wanted]))
            start += wanted
            wanted = _PREFIX
            if self.limit < MAX_MESSAGE:
                break
        self._wanted = wanted
        return messages, start


def _bad_length(length: int, limit: int) -> BadMessage:
    if length == 0:
        return BadMessage(Cause.EMPTY, "a frame of length 0")
    return BadMessage(Cause.OVERSIZED, f"a frame of {length} bytes; at most {limit} are allowed")
