"""Framing of messages on a byte stream: a length of four bytes, big-endian, then the message.

Finds where a message ends and limits its size. `codecs` decode the message.
"""

from ringfence.errors import LocalProtocolError
from ringfence.wire.errors import BadMessage, Cause

__all__ = ["Framer", "MAX_MESSAGE", "frame"]

MAX_MESSAGE = 1 << 20
"""Maximum size of one message in bytes, without its length prefix."""

_PREFIX = 4


def frame(payload: bytes) -> bytes:
    """Return a payload with its length prefix.

    Raises `LocalProtocolError` for a payload that the `Framer` of the peer would refuse.
    """
    if not 0 < len(payload) <= MAX_MESSAGE:
        raise LocalProtocolError(
            f"a message must have 1 to {MAX_MESSAGE} bytes, got {len(payload)}"
        )
    return len(payload).to_bytes(_PREFIX, "big") + payload


class Framer:
    """Decoder of frames: splits the stream of one connection into messages.

    Between two calls it holds less than `limit` + 4 bytes. Each byte is copied at most twice, even
    when the stream arrives in small pieces.
    """

    __slots__ = ("_buffer", "_wanted", "_wrong_length", "limit")

    def __init__(self, limit: int = MAX_MESSAGE) -> None:
        self.limit = limit
        """Maximum size of a message in bytes. Below `MAX_MESSAGE`, each call of `feed` returns at
        most one message: the receiver may raise the limit before the next length is read."""
        self._buffer = bytearray()
        self._wanted = _PREFIX
        """Size of the buffer from which the next message may be complete."""
        self._wrong_length: int | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """Append bytes of the stream; return the messages that they complete, in order.

        Raises `BadMessage` for a length of 0 or above `limit`, and drops the rest of `data`. Each
        later call raises too. With a `limit` below `MAX_MESSAGE`, call again without data until no
        message is returned.
        """
        if self._wrong_length is None:
            length = len(data) - _PREFIX
            if (
                0 < length <= self.limit
                and not self._buffer
                and data[:_PREFIX] == length.to_bytes(_PREFIX, "big")
            ):
                return [data[_PREFIX:]]  # The usual case: one complete message.
            messages = self._append(data)
        if self._wrong_length is not None:
            self._buffer.clear()
            raise _bad_length(self._wrong_length, self.limit)
        return messages

    def _append(self, data: bytes) -> list[bytes]:
        if not self._buffer:
            messages, used = self._split(data)
            self._buffer += data[used:]
            return messages
        self._buffer += data
        if len(self._buffer) < self._wanted:
            return []
        with memoryview(self._buffer) as view:
            messages, used = self._split(view)
        del self._buffer[:used]
        return messages

    def _split(self, stream: bytes | memoryview) -> tuple[list[bytes], int]:
        """Return the complete messages at the beginning of `stream`, and their size in bytes."""
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
        return BadMessage(Cause.EMPTY, "the length of a frame must be above 0, got 0")
    return BadMessage(Cause.OVERSIZED, f"a frame must have at most {limit} bytes, got {length}")
